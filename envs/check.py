"""Does an environment return what it declares? Found out before anything compiles, and answered in one line.

``check_facts`` reads the attributes, ``check`` also traces ``reset`` and ``step``, which computes nothing. An error
that ``reset`` or ``step`` raises passes through with its traceback.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import ActionSpace, Continuous, Discrete, Env, EnvState, MultiDiscrete, TimeStep
from shoal.envs.wrappers import TimeLimit
from shoal.errors import UserError

FACTS = {
    "agents": "a tuple of names, one for each agent, all different",
    "groups": "a tuple of names, the team of each agent",
    "obs_sizes": "a tuple of whole numbers, the size of each agent's observation",
    "state_size": "a whole number, the size of the global state",
    "action_space": "envs.Discrete, envs.MultiDiscrete or envs.Continuous",
    "horizon": "a whole number, the steps after which an episode is cut",
}
MEANINGS = {  # of the axes of a time step's fields
    "obs": "agents, the largest of obs_sizes",
    "state": "state_size",
    "action_mask": "agents, the size of the action space",
    "reward": "agents",
    "terminated": "one for all agents",
    "truncated": "one for all agents",
    "alive": "agents",
}


def check(env: Env) -> None:
    """Raise a UserError that names the field if ``reset`` or ``step`` does not return what ``env`` declares."""
    env = env.env if isinstance(env, TimeLimit) else env  # the time limit reads what is checked here
    if env.checked:
        return
    key = jax.random.PRNGKey(0)
    state, first = _trace(env, "reset", key)
    next_state, second = _trace(env, "step", key, state, _action(env))
    _check_same(env, "state", state, next_state)
    _check_same(env, "info", first.info, second.info)


def check_facts(env: Any, name: str) -> None:
    """Raise a UserError that names the attribute if one of the environment ``name`` is missing or wrong."""
    if not isinstance(env, Env):
        raise UserError(f"env={name}: its factory returns {_kind(env)}: must be an envs.Env")
    for fact, meaning in FACTS.items():
        if not hasattr(env, fact):
            raise UserError(f"env={name}: has no {fact}: must be {meaning}")
    fits = {
        "agents": _is_tuple(env.agents, str) and 0 < len(env.agents) == len(set(env.agents)),
        "groups": _is_tuple(env.groups, str),
        "obs_sizes": _is_tuple(env.obs_sizes, int) and min(env.obs_sizes, default=0) >= 0,
        "state_size": _is_whole(env.state_size) and env.state_size > 0,
        "action_space": isinstance(env.action_space, Discrete | MultiDiscrete | Continuous),
        "horizon": _is_whole(env.horizon) and env.horizon > 0,
    }
    for fact, fit in fits.items():
        if not fit:
            raise UserError(f"env={name}: {fact} is {getattr(env, fact)!r}: must be {FACTS[fact]}")
    _check_action_space(env.action_space, name)
    for fact, entries in {
        "groups": env.groups,
        "obs_sizes": env.obs_sizes,
        "action_space.sizes": env.action_space.sizes,
    }.items():
        if len(entries) != len(env.agents):
            raise UserError(f"env={name}: {fact} has the length {len(entries)}: must be {len(env.agents)} (agents)")
    if env.obs_shape and set(env.obs_sizes) != {math.prod(env.obs_shape)}:
        raise UserError(
            f"env={name}: obs_shape is {env.obs_shape}: its product must be each of obs_sizes {env.obs_sizes}"
        )


def _check_action_space(space: ActionSpace, name: str) -> None:
    fits, meaning = _is_tuple(space.sizes, int), "a tuple of whole numbers above 0"
    if isinstance(space, MultiDiscrete):
        rows, meaning = space.sizes, "a tuple for each agent, all of one length, of whole numbers above 0"
        fits = _is_tuple(rows, tuple) and all(_is_tuple(row, int) for row in rows) and len({*map(len, rows)}) == 1
    fits = fits and np.min(space.sizes, initial=1) > 0
    if not fits:
        raise UserError(f"env={name}: action_space.sizes is {space.sizes!r}: must be {meaning}")
    if isinstance(space, Continuous):
        for bound, value in {"low": space.low, "high": space.high}.items():
            if np.shape(value) != (len(space.sizes), space.size):
                wanted = [len(space.sizes), space.size]
                raise UserError(f"env={name}: action_space.{bound} has the shape {_shape(value)}: must be {wanted}")


def _trace(env: Env, name: str, *arguments: Any) -> tuple[EnvState, TimeStep]:
    """The shapes of what ``env.reset`` or ``env.step`` returns, once each field of the time step is as declared."""

    def call(*arguments: Any) -> tuple[EnvState, TimeStep]:
        returned = getattr(env, name)(*arguments)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], TimeStep)):
            raise UserError(f"env={env.name}: {name} returns {_kind(returned)}: must be (state, TimeStep)")
        _check_timestep(env, name, returned[1])
        _check_arrays(env, name, "state", returned[0])
        return returned

    return jax.eval_shape(call, *arguments)


def _check_timestep(env: Env, name: str, timestep: TimeStep) -> None:
    agents = env.num_agents
    declared: dict[str, tuple[tuple[int, ...], Any]] = {
        "obs": ((agents, env.obs_size), jnp.float32),
        "state": ((env.state_size,), jnp.float32),
        "action_mask": ((agents, env.action_space.size), jnp.bool_),
        "reward": ((agents,), jnp.float32),
        "terminated": ((), jnp.bool_),
        "truncated": ((), jnp.bool_),
        "alive": ((agents,), jnp.bool_),
    }
    for field, (shape, dtype) in declared.items():
        found, wanted = _kind(getattr(timestep, field)), _kind(jax.ShapeDtypeStruct(shape, dtype))
        if found != wanted:
            raise UserError(f"env={env.name}: {field} after {name} is {found}: must be {wanted} ({MEANINGS[field]})")
    if not isinstance(timestep.info, dict):
        raise UserError(f"env={env.name}: info after {name} is {_kind(timestep.info)}: must be a dict of scalars")
    _check_arrays(env, name, "info", timestep.info)
    for key, shape in {"won": (), "task_reward": (agents,)}.items():
        if key in timestep.info and np.shape(timestep.info[key]) != shape:
            got = _shape(timestep.info[key])
            raise UserError(f"env={env.name}: info[{key!r}] after {name} has the shape {got}: must be {list(shape)}")


def _check_arrays(env: Env, name: str, field: str, tree: Any) -> None:
    for path, leaf in jax.tree.leaves_with_path(tree):
        if not _is_array(leaf):
            place = field + jax.tree_util.keystr(path)
            raise UserError(f"env={env.name}: {place} after {name} is {_kind(leaf)}: must be an array or a number")


def _check_same(env: Env, field: str, first: Any, second: Any) -> None:
    """Raise a UserError if a tree has another structure, shape or type after a step than after a reset."""
    after_reset, after_step = (
        {field + jax.tree_util.keystr(path): _kind(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}
        for tree in (first, second)
    )
    for place in after_reset | after_step:
        before, after = after_reset.get(place, "missing"), after_step.get(place, "missing")
        if before != after:
            raise UserError(f"env={env.name}: {place} is {before} after reset and {after} after step: must not change")
    structures: list[Any] = [jax.tree.structure(tree) for tree in (first, second)]
    if structures[0] != structures[1]:
        kinds = f"{_kind(first)} after reset and {_kind(second)} after step"
        raise UserError(f"env={env.name}: {field} is {kinds}: must have one structure")


def _action(env: Env) -> jax.ShapeDtypeStruct:
    """Shape and type of what ``step`` gets as ``action``."""
    space, agents = env.action_space, env.num_agents
    if isinstance(space, Continuous):
        return jax.ShapeDtypeStruct((agents, space.size), jnp.float32)
    shape = (agents, len(space.parts)) if isinstance(space, MultiDiscrete) else (agents,)
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _kind(value: Any) -> str:
    """An array as ``float32 [2, 3]``, anything else by the name of its type."""
    if not _is_array(value):
        return "None" if value is None else f"a {type(value).__name__}"
    traced = isinstance(value, jax.Array | jax.ShapeDtypeStruct)
    dtype = value.dtype if traced else jax.dtypes.canonicalize_dtype(np.asarray(value).dtype)
    return f"{dtype} {_shape(value)}"


def _shape(value: Any) -> list[int]:
    return list(np.shape(value))


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic | int | float)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_tuple(values: Any, kind: type) -> bool:
    """Whether ``values`` is a tuple of this kind; whole numbers may be numpy's."""
    if not isinstance(values, tuple):
        return False
    return all(_is_whole(value) if kind is int else isinstance(value, kind) for value in values)
