"""How fast PettingZoo is behind the pool: ``python tools/zoo.py`` rewrites the table of docs/pettingzoo.md.

Random play of the same environments three ways: a plain Python loop over one of them; the pool with one worker; the
pool with a worker per core. The pool is called from a compiled scan with ``AutoReset``, as a training calls it.
``--only sisl.pursuit_v5`` measures one environment and keeps the rows of the others.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from shoal import envs
from shoal.config.words import Parser
from shoal.envs.base import Continuous
from shoal.envs.host import pool
from shoal.envs.wrappers import AutoReset

PAGE = Path(__file__).parent.parent / "docs" / "pettingzoo.md"
TASKS = (
    "sisl.multiwalker_v9",
    "sisl.pursuit_v5",
    "butterfly.knights_archers_zombies_v11",
    "butterfly.pistonball_v6",
    "mpe2.simple_spread_v3",
)
ROW = tuple(f"| `{task}`" for task in TASKS)
HEAD = """| environment | agents | observation | plain loop | pool, 1 worker | pool, {cores} workers |
|---|---|---|---|---|---|
"""


def plain(task: str, seconds: float) -> float:
    """Steps per second of one environment in a Python loop."""
    name = task if task.startswith("mpe2") else f"pettingzoo.{task}"
    env = importlib.import_module(name).parallel_env()
    env.reset(seed=0)
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        env.step({agent: env.action_space(agent).sample() for agent in env.agents})
        steps += 1
        if not env.agents:
            env.reset()
    return steps / (time.perf_counter() - begin)


def pooled(task: str, workers: int, num_envs: int, seconds: float) -> float:
    """Steps per second of ``num_envs`` environments in a compiled scan."""
    env = envs.make(f"pettingzoo/{task}", workers=workers)
    vec, length, space = AutoReset(env, num_envs, 16), 16, env.action_space

    def step(state, key):
        keys, shape = jax.random.split(key, num_envs), (num_envs, env.num_agents)
        if isinstance(space, Continuous):
            action = jax.random.uniform(key, (*shape, space.size), minval=space.low, maxval=space.high)
        else:
            action = jax.random.randint(key, shape, 0, jnp.array(space.sizes))
        state, timestep = vec.step(keys, state, action, vec.fresh(key, state))
        return state, timestep.reward.sum()

    roll = jax.jit(lambda state, key: jax.lax.scan(step, state, jax.random.split(key, length)))
    state, _ = jax.jit(vec.reset)(jax.random.PRNGKey(0))
    state, _ = jax.block_until_ready(roll(state, jax.random.PRNGKey(1)))
    rounds, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        rounds += 1
        state, _ = jax.block_until_ready(roll(state, jax.random.PRNGKey(1 + rounds)))
    speed = rounds * length * num_envs / (time.perf_counter() - begin)
    pool.close_all()
    return speed


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--only", choices=TASKS, help="one environment; the other rows of the table stay")
    options = parser.parse_args()
    os.environ |= pool.QUIET
    cores = len(os.sched_getaffinity(0))
    rows = {line.split("`")[1]: f"{line}\n" for line in PAGE.read_text().splitlines() if line.startswith(ROW)}
    for task in [options.only] if options.only else TASKS:
        env = envs.make(f"pettingzoo/{task}")
        speeds = [plain(task, options.seconds)]
        num_envs = options.num_envs if env.obs_size < 10_000 else 2  # pictures: 66 MB a step otherwise
        speeds += [pooled(task, workers, num_envs, options.seconds) for workers in (1, cores)]
        seen = "x".join(map(str, env.obs_shape)) if env.obs_shape else str(env.obs_size)
        rows[task] = f"| `{task}` | {env.num_agents} | {seen} | {' | '.join(f'{s:,.0f}' for s in speeds)} |\n"
        print(rows[task], end="")
    lines = "".join(rows[task] for task in TASKS if task in rows)
    table = f"<!-- speed -->\n{HEAD.format(cores=cores)}{lines}<!-- /speed -->"
    PAGE.write_text(re.sub(r"<!-- speed -->.*<!-- /speed -->", table, PAGE.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
