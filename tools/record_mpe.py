"""Record steps of PettingZoo's ``mpe2`` into ``tests/data/mpe_<task>.npz``, which tests/envs/test_mpe.py compares with.

    pip install 'shoal[oracle]' && python tools/record_mpe.py

Episodes start from mpe2's own resets, drawn together or apart so that agents collide or leave the arena, and moving.
Every step is recorded with the state before it: contacts are so stiff that float32 and float64 soon part ways.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np

from shoal.config.words import Parser

SCALES = (0.25, 0.5, 0.8, 1.2)  # of the initial positions, an episode each
VERSIONS = {"simple_speaker_listener": 4}  # all others are v3
EXTRA = {  # a case beyond the defaults: mpe2's arguments and the same in Shoal's names
    "simple_spread": ({"N": 5}, {"num_agents": 5, "num_landmarks": 5}),
    "simple_tag": ({"num_good": 2, "num_adversaries": 3}, {"num_good_agents": 2, "num_adversaries": 3}),
    "simple_world_comm": ({"num_good": 3, "num_adversaries": 2}, {"num_good_agents": 3, "num_adversaries": 2}),
}
TASKS = (
    "simple",
    "simple_adversary",
    "simple_crypto",
    "simple_push",
    "simple_reference",
    "simple_speaker_listener",
    "simple_spread",
    "simple_tag",
    "simple_world_comm",
)


def goal_of(task: str, world) -> list[int]:
    """What Shoal calls the goal, read from a world of mpe2."""
    place = {id(landmark): i for i, landmark in enumerate(world.landmarks)}
    agents = world.agents
    if task in ("simple_adversary", "simple_push"):
        return [place[id(agents[0].goal_a)]]
    if task == "simple_speaker_listener":
        return [place[id(agents[0].goal_b)]]
    if task == "simple_reference":  # agent i must reach what its partner knows
        return [place[id(agents[1].goal_b)], place[id(agents[0].goal_b)]]
    if task == "simple_crypto":
        return [place[id(agents[0].goal_a)], int(np.argmax(agents[2].key))]
    return []


def pad(rows: list[np.ndarray]) -> np.ndarray:
    """Stack vectors of different lengths, zeros behind the shorter ones."""
    size = max(len(row) for row in rows)
    return np.stack([np.pad(row, (0, size - len(row))) for row in rows]).astype(np.float32)


def record(task: str, kwargs: dict, continuous: bool, steps: int, seed: int = 0) -> dict[str, np.ndarray]:
    """``steps`` steps of every episode, stacked on the first axis."""
    module = importlib.import_module(f"mpe2.{task}_v{VERSIONS.get(task, 3)}")
    env = module.raw_env(continuous_actions=continuous, max_cycles=10**6, **kwargs)
    rng = np.random.default_rng(seed)
    rows: list[dict] = []
    for episode, scale in enumerate(SCALES):
        env.reset(seed=seed + episode)
        for entity in env.world.entities:
            entity.state.p_pos = entity.state.p_pos * scale
            if entity.movable:
                entity.state.p_vel = rng.normal(size=2) * 0.5
        for _ in range(steps):
            row = {"pos": [e.state.p_pos.copy() for e in env.world.entities]}
            row["vel"] = [a.state.p_vel.copy() for a in env.world.agents]
            row["goal"] = goal_of(task, env.world)
            spaces = [env.action_space(agent) for agent in env.agents]
            if continuous:
                actions = [rng.uniform(size=space.shape).astype(np.float32) for space in spaces]
                row["action"] = pad(actions)
            else:
                actions = [int(rng.integers(space.n)) for space in spaces]
                row["action"] = actions
            for action in actions:
                env.step(action)
            row["next_vel"] = [a.state.p_vel.copy() for a in env.world.agents]
            row["obs"] = pad([env.observe(agent) for agent in env.agents])
            row["reward"] = [env.rewards[agent] for agent in env.agents]
            rows.append(row)
    stacked = {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
    recorded = {k: v.astype(np.int32 if v.dtype.kind == "i" else np.float32) for k, v in stacked.items()}
    recorded["agents"] = np.array(env.agents)
    recorded["obs_sizes"] = np.array([env.observation_space(agent).shape[0] for agent in env.agents])
    return recorded


def main() -> None:
    """Write every file."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "tests" / "data")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        cases = {"discrete": record(task, {}, False, steps=10), "continuous": record(task, {}, True, steps=4, seed=10)}
        if task in EXTRA:
            theirs, ours = EXTRA[task]
            cases["extra"] = record(task, theirs, False, steps=4, seed=20)
            cases["extra"] |= {f"kwargs.{name}": np.array(value) for name, value in ours.items()}
        arrays = {f"{case}/{name}": array for case, fields in cases.items() for name, array in fields.items()}
        path = out / f"mpe_{task}.npz"
        np.savez_compressed(path, **arrays)
        print(f"{path}: {path.stat().st_size / 1024:.1f} KB")


if __name__ == "__main__":
    main()
