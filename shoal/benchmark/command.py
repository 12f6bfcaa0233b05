"""Any algorithms on any tasks: a plan, every cell trained with all its seeds at once, and a report of it all.

    shoal benchmark algorithms=[mappo,ippo,qmix] tasks=[vmas/balance,vmas/sampling] seeds=10 total_steps=3e6
    shoal benchmark benchmark=quick                      # config/benchmark/quick.yaml; or benchmark=my.yaml
    shoal benchmark benchmark=quick plan=true            # only say what it would take
    shoal benchmark benchmark=quick algorithms=[ippo,~/my_idea.py] hypers.gamma=0.95
    shoal benchmark benchmark=quick hydra/launcher=joblib hydra.launcher.n_jobs=2   # or submitit_slurm

The same command goes on where it was stopped or killed: finished cells are not trained again, a half-finished one
resumes. Words that are not the benchmark's own (``hypers.*``, ``algo.*``, ``evaluation.*``, ``logger`` ...) go to all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hydra import main as hydra_main
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from shoal.benchmark import settings as benchmark
from shoal.benchmark import train
from shoal.benchmark.cells import cells_of
from shoal.benchmark.plan import Planned, duration, plan_cell, plan_table, remaining
from shoal.benchmark.train import Outcome, Tick, train_cell
from shoal.config.words import fail
from shoal.errors import UserError
from shoal.run.progress import show_table
from shoal.run.signals import Stop


def make_plan(settings: benchmark.Benchmark, words: list[str]) -> list[Planned]:
    """Every cell, planned."""
    cells = cells_of(settings, words)
    console, planned = Console(stderr=True), []
    with console.status("planning") as status:
        for position, cell in enumerate(cells):
            status.update(f"planning {position + 1}/{len(cells)}: {cell.label}")
            planned.append(plan_cell(cell))
    return planned


def show_plan(settings: benchmark.Benchmark, planned: list[Planned]) -> None:
    """The plan, and the pairs that cannot be."""
    show_table(plan_table(planned), f"{settings.name}: {settings.dir}")
    for one in planned:
        if one.state == "impossible":
            print(f"skipped: {one.cell.label}: {one.reason}")
    sys.stdout.flush()


def train_all(settings: benchmark.Benchmark, planned: list[Planned]) -> dict[str, Outcome]:
    """Every cell that is not finished, one after the other; a failing one is told and the others go on."""
    todo = [one for one in planned if one.state in ("new", "begun")]
    outcomes: dict[str, Outcome] = {}
    expected = taken = 0.0
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:3.0f}%  {task.fields[told]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        disable=not console.is_terminal,
    )
    with Stop() as stop, bar:
        for position, one in enumerate(todo):
            pace = taken / expected if expected else 1.0
            left = pace * sum(map(remaining, todo[position:]))
            name = f"{position + 1}/{len(todo)} {one.cell.label}"
            task = bar.add_task(name, total=one.steps, told="compiling", left=f"{duration(left)} left in all")

            def watch(tick: Tick, task=task) -> None:
                bar.update(task, completed=tick.steps, told=tick.text)

            outcome = train_cell(one, watch, stop)
            bar.remove_task(task)
            outcomes[one.cell.label] = outcome
            train.note(Path(settings.dir), one.cell, outcome)
            print(f"{position + 1}/{len(todo)} {line(one, outcome)}", flush=True)
            if stop.asked:
                break
            expected, taken = expected + remaining(one), taken + outcome.seconds
    return outcomes


def line(one: Planned, outcome: Outcome) -> str:
    """What became of a cell, in one line."""
    if outcome.state == "failed":
        return f"{one.cell.label}: FAILED after {duration(outcome.seconds)}: {outcome.error}"
    reached = train.reached(one.cell.folder)
    figures = f"{reached.text}, " if reached else ""
    expected = f" (expected {duration(remaining(one))})" if outcome.state == "finished" else ""
    return f"{one.cell.label}: {outcome.state}, {figures}{duration(outcome.seconds)}{expected}"


def run(words: list[str]) -> int:
    """The whole benchmark; the number of cells that failed."""
    launcher = [word for word in words if word.startswith("hydra")]
    words = [word for word in words if word not in (*launcher, "-m", "--multirun")]
    settings, others = benchmark.read(words)
    if settings.cell is not None:
        return run_one(settings, others)
    planned = make_plan(settings, others)
    show_plan(settings, planned)
    if settings.plan:
        return 0
    benchmark.save(settings, others)
    outcomes = launch(settings, planned, words, launcher) if launcher else train_all(settings, planned)
    return finish(settings, planned, outcomes)


def finish(settings: benchmark.Benchmark, planned: list[Planned], outcomes: dict[str, Outcome]) -> int:
    """The report, and how to go on."""
    failed = [label for label, outcome in outcomes.items() if outcome.state == "failed"]
    if any(outcome.state == "stopped" for outcome in outcomes.values()):
        print("stopped; the same command goes on")
        return len(failed)
    if settings.report and any((one.cell.folder / "evaluations.jsonl").exists() for one in planned):
        subprocess.run([sys.executable, "-m", "shoal", "report", settings.dir], check=False)
    if failed:
        print(f"{len(failed)} failed: {', '.join(failed)}; the same command tries them again", file=sys.stderr)
    return len(failed)


def run_one(settings: benchmark.Benchmark, words: list[str]) -> int:
    """One cell, for a launcher: who launches has planned it."""
    cells = cells_of(settings, words)
    assert settings.cell is not None
    if settings.cell >= len(cells):
        raise UserError(f"cell={settings.cell}: there are {len(cells)}")
    one = plan_cell(cells[settings.cell])
    with Stop() as stop:
        outcome = train_cell(one, stop=stop)
    train.note(Path(settings.dir), one.cell, outcome)
    print(line(one, outcome), flush=True)
    return int(outcome.state == "failed")


def launch(
    settings: benchmark.Benchmark, planned: list[Planned], words: list[str], launcher: list[str]
) -> dict[str, Outcome]:
    """Every cell that is not finished as a job of Hydra's launcher; what it notes is what became of it."""
    todo = [position for position, one in enumerate(planned) if one.state in ("new", "begun")]
    if not todo:
        return {}
    folder = Path(settings.dir).absolute()
    words = [word for word in words if not word.startswith("dir=")] + [f"dir={folder}"]
    ConfigStore.instance().store(name="cells", node={"cell": 0, "words": words})
    places = [f"hydra.sweep.dir={folder / 'launcher'}", "hydra.output_subdir=null"]
    quiet = ["hydra/job_logging=none", "hydra/hydra_logging=none"]
    sys.argv[1:] = ["-m", f"cell={','.join(map(str, todo))}", *quiet, *places, *launcher]
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    hydra_main(version_base="1.3", config_path=None, config_name="cells")(job)()
    status = train.status(Path(settings.dir))
    return {one.cell.label: status[one.cell.label] for one in planned if one.cell.label in status}


def job(cfg: DictConfig) -> int:
    """What a launcher's worker does: one cell in a process of its own."""
    command = [sys.executable, "-m", "shoal", "benchmark", *cfg.words, f"cell={cfg.cell}"]
    return subprocess.run(command, check=False).returncode


def main(words: list[str]) -> int:
    """``shoal benchmark name=value ...``; the exit code, 1 if a cell failed."""
    if {"-h", "--help"} & {*words}:
        print(__doc__)
        return 0
    try:
        return 1 if run(words) else 0
    except UserError as error:
        fail(error)
