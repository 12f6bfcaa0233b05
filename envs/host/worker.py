"""A process that steps PettingZoo environments: requests on its input, answers on its output.

It is a script of its own that imports neither JAX nor this package: a worker is up within a second and stays small.
Everything that PettingZoo is free to do differently is settled here, one environment at a time; what goes back are
arrays as the protocol wants them (``shoal.envs.base``). A worker ends when its input does, however the parent went.

Shapes: ``n`` environments of this worker, ``A`` agents, ``O`` observation, ``N`` actions, ``S`` state.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import pickle
import pkgutil
import signal
import struct
import sys
from collections.abc import Callable
from typing import IO, Any

import numpy as np

DEFAULT_HORIZON = 1000  # of an environment that does not say how many steps an episode may have


class Problem(Exception):
    """What the user shall read, in one line."""


def send(stream: IO[bytes], message: Any) -> None:
    """One message: its length, then itself."""
    data = pickle.dumps(message, protocol=5)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """The next message; ``EOFError`` if the other side is gone."""
    head = stream.read(8)
    data = stream.read(struct.unpack("<Q", head)[0]) if len(head) == 8 else b""
    if not data:
        raise EOFError
    return pickle.loads(data)


def find(path: str) -> Any:
    """The module ``sisl.multiwalker_v9`` of PettingZoo, or any module that can be imported."""
    for name in (f"pettingzoo.{path}", path):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if not (name == missing or name.startswith(f"{missing}.")):
                raise Problem(f"its module needs {missing}, which is not installed") from error
            if missing == "pettingzoo":
                raise Problem("needs PettingZoo: pip install 'shoal[pettingzoo]'") from error
    raise Problem(f"no such module; {_nearest(path)}")


def _nearest(path: str) -> str:
    import pettingzoo

    names = []
    for family in pkgutil.iter_modules(pettingzoo.__path__):
        places = [os.path.join(place, family.name) for place in pettingzoo.__path__]
        names += [f"{family.name}.{module.name}" for module in pkgutil.iter_modules(places) if not module.ispkg]
    close = difflib.get_close_matches(path, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "neither PettingZoo's nor one that Python finds"


class Task:
    """What all environments of a pool are: how to make one, and how its dictionaries become arrays."""

    def __init__(self, path: str, kwargs: dict[str, Any], continuous: bool | None):
        module = find(path)
        self.maker, self.kwargs = self._maker(module), dict(kwargs)
        raw = getattr(module, "raw_env", self.maker)  # PettingZoo's own makers pass on whatever they are given
        if continuous is not None and "continuous_actions" in inspect.signature(raw).parameters:
            self.kwargs.setdefault("continuous_actions", continuous)
        env = self.make()
        self.agents = list(getattr(env, "possible_agents", ()))
        if not self.agents:
            raise Problem("has no possible_agents: the number of agents must be known")
        observed, infos = env.reset(seed=0)
        self.obs_spaces = [_without_mask(env.observation_space(agent)) for agent in self.agents]
        self.action_spaces = [env.action_space(agent) for agent in self.agents]
        self.obs_sizes = tuple(map(_flat_size, self.obs_spaces))
        self.pixels = [space.dtype == np.uint8 for space in self.obs_spaces]
        self.masked = any(_mask_of(observed.get(a), infos.get(a)) is not None for a in self.agents)
        self.kind, self.sizes, self.low, self.high = _actions(self.action_spaces)
        self.widths = np.array(self.sizes).reshape(len(self.agents), -1).max(axis=0)  # of the parts of a mask
        self.state_size = self._state_size(env)
        self.horizon = self._horizon(env)
        env.close()

    def _maker(self, module: Any) -> Callable[..., Any]:
        if hasattr(module, "parallel_env"):
            return module.parallel_env
        if not hasattr(module, "env"):
            raise Problem(f"{module.__name__} has neither parallel_env nor env")
        from pettingzoo.utils.conversions import aec_to_parallel

        def parallel(**kwargs):
            env = module.env(**kwargs)
            if not env.metadata.get("is_parallelizable", False):
                raise Problem("its agents take turns (metadata is_parallelizable is not set): they must act at once")
            return aec_to_parallel(env)

        return parallel

    def make(self) -> Any:
        """One more environment."""
        try:
            return self.maker(**self.kwargs)
        except (TypeError, AssertionError) as error:
            raise Problem(f"env.kwargs={self.kwargs}: {error}") from error

    def _state_size(self, env: Any) -> int:
        """Of the environment's own state, where it has one no larger than all observations together; else 0."""
        try:
            state = np.asarray(env.state())
        except (AttributeError, NotImplementedError):
            return 0
        small = state.size <= len(self.agents) * max(self.obs_sizes)
        return state.size if small and np.issubdtype(state.dtype, np.number) else 0

    def _horizon(self, env: Any) -> int:
        inner = getattr(env, "unwrapped", env)
        for holder in (inner, getattr(inner, "env", None)):  # SISL keeps it one level deeper
            limit = getattr(holder, "max_cycles", None)
            if isinstance(limit, int) and limit > 0:
                return limit
        limit = self.kwargs.get("max_cycles")
        return limit if isinstance(limit, int) and limit > 0 else DEFAULT_HORIZON

    def facts(self) -> dict[str, Any]:
        """What the environment protocol asks for, as plain numbers."""
        shapes = {space.shape for space in self.obs_spaces}
        image = len(shapes) == 1 and len(self.obs_spaces[0].shape or ()) == 3
        return {
            "agents": tuple(map(str, self.agents)),
            "obs_sizes": self.obs_sizes,
            "obs_shape": self.obs_spaces[0].shape if image else (),
            "kind": self.kind,
            "sizes": self.sizes,
            "low": self.low,
            "high": self.high,
            "masked": self.masked,
            "state_size": self.state_size,
            "horizon": self.horizon,
        }

    def action(self, agent: int, row: np.ndarray) -> Any:
        """One agent's own action from its padded row."""
        space = self.action_spaces[agent]
        if self.kind == "continuous":
            own = row[: self.sizes[agent]].reshape(space.shape)
            return np.clip(own, space.low, space.high).astype(space.dtype)
        if self.kind == "discrete":
            return int(row) + int(space.start)
        own = row[: int(np.prod(space.shape))].reshape(space.shape)
        return (own + getattr(space, "start", 0)).astype(space.dtype)

    def mask(self, agent: int, given: Any) -> np.ndarray:
        """``[N]``: the legal actions of one agent, its own size's where it is given none or none is legal."""
        parts = np.atleast_1d(self.sizes[agent])
        if self.kind == "continuous":
            return np.arange(self.widths[0]) < parts[0]
        if given is not None:
            given = np.concatenate([np.ravel(part) for part in given]) > 0
        starts = np.concatenate([[0], np.cumsum(parts)])
        rows = []
        for width, size, start in zip(self.widths, parts, starts, strict=False):
            row = np.zeros(width, bool)
            row[:size] = True if given is None else given[start : start + size]
            if not row.any():
                row[:size] = True
            rows.append(row)
        return np.concatenate(rows)


def _without_mask(space: Any) -> Any:
    """An observation of ``{"observation": ..., "action_mask": ...}`` is its first part."""
    parts = getattr(space, "spaces", None)
    return parts["observation"] if isinstance(parts, dict) and "action_mask" in parts else space


def _mask_of(observed: Any, info: Any) -> Any:
    for holder in (observed, info):
        if isinstance(holder, dict) and "action_mask" in holder:
            return holder["action_mask"]
    return None


def _flat_size(space: Any) -> int:
    from gymnasium.spaces.utils import flatdim

    try:
        return int(flatdim(space))
    except (NotImplementedError, ValueError) as error:
        raise Problem(f"its observations ({space}) cannot be laid out as a vector") from error


def _actions(spaces: list[Any]) -> tuple[str, tuple, Any, Any]:
    """The kind of action that all agents have, each agent's size or sizes, and bounds ``[A, N]`` if continuous."""
    from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

    if all(isinstance(space, Discrete) for space in spaces):
        return "discrete", tuple(int(space.n) for space in spaces), None, None
    if all(isinstance(space, MultiDiscrete | MultiBinary) for space in spaces):
        rows = [list(np.ravel(s.nvec)) if isinstance(s, MultiDiscrete) else [2] * int(np.prod(s.shape)) for s in spaces]
        longest = max(map(len, rows))
        return "multi", tuple(tuple(map(int, row)) + (1,) * (longest - len(row)) for row in rows), None, None
    if all(isinstance(space, Box) and np.issubdtype(space.dtype, np.floating) for space in spaces):
        sizes = tuple(int(np.prod(space.shape)) for space in spaces)
        low, high = (np.full((len(spaces), max(sizes)), bound, np.float32) for bound in (-1.0, 1.0))
        for row, space in enumerate(spaces):
            if not space.is_bounded():
                raise Problem(f"its actions ({space}) have no bounds")
            low[row, : sizes[row]], high[row, : sizes[row]] = space.low.ravel(), space.high.ravel()
        return "continuous", sizes, low, high
    kinds = ", ".join(dict.fromkeys(str(space) for space in spaces))
    raise Problem(f"its actions ({kinds}) are not all Discrete, all MultiDiscrete or all Box")


class Slot:
    """One environment and where it stands."""

    def __init__(self, task: Task):
        self.task = task
        self.env: Any = None
        self.clock = -1  # counts resets and steps: a state of another moment is told from this one's
        self.steps = 0  # of this episode
        self.over = True
        self.alive = np.zeros(len(task.agents), bool)
        self.state = np.zeros(task.state_size, np.float32)

    def reset(self, seed: int, row: dict[str, np.ndarray]) -> None:
        """Begin an episode and write what it shows."""
        if self.env is None:
            self.env = self.task.make()
        observed, infos = self.env.reset(seed=seed)
        self.clock, self.steps, self.over = self.clock + 1, 0, False
        self.alive = self._present()
        self._write(observed, infos, self.alive, row)

    def step(self, action: np.ndarray, horizon: int, row: dict[str, np.ndarray]) -> None:
        """One step; ``terminated`` says that it ended by itself, ``truncated`` that it was cut."""
        agents = self.task.agents
        acting = self.alive
        actions = {agent: self.task.action(i, action[i]) for i, agent in enumerate(agents) if acting[i]}
        observed, rewards, terminations, truncations, infos = self.env.step(actions)
        self.clock, self.steps = self.clock + 1, self.steps + 1
        ended = np.array([bool(terminations.get(agent)) for agent in agents])
        cut = np.array([bool(truncations.get(agent)) for agent in agents]) & ~ended
        self.alive = self._present() & ~ended & ~cut
        row["reward"][:] = [float(rewards.get(agent, 0.0)) for agent in agents]
        shown = self.alive
        if not self.alive.any():  # those that were only cut have a future: it is what they see that is valued
            row["truncated"][...] = (cut & acting).any()
            row["terminated"][...] = not row["truncated"]
            shown = cut & acting if row["truncated"] else acting
        self.over = not self.alive.any() or self.steps >= horizon
        self._write(observed, infos, shown, row)

    def _present(self) -> np.ndarray:
        here = set(self.env.agents)
        return np.array([agent in here for agent in self.task.agents])

    def _write(self, observed: dict, infos: dict, shown: np.ndarray, row: dict[str, np.ndarray]) -> None:
        task = self.task
        row["alive"][:] = shown
        for i, agent in enumerate(task.agents):
            if shown[i] and agent in observed:
                seen = observed[agent]
                own = seen["observation"] if isinstance(seen, dict) and "action_mask" in seen else seen
                row["obs"][i, : task.obs_sizes[i]] = _flat(task.obs_spaces[i], own, task.pixels[i])
            if "mask" in row:
                given = _mask_of(observed.get(agent), infos.get(agent)) if shown[i] else None
                row["mask"][i] = task.mask(i, given)
        if "state" in row:
            row["state"][:] = self.state = self._own_state()

    def _own_state(self) -> np.ndarray:
        """The last known one where the environment has none left: some take their world apart when an agent goes."""
        try:
            state = np.ravel(self.env.state())
        except Exception:
            if self.alive.all():
                raise
            return self.state
        return state if state.size == self.task.state_size else self.state


def _flat(space: Any, value: Any, pixels: bool) -> np.ndarray:
    """``[O_i]`` float32; bytes of a picture as shares of 255."""
    if isinstance(value, np.ndarray) and value.shape == space.shape:
        flat = value.ravel()
    else:
        from gymnasium.spaces.utils import flatten

        flat = np.ravel(np.asarray(flatten(space, value)))
    return flat.astype(np.float32) / 255.0 if pixels else flat


class Worker:
    """The environments of one process, by bank and number."""

    def __init__(self, task: Task):
        self.task = task
        self.slots: dict[tuple[int, int], Slot] = {}

    def arrays(self, n: int) -> dict[str, np.ndarray]:
        """Room for what ``n`` environments show."""
        agents = len(self.task.agents)
        room = {
            "obs": np.zeros((n, agents, max(self.task.obs_sizes)), np.float32),
            "alive": np.zeros((n, agents), bool),
        }
        if self.task.masked:
            room["mask"] = np.ones((n, agents, int(self.task.widths.sum())), bool)
        if self.task.state_size:
            room["state"] = np.zeros((n, self.task.state_size), np.float32)
        return room

    def reset(self, bank: int, start: int, seeds: np.ndarray) -> tuple[np.ndarray, dict]:
        """Begin an episode in every environment from number ``start`` on."""
        clock, seen = np.zeros(len(seeds), np.int32), self.arrays(len(seeds))
        for i, seed in enumerate(seeds):
            slot = self.slots.setdefault((bank, start + i), Slot(self.task))
            slot.reset(int(seed), {name: array[i] for name, array in seen.items()})
            clock[i] = slot.clock
        return clock, seen

    def step(
        self,
        bank: int,
        start: int,
        numbers: np.ndarray,
        clocks: np.ndarray,
        seeds: np.ndarray,
        actions: np.ndarray,
        horizon: int,
    ) -> tuple[np.ndarray, dict, dict | None]:
        """Step every environment from number ``start`` on; in training those that ended begin their next episode.

        An environment that does not stand where its state says (the worker is new, the training was resumed, the
        state is a copy of another run's) is ``lost``: it counts as truncated, and a new episode begins.
        """
        n = len(numbers)
        training = bank >= 0
        last = self.arrays(n) | {
            "reward": np.zeros((n, len(self.task.agents)), np.float32),
            "terminated": np.zeros(n, bool),
            "truncated": np.zeros(n, bool),
            "lost": np.zeros(n, bool),
        }
        first, clock = None, np.array(clocks, np.int32)
        for i in range(n):
            known = (bank, start + i) in self.slots
            slot = self.slots.setdefault((bank, start + i), Slot(self.task))
            row = {name: array[i, ...] for name, array in last.items()}
            here = known and slot.clock == clocks[i] and numbers[i] == start + i
            if here and not slot.over:
                slot.step(actions[i], horizon, row)
            elif training or not known:
                row["lost"][...] = row["truncated"][...] = slot.over = True
            elif slot.over:  # an evaluation's episode that has ended stands still
                row["truncated"][...] = True
                continue
            else:
                raise Problem("a state was stepped that is not the last one: environments on the host cannot go back")
            if training and slot.over:
                first = first if first is not None else self.arrays(n)
                slot.reset(int(seeds[i]), {name: array[i] for name, array in first.items()})
            clock[i] = slot.clock
        return clock, last, first

    def drop(self) -> None:
        """Close all environments."""
        for slot in self.slots.values():
            if slot.env is not None:
                slot.env.close()
        self.slots.clear()


def answer(worker: Worker | None, request: str, *arguments: Any) -> tuple[Worker | None, Any]:
    if request == "begin":
        sys.path[:] = arguments[0]
        worker = Worker(Task(*arguments[1:]))
        return worker, worker.task.facts()
    return worker, getattr(worker, request)(*arguments)


def main() -> None:
    """Answer until the parent is gone; it alone is told to stop, and its workers with it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what an environment prints is no answer
    worker: Worker | None = None
    while True:
        try:
            request = receive(requests)
        except EOFError:
            break
        try:
            worker, result = answer(worker, *request)
            reply = ("done", result)
        except Problem as problem:
            reply = ("problem", " ".join(str(problem).split()))
        except Exception as error:
            where = inspect.trace()[-1]
            text = " ".join(str(error).split()) or "no message"
            place = f"{os.path.basename(where.filename)}:{where.lineno}"
            reply = ("problem", f"{request[0]} failed in {place}: {type(error).__name__}: {text}")
        try:
            send(answers, reply)
        except BrokenPipeError:
            break
    os._exit(0)  # no clean-up of pygame's or a user's may keep it


if __name__ == "__main__":
    main()
