"""What a terminal shows while a training runs; silent where there is no terminal."""

from __future__ import annotations

import math

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text


def human(number: float) -> str:
    """``1.23M``, ``45.6k``, ``789``."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


class _Percent(ProgressColumn):
    def render(self, task) -> Text:
        return Text(f"{math.floor(task.percentage):3d}%")


class Display:
    """A bar with steps, percent, steps/s over all runs, time left, mean and best return; of one process of several."""

    def __init__(self, total_steps: int, runs: int, shown: bool = True, what: str = "return"):
        self.what = what  # the name of the figures at the end of the bar
        self.console = Console(stderr=True, quiet=not shown)
        self.total, self.runs = total_steps, runs
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            _Percent(),
            TextColumn("{task.fields[steps]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[returns]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("compiling", total=total_steps, steps="", returns="")

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, *_) -> None:
        self.bar.stop()

    def compiling(self, what: str) -> None:
        self.bar.update(self.task, description=f"compiling {what}")

    def skip_to(self, steps: int) -> None:
        """Steps that an earlier session had done do not count for the speed."""
        self.bar.reset(self.task, completed=steps)

    def advance(self, steps: int, speed: float, values: np.ndarray, diverged: np.ndarray) -> None:
        """Show the bar after some steps, with the mean of ``values [R]`` over runs that have not ``diverged [R]``."""
        values = values[~diverged & np.isfinite(values)]
        shown = f"{self.what} {values.mean():.2f} mean {values.max():.2f} best" if len(values) else ""
        lost = f" ({diverged.sum()} diverged)" if diverged.any() else ""
        self.bar.update(
            self.task,
            description=f"training {self.runs} run{'s' * (self.runs > 1)}",
            completed=steps,
            steps=f"{human(steps)}/{human(self.total)} steps  {human(speed)} steps/s",
            returns=shown + lost,
        )

    def line(self, text: str) -> None:
        """A message that stays, above the bar."""
        self.console.print(text, highlight=False, soft_wrap=True)


def show_table(rows: list[list[str]], title: str) -> None:
    """The closing table, on standard output."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, header in enumerate(rows[0]):
        width = None if position == 0 else max(len(row[position]) for row in rows)  # figures are never cut off
        table.add_column(header, justify="left" if position == 0 else "right", no_wrap=True, min_width=width)
    for row in rows[1:]:
        table.add_row(*row)
    console.print(title, highlight=False)
    console.print(table)
