"""The files and the closing table at the end of a training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from omegaconf import OmegaConf

from shoal.evolve import winner
from shoal.folder import marl_eval, policies
from shoal.folder.layout import CURVES, EVALUATIONS, MARL_EVAL, algorithm_name, short_name
from shoal.folder.provenance import write_provenance
from shoal.report import closing, lineage
from shoal.run.progress import human, show_table

if TYPE_CHECKING:
    from shoal.run.loop import Trained
    from shoal.run.plan import Plan


def write_results(plan: Plan, trained: Trained) -> None:
    """Write the files that a training leaves behind, and print its closing table."""
    settings, runs, algorithm = plan.settings, plan.runs, algorithm_name(plan.settings)
    evaluations = trained.records.evaluations()
    title = f"{algorithm} on {settings.env.name}"
    if plan.rules is None:
        lost = closing.lost_runs(evaluations, trained.diverged, plan.objective)
        marl_eval.write_evaluations(plan.folder / MARL_EVAL, evaluations, runs, settings.env.name, algorithm, lost)
        closing.draw(plan.folder / CURVES, evaluations, runs, trained.diverged, title, plan.objective)
    else:
        config = OmegaConf.to_container(settings, resolve=True)
        lineage.report(plan, config, evaluations, algorithm)  # type: ignore[arg-type]
    policies.save(plan.folder, *jax.tree.map(lambda *parts: np.concatenate(parts), *trained.policies))
    write_provenance(plan.folder, len(runs), plan.steps_per_chunk * plan.chunks, session_figures(trained))
    remark = missing(plan, evaluations)
    title += f": {short_name(plan.objective)} of {settings.evaluation.episodes} greedy episodes{remark}, IQM over "
    if plan.rules is None:
        show_table(closing.closing_table(evaluations, runs, trained.diverged, plan.objective), f"{title}seeds")
    else:
        show_table(lineage.closing_table(evaluations, plan.rules.population, plan.objective), f"{title}populations")
        print(winner.said(plan.folder))
    speed, seconds = trained.speed, time.perf_counter() - trained.begin
    speed_text = f", {human(speed.steps / speed.seconds)} steps/s" if speed.seconds else ""
    print(f"{plan.folder}  ({seconds:.0f} s, {trained.programs.seconds:.1f} s of it compiling{speed_text})")


def session_figures(trained: Trained) -> dict[str, Any]:
    """How long this session took, how fast it was and what memory it needed, for ``provenance.json``."""
    programs, speed = trained.programs, trained.speed
    return {
        "seconds": round(time.perf_counter() - trained.begin, 2),
        "compile_seconds": round(programs.seconds, 2),
        "memory_bytes": programs.memory,
        "steps_per_second": round(speed.steps / speed.seconds) if speed.seconds else None,
    }


def missing(plan: Plan, evaluations: Sequence[dict[str, Any]]) -> str:
    """A remark for the closing table if evaluations have been lost: its ``first`` may be of another step."""
    seen = {(entry["batch"], entry["env_steps"]) for entry in evaluations if "absolute" not in entry}
    last: dict[int, int] = {}
    for batch, env_steps in seen:
        last[batch] = max(last.get(batch, 0), env_steps)
    lost = sum(env_steps // plan.steps_per_round for env_steps in last.values()) - len(seen)
    first = min((env_steps for _, env_steps in seen), default=0)
    return f" ({lost} evaluations are missing in {EVALUATIONS}; the first is of step {first})" if lost > 0 else ""
