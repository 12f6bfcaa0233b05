"""Environment steps per second of our VMAS and of the original, on this machine, in one run.

    pip install 'shoal[oracle]' && python tools/speed_vmas.py

Random continuous actions drawn beforehand, no resets; an environment step moves all agents. Ours: one compiled scan,
the environments split over the cores. The original: torch with as many threads as there are cores. The two take turns,
and of each the fastest of ``--repeats`` passes counts.
"""

from __future__ import annotations

import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from shoal import envs
from shoal.cli import cores_as_devices
from shoal.config.words import Parser

STEPS = 100


def ours(task: str, num_envs: int):
    """A function that makes ``STEPS`` steps of every environment."""
    env = envs.make(f"vmas/{task}").env
    devices = np.array(jax.devices())
    spec = PartitionSpec("core")

    def steps(key, action):
        states, _ = jax.vmap(env.reset)(jax.random.split(key[0], num_envs // len(devices)))

        def step(states, action):
            states, timestep = jax.vmap(env.step, in_axes=(None, 0, 0))(key[0], states, action)
            return states, (timestep.reward.sum(), timestep.obs.sum(), timestep.terminated.sum())

        return jax.tree.map(lambda x: jnp.sum(x)[None], jax.lax.scan(step, states, action)[1])

    split = partial(jax.shard_map, mesh=Mesh(devices, "core"), check_vma=False)
    program = jax.jit(split(steps, in_specs=(spec, PartitionSpec(None, "core")), out_specs=spec))
    keys = jax.random.split(jax.random.PRNGKey(0), len(devices))
    shape = (STEPS, num_envs, env.num_agents, env.action_space.size)
    action = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32))
    begin = time.perf_counter()
    compiled = program.lower(keys, action).compile()
    seconds = time.perf_counter() - begin
    return lambda: jax.block_until_ready(compiled(keys, action)), seconds


def theirs(task: str, num_envs: int):
    """The same of the original."""
    import torch
    import vmas

    from tools.record_vmas import BENCHMARL

    torch.set_num_threads(os.cpu_count() or 1)
    env = vmas.make_env(
        scenario=task, num_envs=num_envs, device="cpu", continuous_actions=True, clamp_actions=True, **BENCHMARL[task]
    )
    env.reset()
    generator = torch.Generator().manual_seed(0)
    actions = [
        [torch.rand(num_envs, env.get_agent_action_size(agent), generator=generator) * 2 - 1 for agent in env.agents]
        for _ in range(STEPS)
    ]

    def run():
        for action in actions:
            env.step(action)

    return run


def fastest(function, repeats: int) -> float:
    """Seconds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--tasks", default="balance,navigation,simple_spread,transport,sampling,football")
    parser.add_argument("--envs", default="600,4096")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="without the original")
    options = parser.parse_args()
    cores_as_devices()
    print("| task | environments | Shoal steps/s | VMAS steps/s | ratio | compile |\n|---|---|---|---|---|---|")
    for task in options.tasks.split(","):
        for count in map(int, options.envs.split(",")):
            function, seconds = ours(task, count)
            function()
            own = fastest(function, options.repeats)
            mine = f"{count * STEPS / own / 1e3:.0f}k"
            if options.alone:
                print(f"| {task} | {count} | {mine} | | | {seconds:.1f} s |", flush=True)
                continue
            other = fastest(theirs(task, count), max(2, options.repeats // 2))
            own = min(own, fastest(function, options.repeats))
            mine, rival = f"{count * STEPS / own / 1e3:.0f}k", f"{count * STEPS / other / 1e3:.0f}k"
            print(f"| {task} | {count} | {mine} | {rival} | {other / own:.1f} | {seconds:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
