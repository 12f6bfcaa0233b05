"""``policy.jax``: the compiled ``act`` of a policy, for any network, which plays without Shoal (``jax.export``)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from shoal.algorithm import Algorithm, Params
from shoal.envs.base import Continuous, TimeStep, select
from shoal.errors import UserError
from shoal.export import deploy
from shoal.folder import reading

DESCRIPTION, COMPILED = "policy.json", "policy.jax"


PLATFORMS = ("cpu", "cuda", "tpu")  # that policy.jax runs on
SAME = 0.95  # the least share of discrete actions that policy.jax must have in common with the policy


def compiled_act(algorithm: Algorithm, policy: Params, ids: int) -> Any:
    """``act(carry, obs [E, A, O], mask [E, A, N], alive [E, A], first [E]) -> carry, action``, the policy inside."""
    env = algorithm.env

    def act(carry: Any, obs: chex.Array, mask: chex.Array, alive: chex.Array, first: chex.Array):
        num_envs = obs.shape[0]
        agent_ids = jnp.broadcast_to(jnp.eye(env.num_agents)[:, :ids], (*obs.shape[:-1], ids))
        timestep = TimeStep(
            obs=jnp.concatenate([obs, agent_ids], axis=-1),
            state=jnp.zeros((num_envs, env.state_size)),
            action_mask=mask,
            reward=jnp.zeros(obs.shape[:-1]),
            terminated=jnp.zeros(num_envs, bool),
            truncated=jnp.zeros(num_envs, bool),
            alive=alive,
            info={},
        )
        carry = select(first, algorithm.initial_memory(num_envs), carry)
        return algorithm.act(policy, carry, timestep, jax.random.PRNGKey(0), True)

    return act


def write_compiled(
    path: Path, algorithm: Algorithm, policy: Params, ids: int, recorded: dict[str, np.ndarray]
) -> dict[str, Any]:
    """``policy.jax`` for any number of environments, and what ``policy.json`` says of it."""
    (num_envs,) = jax_export.symbolic_shape("E")

    def like(example: Any) -> Any:
        return jax.ShapeDtypeStruct((num_envs, *example.shape[1:]), example.dtype)

    carry = jax.eval_shape(lambda: algorithm.initial_memory(1))
    seen = [recorded[name][0] for name in ("obs", "mask", "alive")]
    shapes = jax.tree.map(like, (carry, *seen, np.zeros(1, bool)))
    exported = jax_export.export(jax.jit(compiled_act(algorithm, policy, ids)), platforms=PLATFORMS)(*shapes)
    data = bytes(exported.serialize())
    path.write_bytes(data)
    played = load_compiled(path)
    with jax.default_device(jax.devices("cpu")[0]):
        seen = [recorded[name] for name in ("obs", "mask", "alive")]
        actions = np.stack([played.act(*(array[t] for array in seen)) for t in range(len(seen[0]))])
    # Choices whose scores are equal but for rounding may fall either way.
    same = np.isclose(actions, recorded["action"], rtol=deploy.TOLERANCE, atol=deploy.TOLERANCE)
    if same.mean() < (1.0 if isinstance(algorithm.env.action_space, Continuous) else SAME):
        raise UserError(f"{COMPILED}: does not play as its policy did; nothing is exported")
    return {"file": COMPILED, "sha256": digest(data), "platforms": list(PLATFORMS)}


class Compiled:
    """``policy.jax``, with its memory kept as :class:`shoal.export.deploy.Policy` keeps it."""

    def __init__(self, data: bytes):
        self.exported = jax_export.deserialize(bytearray(data))
        self._call = jax.jit(self.exported.call)
        (self._like, *_), _ = jax.tree.unflatten(self.exported.in_tree, self.exported.in_avals)
        self._carry: Any = None

    def reset(self) -> None:
        """Forget: an episode starts."""
        self._carry = None

    def act(self, obs: Any, mask: Any, alive: Any, first: Any = None) -> np.ndarray:
        """The actions for ``obs [E, A, O]``, ``mask [E, A, N]``, ``alive [E, A]``; ``first [E]`` forgets the past."""
        num_envs = len(obs)
        if self._carry is None:
            self._carry = jax.tree.map(lambda leaf: np.zeros((num_envs, *leaf.shape[1:]), leaf.dtype), self._like)
            first = np.ones(num_envs, bool)
        first = np.zeros(num_envs, bool) if first is None else np.asarray(first, bool)
        obs = np.asarray(obs, np.float32)
        self._carry, action = self._call(self._carry, obs, np.asarray(mask, bool), np.asarray(alive, bool), first)
        return np.asarray(action)


def load_compiled(path: str | Path) -> Compiled:
    """``policy.jax``, by its name or that of its folder."""
    path = Path(path)
    path = path / COMPILED if path.is_dir() else path
    with reading.opened(path, reading.RECORDS) as file:
        data = file.read()
    beside = path.with_name(DESCRIPTION)
    if os.path.exists(beside):
        told = reading.json_file(beside)
        known = told.get("jax") if isinstance(told, dict) else None
        if isinstance(known, dict) and known.get("sha256") != digest(data):
            raise UserError(f"{path}: is damaged, or belongs to another {DESCRIPTION} (checksum)")
    try:
        return Compiled(data)
    except Exception as error:  # flatbuffers and MLIR have many words for a damaged file
        raise UserError(f"{path}: is damaged, or of another version of JAX ({type(error).__name__})") from error


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
