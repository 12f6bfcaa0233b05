"""The physics of VMAS against recorded steps of the original in worlds of no task: pairs of shapes and the rest."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.vmas import dynamics, entities
from shoal.envs.vmas.base import FIELDS, Scenario
from shoal.envs.vmas.entities import Agent, Box, Joint, Landmark, Line, Sphere, rod
from shoal.envs.vmas.sensors import Lidar
from shoal.envs.vmas.world import KINDS, World
from tests.envs.test_vmas import REWARD, STATE, load, run, teacher_forced

RECORDED = load("bodies")


class Bodies(Scenario):
    """A world from the words that the recorder built VMAS's from."""

    def __init__(self, words):
        landmarks = [Landmark(name=f"landmark_{i}", **self.arguments(w)) for i, w in enumerate(words["landmarks"])]
        agents = [Agent(name=f"agent_{i}", **self.arguments(w)) for i, w in enumerate(words["agents"])]
        joints = []
        for a, b, length, mass in words.get("rods", []):
            body, ends = rod(a, b, length, mass=mass)
            landmarks, joints = [*landmarks, body], [*joints, *ends]
        for a, b, anchor_a, anchor_b, lock in words.get("joints", []):
            joints.append(Joint(a=a, b=b, anchor_a=tuple(anchor_a), anchor_b=tuple(anchor_b), lock=lock))
        world = World(landmarks, agents, joints=joints, **words["world"])
        self.lidar = None
        if "lidar" in words:
            sensors = np.arange(len(landmarks), world.size)
            seen = np.stack([np.delete(np.arange(world.size), i) for i in sensors])
            self.lidar = Lidar(world, sensors, seen, **words["lidar"])
        super().__init__(world)

    def arguments(self, words):
        words = dict(words)
        for name, module in (("shape", entities), ("dynamics", dynamics)):
            if name in words:
                kind, *sizes = words[name]
                if kind == "KinematicBicycle":
                    front, rear, most, integration = sizes
                    sizes = [integration, front, rear, most]
                words[name] = getattr(module, kind)(*sizes)
        return words

    def reward(self, key, state):
        return state, jnp.zeros(self.num_agents), {}

    def observe(self, key, state):
        return jnp.zeros((self.num_agents, 1)) if self.lidar is None else self.lidar(state)


@pytest.mark.parametrize("name", RECORDED)
def test_a_step_equals_the_originals(name):
    record = RECORDED[name]
    env = Bodies(json.loads(record["words"].item()))
    assert env.entities == tuple(record["entities"])
    (state, timestep), (before, after, shown) = teacher_forced(env, record)
    for field in FIELDS:
        np.testing.assert_allclose(getattr(state, field), after[field], **STATE, err_msg=field)
    np.testing.assert_allclose(timestep.obs, shown["obs"], **REWARD)
    if name == "lidar":
        assert 0.2 < (shown["obs"] < 0.7).mean() < 0.9
    elif name != "contacts":  # which has a test of its own
        assert np.abs(after["vel"] - before["vel"]).max() > 0.1


def test_all_six_pairs_of_shapes_touch():
    env = Bodies(json.loads(RECORDED["pairs"]["words"].item()))
    assert set(env.world.pairs) == set(KINDS)
    pos, rot = RECORDED["pairs"]["thrown/pos"], RECORDED["pairs"]["thrown/rot"]

    def touching(pos, rot):
        state = env.restore(pos, rot=rot)
        return {kind: env.world.overlap(state, p.first, p.second) for kind, p in env.world.pairs.items()}

    touches = jax.vmap(lambda pos, rot: list(touching(pos, rot).values()))
    found = run(touches, pos.reshape(-1, *pos.shape[2:]), rot.reshape(-1, rot.shape[-1]))
    assert [touch.any() for touch in found] == [True] * len(KINDS)


def test_every_pair_of_shapes_pushes_often():
    """In "contacts" a landmark meets no other body than the agent of its number: without it, it only slows down."""
    record = RECORDED["contacts"]
    vel = record["touching/vel"]
    free = vel[:, 0] * (1 - World([], [Agent(name="any")]).drag)
    pushed = np.abs(vel[:, 1] - free).max(axis=-1) > 1e-4  # [episodes, N]
    contacts = [tuple(pair) for pair in json.loads(record["words"].item())["contacts"]]
    counts = dict(zip(contacts, pushed.sum(axis=0).tolist(), strict=False))
    kinds = ("sphere", "line", "box", "hollow")
    assert set(counts) == {(a, b) for i, a in enumerate(kinds) for b in kinds[: i + 1]}
    assert min(counts.values()) >= 20, counts
    inside = pushed[1::2, [i for i, (large, _) in enumerate(contacts) if large == "hollow"]]
    assert inside.sum(axis=0).min() >= 5, inside.sum(axis=0)


def test_noise_on_actions_is_normal():
    loud = [{"u_noise": 0.3, "u_multiplier": 2.0}, {}]
    env = Bodies({"world": {}, "landmarks": [], "agents": loud})
    read = jax.vmap(lambda key: env.read_action(key, jnp.full((2, 2), 0.5))[0])
    u = run(read, jax.random.split(jax.random.key(0), 4000))  # [K, A, 2]
    np.testing.assert_array_equal(u[:, 1], 0.5)
    np.testing.assert_allclose(u[:, 0].mean(axis=0), 1.0, atol=0.02)
    np.testing.assert_allclose(u[:, 0].std(axis=0), 0.3, rtol=0.05)
    assert (np.abs(u[:, 0] - 1) < 0.3).mean() == pytest.approx(0.683, abs=0.02)
    assert abs(np.corrcoef(u[:, 0].T)[0, 1]) < 0.06


def test_shapes():
    for shape, inertia, reach in (
        (Sphere(0.2), 0.5 * 3 * 0.04, 0.2),
        (Box(0.6, 0.8), 3 * (0.36 + 0.64) / 12, 0.5),
        (Line(0.6), 3 * 0.36 / 12, 0.3),
    ):
        assert shape.inertia(3.0) == pytest.approx(inertia)
        assert shape.reach == pytest.approx(reach)
