"""Play a team that Shoal trained, with numpy alone: this one file and an exported folder are all that a robot needs.

    policy = load_policy("runs/.../export/run_0_best")  # what shoal export wrote
    policy.reset()                                      # at the start of an episode
    actions = policy.act(obs)                           # obs [A, O], or [E, A, O] for E teams side by side

Shapes: ``E`` environments, ``A`` agents, ``O`` observation, ``N`` actions (``D`` sub-actions), ``F`` features, ``P``
parameter sets, of which each agent uses one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FORMAT, VERSION, CHECKSUM = "shoal-policy", 1, "sha256"
MOST = 10**8  # numbers that a team may observe
LARGEST = 2**32  # bytes of a file
TOLERANCE = 1e-5  # how far numpy may be from what JAX did, relative to values above one
DTYPES = {"F32": "<f4", "I32": "<i4", "BOOL": "?"}
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3))),
    "silu": lambda x: x * _sigmoid(x),
}

Weights = dict[str, np.ndarray]
Memory = tuple[np.ndarray, ...]  # [E, A, F] each: none, a GRU's output, or an LSTM's cell and output


class PolicyError(ValueError):
    """A file that is no policy, or numbers that do not fit it: one line says what."""


def load_policy(path: str | Path, agents: Sequence[str] | None = None) -> Policy:
    """The policy in an exported folder (or by its ``policy.json``), of all agents or of those named.

    One robot that acts for itself alone loads ``agents=["agent_1"]``; its observations are ``[1, O]``.
    """
    path = Path(path)
    path = path / "policy.json" if path.is_dir() else path
    try:
        description = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, PolicyError):
            raise
        raise PolicyError(f"{path}: is damaged, or no policy.json of an export") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise PolicyError(f"{path}: does not describe a policy; name a folder that shoal export wrote")
    if description.get("version") != VERSION:
        raise PolicyError(
            f"{path}: is of format version {description.get('version')}, and this file reads version {VERSION}; "
            "use the deploy.py that lies beside it"
        )
    if description.get("weights") is None:
        raise PolicyError(
            f"{path}: has no weights for numpy, because its network is a module of its own; use policy.jax"
        )
    try:
        file = path.parent / Path(description["weights"]["file"]).name  # never of another folder
        digest = description["weights"]["sha256"]
    except (KeyError, TypeError):
        raise PolicyError(f"{path}: does not say where its weights are") from None
    data = _read(file)
    if hashlib.sha256(data).hexdigest() != digest:
        raise PolicyError(f"{file}: is damaged, or belongs to another policy.json; copy the exported folder again")
    try:
        policy = Policy(description, read_safetensors(data), agents)
        if len(policy.agents) * policy.obs_size > MOST:
            raise ValueError(f"obs_size={policy.obs_size}")
        policy.act(np.zeros((len(policy.agents), policy.obs_size)))
        policy.reset()
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError, RecursionError) as error:
        if isinstance(error, PolicyError):
            raise
        raise PolicyError(f"{path}: does not fit its weights ({type(error).__name__}: {error})") from None
    if description.pop(CHECKSUM, None) not in (None, checksum(description)):
        raise PolicyError(f"{path}: has changed since it was exported (checksum); copy the exported folder again")
    return policy


def checksum(description: dict[str, Any]) -> str:
    """The SHA-256 of what ``policy.json`` says, which stands there too."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def read_safetensors(data: bytes) -> dict[str, np.ndarray]:
    """Arrays by name: eight bytes with the length of a JSON header, which says where behind it each array lies."""
    start = 8 + int.from_bytes(data[:8], "little")
    arrays = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            arrays[name] = np.frombuffer(data[start + first : start + last], DTYPES[entry["dtype"]])
            arrays[name] = arrays[name].reshape(entry["shape"])
    return arrays


class Policy:
    """A trained team, or some of its agents; it remembers, if its network does, from one ``act`` to the next."""

    def __init__(self, description: dict[str, Any], arrays: Weights, agents: Sequence[str] | None = None):
        names = description["agents"]
        self.description = description  # policy.json: environment, algorithm, spaces, versions, ...
        self.agents = tuple(names if agents is None else agents)
        unknown = [name for name in self.agents if name not in names]
        if unknown or not self.agents:
            raise PolicyError(f"agents={list(self.agents)}: these are {', '.join(names)}")
        self.network = description["network"]
        self.mixes = self.network["torso"] in MIXING
        if self.mixes and self.agents != tuple(names):
            raise PolicyError(f"agents={list(self.agents)}: a {self.network['torso']} needs the observations of all")
        self.obs_size = int(description["obs_size"])
        self.head = description["head"]
        self._arrays, self._rows = arrays, np.array([names.index(name) for name in self.agents])
        ids = np.eye(len(names), dtype=np.float32)[self._rows]
        self._ids = ids if description["agent_id"] else ids[:, :0]
        self._stats = (arrays["obs/mean"], arrays["obs/std"]) if description["obs_limit"] else None
        self._space = space = description["actions"]
        self._mask = _size_mask(space["sizes"])[self._rows]  # [A, N]
        self._edges = np.cumsum(space.get("parts", [0]))[:-1]  # where sub-actions meet
        if space["kind"] == "continuous":
            low, high = (np.array(space[side], np.float32)[self._rows] for side in ("low", "high"))
            self._centre, self._half = (high + low) / 2, (high - low) / 2
        policy_of = np.array(description["policy_of"])[self._rows]
        weights = {name: array for name, array in arrays.items() if not name.startswith(("obs/", "check/"))}
        self._sets = [  # each parameter set, and which agents use it
            ({name: array[p] for name, array in weights.items()}, np.flatnonzero(policy_of == p))
            for p in np.unique(policy_of)
        ]
        self._memory: Memory | None = None

    def __repr__(self) -> str:
        facts, kind = self.description, self._space["kind"]
        return f"<{facts['algorithm']} on {facts['environment']}: {len(self.agents)} agents, {kind} actions>"

    def reset(self) -> None:
        """Forget: an episode starts. What ``act`` reads next may have another ``E``."""
        self._memory = None

    def act(self, obs: Any, mask: Any = None, alive: Any = None, first: Any = None) -> np.ndarray:
        """The best legal action of every agent, as its environment takes it.

        ``obs`` is the environment's own observation ``[A, O]`` or ``[E, A, O]``, zeros behind the shorter ones. Where
        ``mask [..., A, N]`` is not given all actions are legal; where ``alive [..., A]`` is not, all agents are.
        ``first [...]`` says that an episode starts: what was remembered of the last one is forgotten.

        Gives ``[..., A]`` or ``[..., A, D]`` int32, or ``[..., A, N]`` float32 within the bounds.
        """
        outputs, legal, single = self._step(obs, mask, alive, first)
        action = self._to_action(outputs, legal)
        return action[0] if single else action

    def sample(
        self, rng: np.random.Generator, obs: Any, mask: Any = None, alive: Any = None, first: Any = None
    ) -> np.ndarray:
        """An action drawn from the policy; otherwise as :meth:`act`."""
        if self.head != "distribution":
            raise PolicyError(f"sample: the policy of {self.description['algorithm']} is deterministic; use act")
        outputs, legal, single = self._step(obs, mask, alive, first)
        if self._space["kind"] == "continuous":
            mean, log_std = np.split(outputs, 2, axis=-1)
            noise = rng.standard_normal(mean.shape, np.float32)
            drawn = mean + np.exp(np.clip(log_std, *self.description["log_std_range"])) * noise
            outputs = np.concatenate([drawn, log_std], axis=-1)
        else:
            outputs = outputs + rng.gumbel(size=outputs.shape)
        action = self._to_action(outputs, legal)
        return action[0] if single else action

    def check(self) -> float:
        """Replay the steps that the export recorded in JAX: the largest difference, an error if it is not tiny.

        A discrete action that differs counts by how much better its score is than that of the recorded one.
        """
        twin = Policy(self.description, self._arrays, self.agents)
        recorded = {
            name: self._arrays[f"check/{name}"][:, :, self._rows] for name in ("obs", "mask", "alive", "action")
        }
        differences = []
        for t in range(len(recorded["obs"])):
            step = {name: array[t] for name, array in recorded.items()}
            outputs, legal, _ = twin._step(step["obs"], step["mask"], step["alive"], None)
            differences.append(twin._difference(outputs, legal, step["action"]))
        worst = float(np.max(differences))
        if not worst <= TOLERANCE:  # nor NaN
            raise PolicyError(f"check: differs by {worst:.2g} from what was recorded, above {TOLERANCE:g}")
        return worst

    def _step(self, obs: Any, mask: Any, alive: Any, first: Any) -> tuple[np.ndarray, np.ndarray, bool]:
        """What the head says ``[E, A, H]``, the legal actions ``[E, A, N]``, and whether there was no axis ``E``."""
        obs, shape = _array("obs", obs, np.float32), (len(self.agents), self.obs_size)
        if obs.shape[-2:] != shape or obs.ndim not in (2, 3):
            raise PolicyError(
                f"obs: has shape {obs.shape}, and this policy reads {shape} or (E, {shape[0]}, {shape[1]})"
            )
        single = obs.ndim == 2
        x = obs[None] if single else obs
        rows = x.shape[:2]
        legal = _flags("mask", self._mask if mask is None else mask, (*rows, self._mask.shape[1]))
        living = _flags("alive", True if alive is None else alive, rows)
        fresh = _flags("first", False if first is None else first, rows[:1])
        memory = self._remembered(rows, fresh)
        x = np.concatenate([x, np.broadcast_to(self._ids, (*rows, self._ids.shape[1]))], axis=-1)
        if self._stats is not None:
            mean, std = self._stats
            x = np.clip((x - mean) / std, -self.description["obs_limit"], self.description["obs_limit"])
        outputs, self._memory = self._forward(x, living[..., None], memory)
        return outputs, legal, single

    def _remembered(self, rows: tuple[int, ...], fresh: np.ndarray) -> Memory:
        count = {"gru": 1, "lstm": 2}.get(self.network["memory"], 0)
        if self._memory is None:
            return tuple(np.zeros((*rows, self.network["hidden"]), np.float32) for _ in range(count))
        if any(part.shape[:2] != rows for part in self._memory):
            raise PolicyError(
                f"obs: has {rows[0]} environments, and the memory is of {self._memory[0].shape[0]}; call reset() first"
            )
        return tuple(np.where(fresh[:, None, None], np.float32(0), part) for part in self._memory)

    def _forward(self, x: np.ndarray, alive: np.ndarray, memory: Memory) -> tuple[np.ndarray, Memory]:
        """Each agent by its own parameter set; where agents see each other each set reads all of them."""
        network, parts = self.network, []
        for weights, mine in self._sets:
            alone = len(self._sets) == 1
            seen = x if self.mixes or alone else x[:, mine]
            features = TORSOS[network["torso"]](network, weights, seen, alive)
            features = features[:, mine] if self.mixes and not alone else features
            after: Memory = ()
            if network["memory"] is not None:
                before = memory if alone else tuple(part[:, mine] for part in memory)
                after = MEMORIES[network["memory"]](weights, before, features)
                features = _mlp(network, weights, "after", network["after"], after[-1])
            parts.append((_dense(weights, "head", features), *after))
        if len(parts) == 1:
            return parts[0][0], parts[0][1:]
        order = np.argsort(np.concatenate([mine for _, mine in self._sets]))
        joined = [np.concatenate([part[k] for part in parts], axis=1)[:, order] for k in range(len(parts[0]))]
        return joined[0], tuple(joined[1:])

    def _to_action(self, outputs: np.ndarray, legal: np.ndarray) -> np.ndarray:
        if self._space["kind"] == "continuous":
            if self.head == "distribution":
                raw = np.split(outputs, 2, axis=-1)[0]
                squashed = np.tanh(raw) if self.description["squash"] == "tanh_normal" else np.clip(raw, -1, 1)
            else:
                squashed = np.where(legal, np.tanh(outputs), np.float32(0))
            return self._centre + self._half * squashed
        choices = [part.argmax(-1) for part in self._scores(outputs, legal)]
        return (np.stack(choices, axis=-1) if self._space["kind"] == "multi_discrete" else choices[0]).astype(np.int32)

    def _scores(self, outputs: np.ndarray, legal: np.ndarray) -> list[np.ndarray]:
        """Of every choice, ``[E, A, parts[d]]`` for each sub-action."""
        return np.split(np.where(legal, outputs, -np.inf), self._edges, axis=-1)

    def _difference(self, outputs: np.ndarray, legal: np.ndarray, recorded: np.ndarray) -> np.ndarray:
        if self._space["kind"] == "continuous":
            return (np.abs(self._to_action(outputs, legal) - recorded) / np.maximum(self._half, 1)).max()
        recorded, worst = recorded.reshape(*legal.shape[:2], -1), np.zeros(legal.shape[:2])
        for d, scores in enumerate(self._scores(outputs, legal)):
            theirs = np.take_along_axis(scores, recorded[..., d : d + 1], axis=-1)[..., 0]
            best = scores.max(-1)
            some = best > -np.inf  # else nothing was legal
            regret = np.subtract(best, theirs, out=np.zeros_like(worst), where=some | np.isnan(best))
            worst = np.maximum(worst, regret / np.maximum(np.where(some, np.abs(best), 1), 1))
        return worst.max()


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise PolicyError(f"{path}: is no regular file")
        if path.stat().st_size > LARGEST:
            raise PolicyError(f"{path}: has {path.stat().st_size} bytes, and at most {LARGEST} are read")
        return path.read_bytes()
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error.strerror})") from None


def _array(name: str, value: Any, dtype: Any) -> np.ndarray:
    try:
        return np.asarray(value, dtype)
    except (TypeError, ValueError):
        raise PolicyError(f"{name}: must be an array of numbers") from None


def _flags(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    value = _array(name, value, bool)
    try:
        return np.broadcast_to(value, shape)
    except ValueError:
        raise PolicyError(f"{name}: has shape {value.shape}, and must be {shape}, or that without E") from None


def _size_mask(sizes: list) -> np.ndarray:
    """``[A, N]``: the actions that each agent has, of ``sizes [A]`` or ``[A, D]``."""
    columns = np.array(sizes).reshape(len(sizes), -1).T
    return np.concatenate([np.arange(column.max()) < column[:, None] for column in columns], axis=1)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _dense(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    kernel = weights[f"{name}/kernel"]
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], -1) + weights[f"{name}/bias"]


def _layer_norm(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    mean = x.mean(axis=-1, keepdims=True)
    variance = np.maximum(np.square(x).mean(axis=-1, keepdims=True) - np.square(mean), 0)
    return (x - mean) / np.sqrt(variance + np.float32(1e-6)) * weights[f"{name}/scale"] + weights[f"{name}/bias"]


def _mlp(network: dict, weights: Weights, name: str, widths: list, x: np.ndarray, alive: Any = None) -> np.ndarray:
    for i in range(len(widths)):
        x = _dense(weights, f"{name}/Dense_{i}", x)
        x = _layer_norm(weights, f"{name}/LayerNorm_{i}", x) if network["layer_norm"] else x
        x = ACTIVATIONS[network["activation"]](x)
    return x


def _torso_mlp(network: dict, weights: Weights, x: np.ndarray, alive: np.ndarray) -> np.ndarray:
    return _mlp(network, weights, "torso", network["widths"], x)


def _cnn(network: dict, weights: Weights, x: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """Convolutions of 3 x 3, zeros around the image; what stands behind the image joins before the layers."""
    height, width, channels = network["image"]
    size = height * width * channels
    image, rest = x[..., :size].reshape(-1, height, width, channels), x[..., size:]
    for i in range(len(network["channels"])):
        kernel, bias = weights[f"torso/Conv_{i}/kernel"], weights[f"torso/Conv_{i}/bias"]
        around = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
        shifted = [around[:, r : r + height, c : c + width] @ kernel[r, c] for r in range(3) for c in range(3)]
        image = ACTIVATIONS[network["activation"]](sum(shifted) + bias)
    flat = np.concatenate([image.reshape(*x.shape[:-1], -1), rest], axis=-1)
    return _mlp(network, weights, "torso/MLP_0", network["widths"], flat)


def _deepsets(network: dict, weights: Weights, x: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """Each agent beside the mean of the living."""
    own = _mlp(network, weights, "torso/MLP_0", network["widths"], x)
    living = np.where(alive, own, np.float32(0)).sum(axis=-2, keepdims=True)
    mean = living / np.maximum(alive.sum(axis=-2, keepdims=True), 1).astype(np.float32)
    both = np.concatenate([own, np.broadcast_to(mean, own.shape)], axis=-1)
    return _mlp(network, weights, "torso/MLP_1", network["widths"][-1:], both)


def _gnn(network: dict, weights: Weights, x: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """Rounds of messages between living neighbours."""
    activate, layer = ACTIVATIONS[network["activation"]], iter(range(4 * len(network["widths"])))
    near = np.swapaxes(alive, -1, -2) & ~np.eye(x.shape[-2], dtype=bool)  # [E, A, A]: i hears j
    away = None
    if network["position"] is not None:
        position = x[..., slice(*network["position"])]
        away = position[..., None, :, :] - position[..., :, None, :]
        if network["radius"] > 0:
            near = near & (np.square(away).sum(-1) < np.float32(network["radius"] ** 2))
    heard_from = np.maximum(near.sum(axis=-1), 1)[..., None].astype(np.float32)

    def dense(rows: np.ndarray) -> np.ndarray:
        return _dense(weights, f"torso/Dense_{next(layer)}", rows)

    for i in range(len(network["widths"])):
        message = dense(x)[..., None, :, :] + dense(x)[..., :, None, :]  # [E, A, A, F]
        message = message if away is None else message + dense(away)
        heard = np.where(near[..., None], activate(message), np.float32(0)).sum(axis=-2)
        x = dense(x) + heard / heard_from
        x = activate(_layer_norm(weights, f"torso/LayerNorm_{i}", x) if network["layer_norm"] else x)
    return x


def _gru(weights: Weights, memory: Memory, x: np.ndarray) -> Memory:
    (h,) = memory
    x_r, x_z, x_n = (_dense(weights, f"memory/input_{gate}", x) for gate in "rzn")
    u_r, u_z, u_n = (h @ weights[f"memory/kernel_{gate}"] for gate in "rzn")
    r, z = _sigmoid(x_r + u_r), _sigmoid(x_z + u_z)
    n = np.tanh(x_n + r * (u_n + weights["memory/bias"]))
    return (n + z * (h - n),)


def _lstm(weights: Weights, memory: Memory, x: np.ndarray) -> Memory:
    cell, h = memory
    i, f, g, o = np.split(_dense(weights, "memory/input", x) + h @ weights["memory/kernel"], 4, axis=-1)
    cell = _sigmoid(f + 1) * cell + _sigmoid(i) * np.tanh(g)
    return cell, _sigmoid(o) * np.tanh(cell)


TORSOS = {"mlp": _torso_mlp, "cnn": _cnn, "deepsets": _deepsets, "gnn": _gnn}
MIXING = ("deepsets", "gnn")  # torsos in which agents see each other
MEMORIES = {"gru": _gru, "lstm": _lstm}
