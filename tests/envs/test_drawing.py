"""Pictures: every VMAS and MPE task, where things are drawn, and the files."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from PIL import Image

from shoal import envs
from shoal.envs import drawing
from shoal.envs.vmas.pictures import scene

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
    assert rays.shape == (1, 3 * 12, 2, 2) and scene(env, state).field is None
    np.testing.assert_allclose(rays[0, 0], [[0, 0], [0.2, 0]], atol=1e-6)  # the first ray meets the second agent
    np.testing.assert_allclose(np.linalg.norm(rays[0, 24:, 1] - rays[0, 24:, 0], axis=-1), 0.35, rtol=1e-5)


def test_a_field_is_painted_under_the_bodies_and_what_is_taken_on_it():
    bodies = [drawing.Body("red", radius=0.1, agent=True)]
    values, taken = np.zeros((2, 4, 8)), np.zeros((2, 4, 8), bool)  # cells of a quarter
    values[:, :2, 4:] = 1.0  # below, on the right
    taken[1, 3, 0] = True  # above, on the left
    pos, one = np.full((2, 1, 2), [-0.5, -0.25]), np.ones((2, 1), bool)
    field = drawing.Field(values, taken, (-1.0, 1.0, -0.5, 0.5))
    scene = drawing.Scene(bodies, pos, np.zeros((2, 1)), one, np.zeros((2, 0, 2, 2)), field=field)
    first, second = drawing.animate(scene, size=200).astype(int)
    scale, top = 200 / 2 / 1.06, 0.5 + 0.1  # the title's room is above

    def at(frame, x, y):
        return frame[int(100 - scale * (y - top + (1 + 0.1) / 2)), int(100 + scale * x)]

    full, empty = at(first, 0.6, -0.3), at(first, 0.6, 0.3)
    np.testing.assert_allclose(full, drawing.MEADOW[-1], atol=3)
    np.testing.assert_allclose(empty, drawing.MEADOW[0], atol=3)
    np.testing.assert_allclose(at(first, -0.875, 0.375), drawing.MEADOW[0], atol=3)
    assert at(second, -0.875, 0.375).max() < 230  # grey
    np.testing.assert_allclose(at(second, -0.6, 0.375), drawing.MEADOW[0], atol=3)
    np.testing.assert_allclose(at(second, -0.5, -0.25), drawing.COLOURS["red"], atol=3)


def test_sampling_shows_its_gaussians_and_where_agents_were():
    env = envs.make("vmas/sampling", n_gaussians=1, n_agents=1).env
    state = env.restore([[0.5, -0.5]], locs=[[0.5, -0.5]])
    after, _ = jax.jit(env.step)(jax.random.key(0), state, np.zeros((1, 2), np.float32))
    states = jax.tree.map(lambda *leaves: np.stack(leaves), state, after)
    field = scene(env, states).field
    assert field.values.shape == field.taken.shape == (2, 40, 40) and field.extent == (-1.0, 1.0, -1.0, 1.0)
    row, column = np.unravel_index(field.values[0].argmax(), (40, 40))
    assert row in (9, 10) and column in (29, 30) and field.values[0].max() == 1  # low, on the right
    assert not field.taken[0].any() and np.argwhere(field.taken[1]).tolist() == [[10, 30]]


def test_discovery_shows_from_where_a_target_is_covered():
    env = envs.make("vmas/discovery", covering_range=0.4).env
    state = jax.tree.map(lambda leaf: np.asarray(leaf)[None], env.restore(np.zeros((env.world.size, 2))))
    assert [body.halo for body in scene(env, state).bodies] == [0.4] * env.n_targets + [0.0] * env.num_agents


def test_a_halo_is_a_faint_disc():
    pos, rot, one, rays = np.zeros((1, 1, 2)), np.zeros((1, 1)), np.ones((1, 1), bool), np.zeros((1, 0, 2, 2))
    bodies = [drawing.Body("red", radius=0.1, agent=True, halo=halo) for halo in (0.5, 0.0)]
    scenes = [drawing.Scene([body], pos, rot, one, rays, (1.0, 1.0)) for body in bodies]
    with_halo, without = (drawing.animate(scene, size=200)[0].astype(int) for scene in scenes)
    change = np.abs(with_halo - without).max(axis=-1)
    scale = 200 / 2 / (1.06 * 1.1)  # pixels of a unit
    np.testing.assert_allclose((change > 5).sum(), np.pi * (0.5**2 - 0.1**2) * scale**2, rtol=0.05)
    assert change.max() < 120


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
