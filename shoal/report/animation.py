"""Episodes of the best policies as pictures in a report."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import shoal
from shoal import envs
from shoal.envs import Env, UserError, drawing
from shoal.envs.host import pettingzoo
from shoal.folder import policies

if TYPE_CHECKING:
    from shoal.report.table import Cell, Results

FRAMES, SIZE = 80, 240  # of an animation in a page


def best_policies(results: Results, most: int, notes: list[str]) -> list[tuple[str, str, str]]:
    """Title, caption and GIF (a data URI) of the best policy on each of the first tasks that have pictures.

    Nothing here may fail a report: what cannot be shown is said in a line.
    """
    best: dict[str, Cell] = {}
    for cell in results.cells:
        if cell.training is not None and (cell.training.folder / "policies.safetensors").exists():
            score = float(cell.metrics[results.objective][:, -1].max())
            if cell.place not in best or score > float(best[cell.place].metrics[results.objective][:, -1].max()):
                best[cell.place] = cell
    shown: list[tuple[str, str, str]] = []
    for place, cell in best.items():
        if len(shown) == most:
            break
        assert cell.training is not None
        try:
            if not pictured(cell.training.config):
                continue
            training = shoal.load(cell.training.folder)
            if not policies.is_finite(training.policy(training.best)):
                raise UserError(f"run {training.best} is not finite (NaN)")
            episode = training.play(training.best, seed=0)
            frames = training.algorithm.env.render(episode.states, SIZE)
            frames = frames[:: -(-len(frames) // FRAMES)]
            shown.append(
                (
                    f"{cell.training.label} on {place}",
                    f"run {training.best}: return {episode.episode_return:.2f} per agent.",
                    _uri(frames),
                )
            )
        except Exception as error:  # whatever it is, a report without this episode is better than none
            line = (str(error).splitlines() or [""])[0]
            notes.append(f"{cell.training.folder}: its best policy cannot be shown ({type(error).__name__}: {line})")
    return shown


def pictured(config: dict[str, Any]) -> bool:
    """Whether the environment of a training can be drawn; known without compiling it or importing a user's module."""
    if config["env"]["name"].startswith(f"{pettingzoo.FAMILY}/"):
        return False
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
