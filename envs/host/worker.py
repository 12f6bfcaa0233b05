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
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

DEFAULT_HORIZON = 1000  # of an environment that does not say how many steps an episode may have


class Problem(Exception):
    """A mistake that the user shall read, in one line."""


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

    files = [file for place in pettingzoo.__path__ for file in Path(place).glob("*/*.py")]
    names = [f"{file.parent.name}.{file.stem}" for file in files]
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
        parts = np.array(self.sizes).reshape(len(self.agents), -1, 1)  # [A, D, 1]
        self.widths = parts[..., 0].max(axis=0)  # [D] of the parts of a mask
        self.owned = np.concatenate([np.arange(w) < parts[:, d] for d, w in enumerate(self.widths)], axis=1)  # [A, N]
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
        fits = state.size <= len(self.agents) * max(self.obs_sizes) and np.issubdtype(state.dtype, np.number)
        return state.size if fits else 0

    def _horizon(self, env: Any) -> int:
        inner = getattr(env, "unwrapped", env)
        holders = (inner, getattr(inner, "env", None))  # SISL keeps it one level deeper
        limits = [*(getattr(holder, "max_cycles", None) for holder in holders), self.kwargs.get("max_cycles")]
        return next((limit for limit in limits if isinstance(limit, int) and limit > 0), DEFAULT_HORIZON)

    def facts(self) -> dict[str, Any]:
        """What the environment protocol asks for, as plain numbers."""
        shapes = {space.shape for space in self.obs_spaces}
        image = len(shapes) == 1 and len(self.obs_spaces[0].shape or ()) == 3
        names = ("obs_sizes", "kind", "sizes", "low", "high", "masked", "state_size", "horizon")
        return {name: getattr(self, name) for name in names} | {
            "agents": tuple(map(str, self.agents)),
            "obs_shape": self.obs_spaces[0].shape if image else (),
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
        """``[N]``: the legal actions of one agent; all of a part of which none is legal, or if no mask is ``given``."""
        owned = self.owned[agent]
        if given is None or self.kind == "continuous":
            return owned
        flat = np.concatenate([np.ravel(part) for part in given]) > 0
        legal = owned.copy()
        legal[owned] = flat[: owned.sum()]
        parts = np.split(legal, np.cumsum(self.widths)[:-1])
        return np.where(np.repeat([part.any() for part in parts], self.widths), legal, owned)


def _without_mask(space: Any) -> Any:
    """The first part of ``{"observation": ..., "action_mask": ...}``, an observation or the space of them."""
    parts = getattr(space, "spaces", space)
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
                seen = _without_mask(observed[agent])
                row["obs"][i, : task.obs_sizes[i]] = _flat(task.obs_spaces[i], seen, task.pixels[i])
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
    from gymnasium.spaces.utils import flatten

    plain = isinstance(value, np.ndarray) and value.shape == space.shape
    flat = np.ravel(np.asarray(value if plain else flatten(space, value)))
    return flat.astype(np.float32) / 255.0 if pixels else flat


class Worker:
    """The environments of one process, by bank and number."""

    def __init__(self, task: Task):
        self.task = task
        self.slots: dict[tuple[int, int], Slot] = {}

    def arrays(self, n: int) -> dict[str, np.ndarray]:
        """Room for what ``n`` environments show."""
        agents = len(self.task.agents)
        room = {"obs": np.zeros((n, agents, max(self.task.obs_sizes)), np.float32)}
        room["alive"] = np.zeros((n, agents), bool)
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

    def step(self, bank: int, start: int, horizon: int, rows: list[np.ndarray]) -> tuple[np.ndarray, dict, dict | None]:
        """Step every environment from number ``start`` on; in training those that ended begin their next episode.

        ``rows [n]``: where each environment stood by its state (number and clock), its seed and its actions. One that
        does not stand there (the worker is new, the training was resumed, the state is a copy of another run's) is
        ``lost``: it counts as truncated, and a new episode begins.
        """
        numbers, clocks, seeds, actions = rows
        n = len(numbers)
        training = bank >= 0
        last = self.arrays(n) | {name: np.zeros(n, bool) for name in ("terminated", "truncated", "lost")}
        last["reward"] = np.zeros((n, len(self.task.agents)), np.float32)
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
                first = first or self.arrays(n)
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
    """The worker and what it answers; ``begin`` makes the worker."""
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
