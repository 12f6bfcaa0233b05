"""Animate what a training has learnt: greedy episodes of its best run, as GIF, animated PNG or WebP.

    shoal render runs/<folder>                 # the best seed's best policy, to <folder>/render.gif
    shoal render runs/<folder> --run 3 --episodes 2 --out balance.webp
    shoal render vmas/balance vmas/wheel mpe/simple_tag --out some.gif   # random actions, side by side
    shoal render runs/<folder> import=my_idea.py           # your own Python that made it, or registers its environment

MPE and VMAS environments have pictures; another may have by a ``render`` of its own (see ``shoal.envs.base.Env``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import shoal
from shoal import envs
from shoal.config.fields import INT32
from shoal.config.files import after_imports
from shoal.config.words import Parser, fail, number
from shoal.envs import Continuous, Env, UserError, drawing
from shoal.folder import policies
from shoal.folder.play import play


def at_random(env: Env) -> Callable:
    """Uniform actions."""
    space = env.action_space

    def act(memory, timestep, key):
        if isinstance(space, Continuous):
            return memory, jax.random.uniform(key, (1, *space.low.shape), minval=space.low, maxval=space.high)
        sizes = np.array(space.sizes)
        return memory, jax.random.randint(key, (1, *sizes.shape), 0, sizes)

    return act


def animation(what: str, options: argparse.Namespace) -> np.ndarray:
    """``[T, size, size, 3]``: the episodes of a training, or of an environment with random actions."""
    seeds = range(options.seed, options.seed + options.episodes)
    if Path(what).is_dir():
        training = shoal.load(what)
        run = training.number("best" if options.run is None else options.run)
        env, label = training.algorithm.env, f"run {run}"
        if not policies.is_finite(training.policy(run)):
            line = f"warning: {what}: the best policy of run {run} is not finite (NaN): what it plays means nothing"
            print(line, file=sys.stderr)
        episodes = [training.play(run, seed=seed) for seed in seeds]
    else:
        env, label = envs.make(what), "random actions"
        act = at_random(env)
        episodes = [play(env, lambda count: (), act, seed) for seed in seeds]
    returns = ", ".join(f"{episode.episode_return:.2f}" for episode in episodes)
    print(f"{env.name}, {label}: return per agent {returns}")
    return np.concatenate([env.render(episode.states, options.size) for episode in episodes])


def default_name(what: list[str]) -> Path:
    """In the folder of a training if there is one only, else here."""
    if len(what) == 1 and Path(what[0]).is_dir():
        return Path(what[0]) / "render.gif"
    return Path("_".join(Path(name).name for name in what) + ".gif")


def main(words: list[str]) -> int:
    """``shoal render <folder> ...``; the exit code."""
    parser = Parser(__doc__, prog="shoal render")
    parser.add_argument("what", nargs="+", help="folders of trainings, or environments' names; several stand in a row")
    parser.add_argument("--run", type=number(int, 0, INT32), help="which run of a training; the best one if not given")
    parser.add_argument("--episodes", type=number(int, 1, 1000), default=1)
    parser.add_argument("--seed", type=number(int, 0, INT32 - 1000), default=0)
    parser.add_argument("--size", type=number(int, 1, 4096), default=400, help="pixels")
    parser.add_argument("--fps", type=number(float, 0.1, 1000), default=15)
    parser.add_argument("--out", type=Path, help="a .gif, .png or .webp")
    try:
        options = parser.parse_args(after_imports(words))
        out = drawing.checked(options.out or default_name(options.what))
        strips = [animation(what, options) for what in options.what]
        longest = max(map(len, strips))
        held = [np.concatenate([frames, np.repeat(frames[-1:], longest - len(frames), axis=0)]) for frames in strips]
        print(drawing.save(np.concatenate(held, axis=2), out, options.fps))
    except (UserError, OSError) as error:
        fail(error)
    return 0
