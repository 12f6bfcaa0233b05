"""Pictures of flat worlds: bodies along a trajectory become frames, frames a GIF, an animated PNG or a WebP.

Drawn with Pillow at ``OVERSAMPLING`` times the size and scaled down, which smooths every edge; no ffmpeg, no display.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from shoal.errors import Fault, UserError

OVERSAMPLING = 3
TRAIL = 25  # steps
COLOURS = {
    "blue": (46, 111, 217),
    "red": (222, 76, 74),
    "green": (38, 150, 92),
    "orange": (240, 144, 41),
    "purple": (132, 84, 196),
    "yellow": (237, 197, 50),
    "black": (45, 49, 58),
    "grey": (128, 134, 145),
    "light_green": (150, 214, 168),
    "light_blue": (168, 203, 247),
    "light_red": (247, 178, 174),
    "light_grey": (214, 218, 225),
}
GROUPS = ("blue", "red", "green", "orange", "purple", "yellow")  # of agents that have no colour of their own
PAPER, GRID, INK = (252, 252, 250), (232, 234, 236), (90, 96, 106)
MEADOW = ((250, 251, 246), (231, 243, 214), (190, 226, 178), (128, 199, 150))  # of a field, from 0 to 1
SHADES = 16  # few, or a GIF has no colours left for the bodies
TAKEN = (206, 208, 214)
FORMATS = (".gif", ".png", ".webp")


@dataclass(frozen=True)
class Body:
    """How an entity looks: a disc of ``radius``, or a box; a line is a box without width."""

    colour: str
    radius: float = 0.0
    length: float = 0.0
    width: float = 0.0
    solid: bool = True  # else only its outline, on a lighter ground: a place rather than a thing
    agent: bool = False  # leaves a trail
    looks: bool = False  # shows where it is turned to
    halo: float = 0.0  # radius of a faint disc around it: how far it acts, or from where it is reached


@dataclass(frozen=True)
class Field:
    """What the ground holds, cell by cell, rows from the bottom to the top."""

    values: np.ndarray  # [T, h, w] from 0 to 1
    taken: np.ndarray  # [T, h, w] bool: visited, nothing left there
    extent: tuple[float, float, float, float]  # left, right, bottom, top


@dataclass(frozen=True)
class Scene:
    """A trajectory of ``T`` frames and ``N`` bodies."""

    bodies: Sequence[Body]  # [N]
    pos: np.ndarray  # [T, N, 2]
    rot: np.ndarray  # [T, N]
    shown: np.ndarray  # [T, N] bool
    rays: np.ndarray  # [T, K, 2, 2] from where to where
    bounds: tuple[float, float] | None = None  # half the width and the height, if the world has walls
    title: str = ""
    field: Field | None = None


class _Canvas:
    """One frame in world coordinates."""

    def __init__(self, size: tuple[int, int], centre: np.ndarray, scale: float):
        self.size, self.centre, self.scale = size, centre, scale
        self.image = Image.new("RGB", size, PAPER)
        self.pen = ImageDraw.Draw(self.image, "RGBA")

    def pixel(self, point: np.ndarray) -> tuple[float, float]:
        x, y = (np.asarray(point) - self.centre) * self.scale
        return float(self.size[0] / 2 + x), float(self.size[1] / 2 - y)

    def line(self, points: Iterable[np.ndarray], colour: tuple[int, ...], width: float) -> None:
        self.pen.line([self.pixel(p) for p in points], fill=colour, width=max(1, round(width)), joint="curve")

    def disc(self, centre: np.ndarray, radius: float, fill: tuple | None, outline: tuple | None, width: float) -> None:
        x, y = self.pixel(centre)
        r = max(radius * self.scale, 2.0)
        box = (x - r, y - r, x + r, y + r)
        self.pen.ellipse(box, fill=fill, outline=outline, width=max(1, round(width)))

    def polygon(self, corners: np.ndarray, fill: tuple | None, outline: tuple | None, width: float) -> None:
        points = [self.pixel(c) for c in corners]
        if fill is not None:
            self.pen.polygon(points, fill=fill)
        if outline is not None:
            self.pen.line([*points, points[0]], fill=outline, width=max(1, round(width)), joint="curve")


def animate(scene: Scene, size: int = 400, trail: int = TRAIL) -> np.ndarray:
    """``[T, size, size, 3]`` uint8."""
    steps, big = scene.pos.shape[0], size * OVERSAMPLING
    centre, half = _camera(scene)
    scale = big / 2 / half
    font = ImageFont.load_default(size=14 * OVERSAMPLING)
    frames = []
    for t in range(steps):
        canvas = _Canvas((big, big), centre, scale)
        _ground(canvas, scene, t, half)
        stroke = 1.5 * OVERSAMPLING
        for i, body in enumerate(scene.bodies):
            if body.halo and scene.shown[t, i]:
                colour = COLOURS[body.colour]
                canvas.disc(scene.pos[t, i], body.halo, (*colour, 28), (*colour, 90), OVERSAMPLING)
        for start, stop in scene.rays[t]:
            canvas.line([start, stop], (240, 144, 41, 90), OVERSAMPLING)
        first = max(t - trail, 0)
        for i, body in enumerate(scene.bodies):
            if body.agent and t > first:
                for k in range(first, t):
                    fade = int(150 * (k - first + 1) / (t - first))
                    canvas.line(scene.pos[k : k + 2, i], (*COLOURS[body.colour], fade), 1.6 * OVERSAMPLING)
        order = sorted(range(len(scene.bodies)), key=lambda i: (scene.bodies[i].agent, scene.bodies[i].solid))
        for i in order:
            if scene.shown[t, i]:
                _draw(canvas, scene.bodies[i], scene.pos[t, i], float(scene.rot[t, i]), stroke)
        label = f"{scene.title}  step {t}" if scene.title else f"step {t}"
        corner = (10 * OVERSAMPLING, 8 * OVERSAMPLING)
        canvas.pen.rectangle(canvas.pen.textbbox(corner, label, font=font), fill=(*PAPER, 200))
        canvas.pen.text(corner, label, fill=INK, font=font)
        frames.append(np.asarray(canvas.image.resize((size, size), Image.Resampling.LANCZOS)))
    return np.stack(frames)


def _draw(canvas: _Canvas, body: Body, pos: np.ndarray, rot: float, stroke: float) -> None:
    colour = COLOURS[body.colour]
    dark = tuple(int(0.72 * c) for c in colour)
    along = np.array([np.cos(rot), np.sin(rot)])
    if body.radius:
        fill = (*colour, 255) if body.solid else (*colour, 110)
        canvas.disc(pos, body.radius, fill, dark, stroke)
        if body.looks:
            canvas.line([pos, pos + body.radius * along], (255, 255, 255), stroke)
    elif body.width:
        across = np.array([-along[1], along[0]])
        ends, edges = along * body.length / 2, across * body.width / 2
        corners = np.array([pos + ends + edges, pos + ends - edges, pos - ends - edges, pos - ends + edges])
        canvas.polygon(corners, (*colour, 255) if body.solid else None, dark, stroke)
    else:
        ends = along * body.length / 2
        canvas.line([pos - ends, pos + ends], colour if body.solid else (*colour, 140), 2.2 * stroke)


def _ground(canvas: _Canvas, scene: Scene, t: int, half: float) -> None:
    step = 0.1 if half < 0.4 else 0.5 if half < 2.5 else 1.0
    low, high = canvas.centre - half, canvas.centre + half
    for axis in (0, 1):
        for value in np.arange(np.ceil(low[axis] / step) * step, high[axis], step):
            ends = np.array([low, high])
            ends[:, axis] = value
            canvas.line(ends, GRID, OVERSAMPLING)
    edges = scene.bounds and (-scene.bounds[0], scene.bounds[0], -scene.bounds[1], scene.bounds[1])
    if scene.field is not None:
        _paint(canvas, scene.field, t)
        edges = scene.field.extent
    if edges is not None:
        left, right, bottom, top = edges
        corners = np.array([[left, bottom], [right, bottom], [right, top], [left, top]])
        canvas.polygon(corners, None, COLOURS["light_grey"], 2 * OVERSAMPLING)


def _paint(canvas: _Canvas, field: Field, t: int) -> None:
    """The values as smooth colours, and a tile on every cell that is taken."""
    left, right, bottom, top = field.extent
    (x0, y0), (x1, y1) = canvas.pixel(np.array([left, top])), canvas.pixel(np.array([right, bottom]))
    size = (round(x1) - round(x0), round(y1) - round(y0))
    values = Image.fromarray(field.values[t, ::-1].astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    shades, stops = np.linspace(0, 1, SHADES), np.linspace(0, 1, len(MEADOW))
    table = np.stack([np.interp(shades, stops, channel) for channel in zip(*MEADOW, strict=True)], axis=-1)
    shade = (np.clip(np.asarray(values), 0, 1) * (SHADES - 1)).round().astype(int)
    canvas.image.paste(Image.fromarray(table.round().astype(np.uint8)[shade]), (round(x0), round(y0)))
    rows, columns = field.taken.shape[1:]
    wide, high = (x1 - x0) / columns, (y1 - y0) / rows
    gap = min(OVERSAMPLING / 2, wide / 8, high / 8)
    for row, column in np.argwhere(field.taken[t]):
        x, y = x0 + column * wide, y1 - (row + 1) * high
        canvas.pen.rectangle((x + gap, y + gap, x + wide - gap, y + high - gap), fill=TAKEN)


def _camera(scene: Scene) -> tuple[np.ndarray, float]:
    """The centre of the picture and half its width: all that is near, through the whole trajectory."""
    reach = np.array([max(b.radius, np.hypot(b.length, b.width) / 2) for b in scene.bodies])
    radius, length, width = (
        np.array([getattr(b, name) for b in scene.bodies]) for name in ("radius", "length", "width")
    )
    cos, sin = np.abs(np.cos(scene.rot)), np.abs(np.sin(scene.rot))
    extent = (
        np.stack([length * cos + width * sin, length * sin + width * cos], axis=-1) / 2 + radius[:, None]
    )  # [T, N, 2]
    agents = np.array([b.agent for b in scene.bodies])
    home = scene.pos[:, agents].reshape(-1, 2)
    middle = np.median(home, axis=0)
    wide = np.where(agents, np.inf, 3.0)  # agents are always in the picture, landmarks if they are not far away
    near = scene.shown & (np.abs(scene.pos - middle).max(axis=-1) < wide + np.abs(home - middle).max())
    near &= (reach < 2.0) | agents  # a floor may leave the picture
    pos = scene.pos[near]
    margin = extent[near]
    low, high = (pos - margin).min(axis=0), (pos + margin).max(axis=0)
    if scene.bounds is not None:
        low, high = np.minimum(low, -np.array(scene.bounds)), np.maximum(high, scene.bounds)
    if scene.field is not None:
        left, right, bottom, top = scene.field.extent
        low, high = np.minimum(low, (left, bottom)), np.maximum(high, (right, top))
    high = high + np.array([0.0, 0.1 * (high - low).max()])  # for the title
    return (low + high) / 2, float(1.06 * max((high - low).max() / 2, 0.3))


def checked(path: str | Path) -> Path:
    """Refuses a name that :func:`save` cannot write to."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise UserError(f"{path}: an animation ends in {', '.join(FORMATS)}")
    return path


def save(frames: np.ndarray, path: str | Path, fps: float = 15) -> Path:
    """Write frames ``[T, H, W, 3]`` as an animation, by the name's ending: .gif, .png or .webp."""
    path = checked(path)
    images = [Image.fromarray(frame) for frame in frames]
    if path.suffix == ".gif":
        every = Image.fromarray(np.concatenate(frames[:: max(1, len(frames) // 6)]))
        palette = every.quantize(256)  # one for all frames: otherwise colours flicker
        images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    options: dict[str, Any] = {"loop": 0, "duration": round(1000 / fps), "save_all": True, "append_images": images[1:]}
    animation = io.BytesIO()
    images[0].save(animation, format=path.suffix[1:], quality=85, **options)
    partial = path.with_name(f".partial-{os.urandom(6).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("xb") as file:  # a new file: no symbolic link is followed
                file.write(animation.getvalue())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise Fault(f"{path}: cannot be written ({error.strerror})") from error
    return path
