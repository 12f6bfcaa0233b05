"""Episodes of trained policies as pictures: what ``scripts/render.py`` and reports show."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import envs
from envs import Env, UserError, drawing
from shoal import runs

if TYPE_CHECKING:
    from shoal.results import Cell, Results

FRAMES, SIZE = 80, 240  # of an animation in a page


def trained(folder: Path, run: int | None) -> tuple[Env, Any, str]:
    """The environment of a training, how one of its runs plays it, and what to say about it."""
    training = runs.load(folder)
    run = training.best if run is None else run
    acting, policy = training.algorithm.acting, training.policy(run)

    def act(memory, timestep, key):
        return acting.act(policy, memory, timestep, key, True)

    return training.algorithm.env, (acting.initial_carry, act), f"run {run}"


def play(env: Env, acting: Any, seed: int) -> tuple[Any, float]:
    """One episode: its states ``[T, ...]`` up to its end, and its return."""
    initial_carry, act = acting

    def step(carry, key):
        state, timestep, memory = carry
        act_key, env_key = jax.random.split(key)
        memory, action = act(memory, timestep, act_key)
        state, timestep = jax.vmap(env.step)(env_key[None], state, action)
        return (state, timestep, memory), (state, timestep.earned.mean(), timestep.terminated | timestep.truncated)

    def episode(key):
        reset_key, *keys = jax.random.split(key, env.horizon + 1)
        state, timestep = jax.vmap(env.reset)(reset_key[None])
        _, (states, rewards, ended) = jax.lax.scan(step, (state, timestep, initial_carry(1)), jnp.stack(keys))
        both = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest])[:, 0], state, states)
        return both, rewards, ended[:, 0]

    states, rewards, ended = jax.device_get(jax.jit(episode)(jax.random.PRNGKey(seed)))
    length = int(np.argmax(ended)) + 1
    return jax.tree.map(lambda leaf: leaf[: length + 1], states), float(rewards[:length].sum())


def best_policies(results: Results, most: int, notes: list[str]) -> list[tuple[str, str, str]]:
    """Title, caption and GIF (a data URI) of the best policy on each of the first tasks that have pictures.

    Nothing here may fail a report: what cannot be shown is said in a line.
    """
    from shoal.results import RETURN

    best: dict[str, Cell] = {}
    for cell in results.cells:
        if cell.training is not None and (cell.training.folder / "policies.safetensors").exists():
            score = float(cell.metrics[RETURN][:, -1].max())
            if cell.place not in best or score > float(best[cell.place].metrics[RETURN][:, -1].max()):
                best[cell.place] = cell
    shown: list[tuple[str, str, str]] = []
    for place, cell in best.items():
        if len(shown) == most:
            break
        assert cell.training is not None
        try:
            if not pictured(cell.training.config):
                continue
            env, acting, label = trained(cell.training.folder, None)
            states, earned = play(env, acting, 0)
            frames = env.render(states, SIZE)
            frames = frames[:: -(-len(frames) // FRAMES)]
            shown.append(
                (f"{cell.training.label} on {place}", f"{label}: return {earned:.2f} per agent.", _uri(frames))
            )
        except Exception as error:  # whatever it is, a report without this episode is better than none
            line = (str(error).splitlines() or [""])[0]
            notes.append(f"{cell.training.folder}: its best policy cannot be shown ({type(error).__name__}: {line})")
    return shown


def pictured(config: dict[str, Any]) -> bool:
    """Whether the environment of a training can be drawn; known without compiling anything."""
    try:
        env = envs.make(config["env"]["name"], **(config["env"].get("kwargs") or {}))
    except UserError:
        return False
    while hasattr(env, "env"):  # behind wrappers
        env = env.env
    return type(env).render is not Env.render


def _uri(frames: np.ndarray) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = drawing.save(frames, Path(folder) / "episode.gif", fps=12)
        return f"data:image/gif;base64,{base64.b64encode(path.read_bytes()).decode()}"
