"""Pictures drawn off the screen: no window is asked for, and the settings of matplotlib stay as they are."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.folder import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(**options: Any) -> Figure:
    """An empty figure on the Agg canvas; ``options`` as of :class:`matplotlib.figure.Figure`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(**options)
    FigureCanvasAgg(made)
    return made


def subplots(
    rows: int = 1, columns: int = 1, sharey: bool = False, squeeze: bool = True, **options: Any
) -> tuple[Figure, Any]:
    """An empty figure and its axes, as of :func:`matplotlib.pyplot.subplots`."""
    made = figure(**options)
    return made, made.subplots(rows, columns, sharey=sharey, squeeze=squeeze)


def save(made: Figure, path: Path, **options: Any) -> None:
    """Write a figure to ``path``, whole or not at all, in the format that its suffix names."""
    picture = io.BytesIO()
    made.savefig(picture, format=path.suffix[1:], **options)
    writing.write(path, picture.getvalue())
