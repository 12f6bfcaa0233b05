"""Pictures: every VMAS and MPE task, where things are drawn, and the files."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from PIL import Image

import envs
from envs import drawing
from envs.vmas.pictures import scene

TASKS = envs.list("vmas") + envs.list("mpe")


def frames_of(env, steps: int = 2, size: int = 48) -> np.ndarray:
    """Pictures of an environment that stands still."""
    state = jax.device_get(jax.jit(env.reset)(jax.random.key(0))[0])
    return env.render(jax.tree.map(lambda leaf: np.stack([leaf] * steps), state), size)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_drawn(task):
    frames = frames_of(envs.make(task))
    assert frames.shape == (2, 48, 48, 3) and frames.dtype == np.uint8
    assert len(np.unique(frames[0].reshape(-1, 3), axis=0)) > 20  # more than an empty sheet


def test_bodies_are_where_they_are_and_leave_trails():
    bodies = [drawing.Body("red", radius=0.1, agent=True), drawing.Body("blue", length=0.4, width=0.2)]
    pos = np.array([[[-0.5, 0.0], [0.5, 0.5]], [[-0.5, -0.5], [0.5, 0.5]]])
    shown, rot, rays = np.ones((2, 2), bool), np.zeros((2, 2)), np.zeros((2, 0, 2, 2))
    first, second = drawing.animate(drawing.Scene(bodies, pos, rot, shown, rays, (1.0, 1.0)), size=200).astype(int)
    red = lambda frame: (frame[..., 0] > 200) & (frame[..., 2] < 120)  # noqa: E731
    blue = lambda frame: (frame[..., 2] > 180) & (frame[..., 0] < 120)  # noqa: E731
    (y, x), (other_y, other_x) = (np.argwhere(colour(first)).mean(axis=0) for colour in (red, blue))
    scale = 200 / 2 / (1.06 * 1.1)  # pixels of a unit: half the height, its margin and the title's room
    np.testing.assert_allclose((other_x - x, y - other_y), (1.0 * scale, 0.5 * scale), atol=3)
    (later_y, _) = np.argwhere(red(second)).mean(axis=0)
    np.testing.assert_allclose(later_y - y, 0.5 * scale, atol=3)
    middle = second[int((y + later_y) / 2), int(x) - 3 : int(x) + 4]
    assert (middle[:, 0] > middle[:, 2] + 20).any()  # the trail between
    without = drawing.animate(drawing.Scene(bodies, pos, rot, shown & [True, False], rays, (1.0, 1.0)), size=200)
    assert not blue(without[0].astype(int)).any()


@pytest.mark.parametrize("task", ["dispersion", "dropout"])
def test_what_is_eaten_is_gone(task):
    env = envs.make(f"vmas/{task}").env
    fresh = env.restore(np.zeros((len(env.entities), 2)))
    eaten = fresh.remember(eaten=jax.numpy.ones_like(fresh["eaten"]))
    agents = [name.startswith("agent") for name in env.entities]
    assert env.shown(fresh).all() and env.shown(eaten).tolist() == agents


def test_rays_end_where_they_hit():
    env = envs.make("vmas/navigation").env
    pos = np.array([[0, 1], [0, 1], [0, 1], [0, 0], [0.3, 0], [5, 5]], np.float32)
    state = jax.tree.map(lambda leaf: np.asarray(leaf)[None], env.restore(pos))
    rays = scene(env, state).rays
    assert rays.shape == (1, 3 * 12, 2, 2)
    np.testing.assert_allclose(rays[0, 0], [[0, 0], [0.2, 0]], atol=1e-6)  # the first ray meets the second agent
    np.testing.assert_allclose(np.linalg.norm(rays[0, 24:, 1] - rays[0, 24:, 0], axis=-1), 0.35, rtol=1e-5)


@pytest.mark.parametrize("ending", drawing.FORMATS)
def test_an_animation_is_a_file(tmp_path, ending):
    frames = np.zeros((3, 20, 20, 3), np.uint8)
    for i in range(3):
        frames[i, : 5 * i + 5] = 255
    path = drawing.save(frames, tmp_path / f"deep/er{ending}", fps=10)
    with Image.open(path) as image:
        assert image.n_frames == 3 and image.size == (20, 20)
    with pytest.raises(envs.UserError, match=r"ends in \.gif, \.png, \.webp"):
        drawing.save(frames, tmp_path / "a.mp4")


def test_others_have_no_pictures():
    with pytest.raises(envs.UserError, match="matrix/climbing: has no pictures"):
        frames_of(envs.make("matrix/climbing"))
