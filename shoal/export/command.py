"""Export the policy of a trained team, to play it without JAX: safetensors, a JSON and one file that needs numpy alone.

    shoal export runs/<folder>                        # the best run's best policy
    shoal export runs/<folder> run=3 which=last out=team
    shoal export runs/<folder> jax=true               # policy.jax too, for JAX without Shoal

| word | meaning |
|---|---|
| ``folder=<path>`` | the training, if its path reads like a word: ``folder=run=3`` |
| ``run=best`` | which run: ``best``, or its number |
| ``which=best`` | its ``best`` policy of all evaluations, or its ``last`` |
| ``out=<folder>`` | where to; ``<training>/export/run_<run>_<which>`` if not given |
| ``jax=true`` | write ``policy.jax``, the compiled policy, as well; the only way for a network of your own |
| ``import=<file.py>`` | your own Python (or ``package.module``) that made it, or registers its network or environment |
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

import shoal
from shoal.config.files import after_imports
from shoal.config.words import fail, readable, unknown
from shoal.errors import UserError
from shoal.export import deploy
from shoal.export.export import Exported, export

WORDS = {"folder": "", "run": "best", "which": "best", "out": "", "jax": "false"}
ACTS = 200  # that the time of one is the median of


def read(argv: list[str]) -> tuple[Path, dict[str, str]]:
    """The folder, and the words with what is not given."""
    readable(argv)
    words, folders = dict(WORDS), []
    for word in argv:
        name, equals, value = word.partition("=")
        if equals and name in WORDS:
            words[name] = value
        elif os.path.exists(word) or not (equals or word.startswith("-")):
            folders.append(word)
        else:
            raise unknown(word, (*WORDS, "import"))
    folders += [words["folder"]] * bool(words["folder"])
    if len(folders) != 1:
        raise UserError(f"{' '.join(folders) or 'no folder'}: name one folder that a training left behind")
    if words["jax"] not in ("true", "false"):
        raise UserError(f"jax={words['jax']}: must be true or false")
    return Path(folders[0]), words


def tell(made: Exported) -> None:
    """What was exported, how exact and how fast it is."""
    facts, out = made.description, made.folder
    actions = facts["actions"]
    print(f"{facts['algorithm']} on {facts['environment']}: run {facts['run']}, {facts['which']} policy")
    kind = actions["kind"].replace("_", "-")
    print(f"  {len(facts['agents'])} agents, observations of {facts['obs_size']} numbers, {kind} actions")
    if made.difference is not None:
        policy = deploy.load_policy(out)
        obs = np.zeros((len(policy.agents), policy.obs_size), np.float32)
        times = []
        for _ in range(ACTS):
            begin = time.perf_counter()
            policy.act(obs)
            times.append(time.perf_counter() - begin)
        how = "exactly" if made.difference == 0 else f"to {made.difference:.1e}"
        print(f"  self-check: numpy acts as JAX did in {made.steps} recorded steps, {how}")
        print(f"  numpy's act for the whole team: {np.median(times) * 1e6:.0f} us")
    files = [out / name for name in ("policy.json", "policy.safetensors", "deploy.py", "policy.jax")]
    print("  " + ", ".join(f"{file.name} {file.stat().st_size / 1000:.1f} kB" for file in files if file.exists()))
    print(out)


def main(argv: list[str]) -> int:
    """``shoal export <folder>``; the exit code."""
    if {"-h", "--help"} & {*argv}:
        print(__doc__)
        return 0
    try:
        folder, words = read(after_imports(argv))
        tell(export(shoal.load(folder), words["run"], words["which"], words["out"] or None, words["jax"] == "true"))
    except (UserError, OSError) as error:
        fail(error)
    return 0
