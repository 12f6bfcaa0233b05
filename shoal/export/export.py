"""A trained policy as a folder that plays without JAX (``shoal.export.deploy``), or without Shoal (``jax.export``).

``policy.json`` describes the network and the spaces, ``policy.safetensors`` holds its parameters and some recorded
steps, ``deploy.py`` plays them with numpy alone. ``policy.jax`` is the compiled ``act`` itself, for any network.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from omegaconf import DictConfig, OmegaConf

from shoal import envs
from shoal.algorithm import HEADS, Algorithm, Params
from shoal.config.words import pasted
from shoal.envs.base import ActionSpace, Continuous, Discrete, Env, MultiDiscrete, select
from shoal.errors import UserError
from shoal.export import deploy
from shoal.export.compiled import COMPILED, DESCRIPTION, digest, write_compiled
from shoal.folder import policies, reading, writing
from shoal.folder.layout import CONFIG
from shoal.folder.provenance import version_of
from shoal.loaded import Runs, load
from shoal.nn import elastic, memory, models, networks
from shoal.nn.models import Model
from shoal.rl import distributions, normalisation

WEIGHTS = "policy.safetensors"
STEPS, ENVS = 16, 2  # recorded for the self-check
WHICH = ("best", "last")
PACKAGES = ("shoal", "jax", "flax", "numpy")


class Exported(NamedTuple):
    """What was written, and how it did in its self-check."""

    folder: Path
    description: dict[str, Any]  # policy.json
    steps: int  # that were recorded, times environments
    difference: float | None  # the largest between numpy's actions and JAX's there; None without numpy


def export(
    training: str | Path | Runs,
    run: int | str = "best",
    which: str = "best",
    out: str | Path | None = None,
    with_jax: bool = False,
) -> Exported:
    """Export the ``best`` or ``last`` policy of a run, to ``out`` or into the training's folder.

    ``training`` is that folder, or what ``shoal.load`` made of it.
    """
    if which not in WHICH:
        raise UserError(f"which={which}: must be one of {', '.join(WHICH)}")
    if run != "best" and not str(run).isdecimal():
        raise UserError(f"run={run}: must be best, or the number of a run")
    if isinstance(training, str | Path):
        training = load(training)
    check_known(training)
    folder, config = training.folder, training.config
    if not os.path.exists(folder / policies.FILE):
        raise UserError(
            f"{folder}: no {policies.FILE} there, which a training writes at its end; {pasted('resume', folder)}"
        )
    number = training.best if run == "best" else int(run)
    policy, axis = training.policy(number, which), training.plan.runs
    if not policies.is_finite(policy):
        raise UserError(f"{folder}: the {which} policy of run {number} is not finite (NaN): its training diverged")
    facts = {
        "algorithm": training.name,
        "environment": config.env.name,
        "env_kwargs": OmegaConf.to_container(config.env.kwargs, resolve=True),
        "run": number,
        "seed": int(axis.seed[number]),
        "swept": axis.points[axis.point[number]],
        "which": which,
        "config_sha256": reading.digest(folder / CONFIG),
    }
    out = Path(out) if out else writing.make_folder(folder / "export") / f"run_{number}_{which}"
    return save(out, config.algo, training.algorithm, policy, facts, with_jax)


def check_known(training: Runs) -> None:
    """Raise a :class:`UserError` if a training used what is not known here."""
    config = training.config
    training.module  # noqa: B018 -- a file of the user's registers what it brings
    used: dict[str, tuple[Any, Collection[str]]] = {"env": (OmegaConf.select(config, "env.name"), envs.list())}
    for where in (f"algo.{name}" for name in set(HEADS.values())):
        used[f"{where}.network"] = OmegaConf.select(config, f"{where}.network"), (*models.TORSOS, *memory.MEMORIES)
        used[f"{where}.torso"] = OmegaConf.select(config, f"{where}.torso"), models.TORSOS
    for where, (name, known) in used.items():
        if name is not None and str(name) not in known:
            raise UserError(f"{where}={name}: not known here; import the file that registers it (import=<file.py>)")


def save(
    out: str | Path, config: Any, algorithm: Algorithm, policy: Params, facts: Mapping[str, Any], with_jax: bool = False
) -> Exported:
    """Write a ``policy`` of an ``algorithm`` that was made with ``config``, after it has passed its self-check.

    ``facts`` are remembered in ``policy.json``: ``algorithm``, ``environment`` and what else one likes to know.
    """
    out = Path(out)
    env, settings, policy = algorithm.env, as_dict(config), jax.tree.map(jnp.asarray, jax.device_get(policy))
    ids = env.num_agents if settings.get("agent_id") else 0
    description = {"format": deploy.FORMAT, "version": deploy.VERSION, **facts}
    description |= {"versions": {name: version_of(name) for name in PACKAGES}}
    description |= spaces(env.env if ids else env)  # type: ignore[attr-defined]
    reason = unknown(settings, algorithm)
    if reason and not with_jax:
        raise UserError(f"{reason}; jax=true writes {COMPILED}, which needs JAX to play")
    recorded = record(algorithm, policy, ids)
    arrays = {f"check/{name}": array for name, array in recorded.items()}
    if not reason:
        network, weights = describe(settings, algorithm, policy)
        description |= network
        arrays |= weights
    writing.make_folder(out)
    try:
        with tempfile.TemporaryDirectory(dir=out, prefix=".partial") as name:
            difference = _write(Path(name), description, arrays, reason is None)
            if with_jax:
                description["jax"] = write_compiled(Path(name) / COMPILED, algorithm, policy, ids, recorded)
            (Path(name) / DESCRIPTION).write_text(_text(description))
            # The description last: it vouches for the others.
            for file in (COMPILED, WEIGHTS, "deploy.py", DESCRIPTION):
                if (Path(name) / file).exists():
                    os.replace(Path(name) / file, out / file)
                else:
                    (out / file).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"out={out}: cannot be written ({error.strerror})") from error
    return Exported(out, description, recorded["alive"].shape[0] * ENVS, difference)


def _write(folder: Path, description: dict[str, Any], arrays: dict[str, np.ndarray], numpy: bool) -> float | None:
    """Weights, description and ``deploy.py``; how far numpy is from JAX."""
    from safetensors.numpy import save as to_bytes

    if not numpy:
        description["weights"] = None
        return None
    data = to_bytes(arrays)
    description["weights"] = {"file": WEIGHTS, "sha256": digest(data)}
    (folder / WEIGHTS).write_bytes(data)
    (folder / DESCRIPTION).write_text(_text(description))
    shutil.copyfile(deploy.__file__, folder / "deploy.py")
    try:
        return deploy.load_policy(folder).check()
    except deploy.PolicyError as error:
        raise UserError(
            f"numpy does not play this policy as JAX does ({error}): its algorithm file acts in its own way, and "
            f"should not set Acting.head; then jax=true writes {COMPILED}"
        ) from error


def _text(description: dict[str, Any]) -> str:
    """JSON with a line per fact, the last of which is a checksum of the others."""
    description = description | {deploy.CHECKSUM: deploy.checksum(description)}
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(fact)}" for name, fact in description.items()) + "\n}\n"


def as_dict(config: Any) -> dict[str, Any]:
    """The settings under ``algo``, of a dataclass or of a configuration."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dataclasses.asdict(config)
    made = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else dict(config)
    assert isinstance(made, dict)
    return {str(name): value for name, value in made.items()}


def model_of(settings: dict[str, Any], name: str) -> Model:
    """The network ``algo.<name>``."""
    values: dict[str, Any] = settings[name]
    made: dict[str, Any] = {field: tuple(v) if isinstance(v, list) else v for field, v in values.items()}
    return Model(**made)


def unknown(settings: dict[str, Any], algorithm: Algorithm) -> str | None:
    """Why numpy cannot play this; None if it can."""
    name = HEADS.get(algorithm.head)
    missing = {"sharing", "agent_id", name} - set(settings)
    if name is None or missing:
        return "its algorithm file does not say how outputs become actions (Acting.head), so that numpy cannot play it"
    model = model_of(settings, name)
    if model.reads not in deploy.TORSOS:
        field = "torso" if model.remembers else "network"
        return f"algo.{name}.{field}={model.reads}: a module of your own, which numpy cannot play"
    return None


def spaces(env: Env) -> dict[str, Any]:
    """What agents see and do, without what the training appends to it."""
    return {
        "agents": list(env.agents),
        "groups": list(env.groups),
        "obs_sizes": list(env.obs_sizes),
        "obs_size": env.obs_size,
        "horizon": env.horizon,
        "actions": _actions(env.action_space),
    }


def _actions(space: ActionSpace) -> dict[str, Any]:
    if isinstance(space, Continuous):
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"kind": "continuous", "sizes": list(space.sizes), **bounds}
    if isinstance(space, MultiDiscrete):
        return {"kind": "multi_discrete", "sizes": [list(row) for row in space.sizes], "parts": list(space.parts)}
    assert isinstance(space, Discrete)
    return {"kind": "discrete", "sizes": list(space.sizes), "parts": [space.size]}


def describe(
    settings: dict[str, Any], algorithm: Algorithm, policy: Params
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The network for ``policy.json``, and its parameters ``[P, ...]`` by name."""
    env, head = algorithm.env, algorithm.head
    name = HEADS[head]
    model, network = model_of(settings, name), policy[name]
    if elastic.has(network):  # numpy plays what lives of it
        (alive,) = elastic.living(network).values()
        model = dataclasses.replace(model, widths=alive.widths, activation=alive.activation or model.activation)
        network = elastic.cut(network)
    arrays: dict[str, np.ndarray] = {}
    for module, part in network.items():
        arrays |= policies.flatten(part, _part(module, model.reads))
    normalises = bool(settings.get("normalise_obs"))
    if normalises:
        stats = policy["obs_stats"]
        stats = stats["actor"] if isinstance(stats, dict) else stats
        std = np.sqrt(np.asarray(stats.variance) + np.float32(normalisation.EPSILON))
        arrays |= {"obs/mean": np.asarray(stats.mean), "obs/std": std}
    description = {
        "head": head,
        "squash": settings.get("continuous_policy", distributions.KINDS[0]),
        "log_std_range": list(distributions.LOG_STD_RANGE),
        "network": network_of(model, env),
        "policy_of": networks.policy_of_agent(settings["sharing"], env.group_ids).tolist(),
        "agent_id": settings["agent_id"],
        "obs_limit": normalisation.LIMIT if normalises else None,
    }
    return description, arrays


def network_of(model: Model, env: Env) -> dict[str, Any]:
    """What numpy must know of a network that reads the observations of ``env``."""
    kept = model.network if model.remembers else None
    return {
        "torso": model.reads,
        "widths": list(model.widths),
        "activation": model.activation,
        "layer_norm": model.layer_norm,
        "channels": list(model.channels) if model.reads == "cnn" else [],
        "image": list(env.obs_shape) if model.reads == "cnn" else [],
        "position": list(env.position) if model.reads == "gnn" and env.position is not None else None,
        "radius": model.radius,
        "memory": kept,
        "hidden": model.hidden,
        "after": list(model.after) if kept else [],
    }


def _part(module: str, torso: str) -> str:
    """``torso``, ``memory``, ``after`` or ``head``, for flax's name of a module of a policy network."""
    after = "MLP_1" if torso == "mlp" else "MLP_0"
    return {after: "after", "GRU_0": "memory", "LSTM_0": "memory", "head": "head"}.get(module, "torso")


def record(algorithm: Algorithm, policy: Params, ids: int) -> dict[str, np.ndarray]:
    """Some greedy steps ``[T, E, A, ...]``: what agents saw (without the last ``ids`` numbers) and did."""
    env = algorithm.env
    steps = min(STEPS, env.horizon)

    def step(carry, key):
        state, timestep, carried = carry
        act_key, env_key = jax.random.split(key)
        carried, action = algorithm.act(policy, carried, timestep, act_key, True)
        state_after, after = jax.vmap(env.step)(jax.random.split(env_key, ENVS), state, action)
        # A finished episode stands still.
        running = ~(timestep.terminated | timestep.truncated)
        state, following = select(running, (state_after, after), (state, timestep))
        seen = {"obs": timestep.obs[..., : env.obs_size - ids], "mask": timestep.action_mask, "alive": timestep.alive}
        return (state, following, carried), seen | {"action": action}

    @jax.jit
    def play(key):
        keys = jax.random.split(key, ENVS + steps)
        state, timestep = jax.vmap(env.reset)(keys[:ENVS])
        return jax.lax.scan(step, (state, timestep, algorithm.initial_memory(ENVS)), keys[ENVS:])[1]

    # Accelerators round matrix products by default, and what is recorded should be exact.
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("highest"):
        return {name: np.asarray(array) for name, array in play(np.array([0, 0], np.uint32)).items()}
