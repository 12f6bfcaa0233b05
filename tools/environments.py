"""The table of environments in docs/environments.md: ``python tools/environments.py > docs/environments.md``."""

from __future__ import annotations

import sys
from itertools import groupby

from shoal import envs
from shoal.config.words import Parser

HEAD = """# Environments

Made by `python tools/environments.py`; a range covers all tasks of a family.

| family | tasks | agents | observation | actions | global state | horizon | ends early | teams |
|---|---|---|---|---|---|---|---|---|"""

NOTES = """
## Conventions

- `envs.make(name, horizon=..., continuous=..., **kwargs)`; on the command line `env=name env.kwargs.horizon=50`.
- Episodes are truncated by our own time limit after `horizon` steps; the environments' own are switched off. jaxmarl's
  MPE and SMAX test theirs before counting, so that its episodes last 26 and 101 steps; here they last 25 and 100.
- Returns are means over agents. `jaxmarl_mpe/*` are the jaxmarl package's own MPE classes behind the adapter, kept for
  comparison; `mpe/*` are ours, equal to them and to PettingZoo's `mpe2` on recorded steps.
- Environments with both kinds of action are discrete unless `continuous=true`; `vmas/*` are continuous unless
  `continuous=false` (QMIX's and PQN's recipes say that).
- Agents that move and speak (`mpe/simple_reference`, `mpe/simple_world_comm`) have one action `word * 5 + move`, as in
  jaxmarl, or with `env.kwargs.multi_discrete=true` two sub-actions `(move, word)` that a policy draws independently.

## VMAS

`vmas/*` are all of BenchMARL's VMAS tasks, written in JAX from a description of their behaviour, and `simple`. One
step from each of several thousand recorded states of VMAS 1.5.2 gives the same poses, observations, rewards, dones
and infos (`tests/envs/test_vmas*.py`, data by `tools/record_vmas.py`): poses to 1e-5, rewards to 1e-4. Worlds with
joints (`ball_trajectory`, `buzz_wire`, `joint_passage*`) are stiffer than float32: there 94 % of the values agree so,
and all positions to 1e-5, rewards and infos to 1e-4, angles to 2e-4, velocities and observations to 2e-3, angular
velocities to 0.02. Resets follow VMAS's distributions, tested on quantiles of 1,000 resets (150 of `sampling`).

Every task makes 100 random steps in 200 environments without NaN or infinity, and a step has finite gradients with
respect to places, speeds, angles and actions after a reset, at the end, and with all bodies in one place. With 1,000
environments that takes minutes and is not part of `pytest` as such: `pytest -m thorough -k random_steps` was run, and
all 30 tasks passed.

- Arguments have VMAS's names and BenchMARL's values: `env=vmas/navigation env.kwargs.n_agents=5`. They are checked.
- Semantics are those of one environment (`num_envs=1`): what VMAS couples across a batch (its broad phase, shared
  permutations and goals, `joint_passage`'s done) is not reproduced; quirks inside a scenario are, and are said where
  they are.
- Continuous actions are clamped; discrete ones have three choices per dimension (0 nothing, 1 minus, 2 plus; the
  first dimension is most significant, a word last), or `multi_discrete=true`.
- `env.restore(pos, vel, rot, ang_vel, **hidden)` puts a state together, for curricula or tests: entities in the order
  of `env.entities`; hidden values (potentials, flags, goals, controllers) are those of a reset with these poses
  unless given. A wrong shape is refused; axes of length 1 do not count.
- `env.render(states)` draws frames (of `sampling` with its Gaussians and the cells visited, of `discovery` with the
  range from which a target is covered), `envs.drawing.save` writes a GIF, an animated PNG or a WebP; `python
  scripts/render.py <run folder>` shows what was learnt.
- Differences on purpose: a crowded spawn takes the roomiest of 32 proposals where VMAS would draw forever; `sampling`
  works without `collisions` (no lidar), where VMAS cannot be built; scripted football players never see NaN; delay
  queues and wind are as new after a reset.
- A new scenario is a file of about a hundred lines: [scenarios.md](scenarios.md), with
  `vmas/complex_speaker_listener`.

## PettingZoo

`pettingzoo/<module>` is any PettingZoo environment, `pettingzoo/sisl.multiwalker_v9` or one of your own, stepped by
worker processes on the host: [pettingzoo.md](pettingzoo.md). There are too many to list, and they are slow.

## jaxmarl 0.2 behind the adapter: what to know

- **MABrax**: jaxmarl's index tables overrun brax's current observations (humanoid up to 375 of 244) and JAX clamps the
  index silently. Treat humanoid results with suspicion; for halfcheetah
  `env.kwargs.exclude_current_positions_from_observation=false` makes the table fit.
- **FACMAC**: the prey is scripted; only the predators are agents.
- **JaxNav**: a robot at its goal stays alive (it can still be crashed into) unless `evaporating=true`.
- **Coin game, STORM**: the end of an inner round is neither termination nor truncation.
- **Hanabi** has no limit of its own: the horizon is a bound above the longest legal game.
- **Overcooked**: `env.kwargs.reward_shaping=c` adds `c` times the shaped reward for learning; returns do not count it.
- Left out: continuous SMAX, SMAX against learned enemies, Robotarium (its package is not on the registry).
"""


def span(values: list) -> str:
    """``3``, or ``1-6`` where tasks differ."""
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low}-{high}"


def actions(made: list) -> str:
    kinds = {type(env.action_space).__name__ for env in made}
    parts = []
    for kind in sorted(kinds, reverse=True):
        sizes = [env.action_space.size for env in made if type(env.action_space).__name__ == kind]
        parts.append(f"{kind.lower()} {span(sizes)}")
    return ", ".join(parts)


def row(family: str, names: list[str]) -> str:
    made = [envs.make(name) for name in names]
    tasks = [name.split("/")[1] for name in names]
    shown = ", ".join(f"`{task}`" for task in tasks[:30]) + (", ..." if len(tasks) > 30 else "")
    cells = [
        f"`{family}/`",
        shown,
        span([env.num_agents for env in made]),
        span([env.obs_size for env in made]) + (" (image)" if made[0].obs_shape else ""),
        actions(made),
        span([env.state_size for env in made]),
        span([env.horizon for env in made]),
        "yes" if any(env.terminates for env in made) else "no",
        span([len(env.group_names) for env in made]),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    Parser(__doc__).parse_args()
    print(HEAD)
    for family, names in groupby(envs.list(), lambda name: name.split("/")[0]):
        print(row(family, list(names)))
        print(family, file=sys.stderr)
    print(NOTES, end="")


if __name__ == "__main__":
    main()
