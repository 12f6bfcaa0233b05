"""A training's folder, opened again: its records as tables, its configuration, and the policies that it left behind.

    runs = shoal.load("runs/mine")
    living = runs.metrics[~runs.metrics.run.isin(runs.lost)]  # without those that diverged
    living.groupby("env_steps")["evaluation/episode_return"].mean().plot(title=f"{len(runs.lost)} runs lost")
    policy = runs.policy("best")

Policies need the algorithm, and make it when they are first asked for. Until then JAX is not imported.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from shoal.config.files import import_named
from shoal.config.named import algorithms, module_of
from shoal.errors import UserError
from shoal.folder.load import Recorded, read_config, refuse_too_many

if TYPE_CHECKING:
    from shoal.algorithm import Algorithm, Params
    from shoal.folder.play import Episode
    from shoal.run.plan import Plan


@dataclass(frozen=True, repr=False)
class Runs(Recorded):
    """What a training left behind: its tables, and its policies to play with."""

    file: str | Path | None = None  # the user's algorithm file that made it

    @cached_property
    def plan(self) -> Plan:
        """The training itself, as the runner made it: its algorithm, its environment, the whole run axis.

        Nothing in this process changes: neither its devices nor its precision, which is JAX's own here.
        """
        from shoal.algorithm import algorithm_in
        from shoal.config.settings import complete
        from shoal.envs.host import pettingzoo
        from shoal.training import open_plan

        module = self.module
        settings = complete(self.folder, self.config, module.Config, module.Hypers)
        own = pettingzoo.own_module(settings.env.name)
        if own is not None:
            raise UserError(f"{self.folder}: its environment is the module {own}; {_named(own)}")
        try:
            return open_plan(algorithm_in(module), settings, self.folder)
        except UserError as error:
            raise UserError(f"{self.folder}: {error}") from error

    @property
    def algorithm(self) -> Algorithm:
        return self.plan.algorithm

    def policy(self, run: int | str = "best", which: str = "best") -> Params:
        """The ``best`` or ``last`` policy of a run (a number, or ``"best"``), for ``algorithm.act``."""
        from shoal.folder import policies

        number, (shapes, _) = self.number(run), self.plan.shapes_of_one()
        return policies.load(self.folder, shapes.best_policy, number, which)

    def play(self, run: int | str = "best", which: str = "best", seed: int = 0) -> Episode:
        """One greedy episode of a policy; ``env.render(episode.states)`` draws it."""
        from shoal.folder.play import play

        algorithm, policy = self.algorithm, self.policy(run, which)

        def act(memory, timestep, key):
            return algorithm.act(policy, memory, timestep, key, True)

        return play(algorithm.env, algorithm.initial_memory, act, seed)

    @cached_property
    def module(self) -> ModuleType:
        """The algorithm file: one of baselines, the one that ``file`` names, or one that is imported already."""
        from shoal.algorithm import has_algorithm

        if self.file is not None:
            module = import_named(self.file)
            if has_algorithm(module):
                return module
        recipe, file = self.config.recipe, self.config.file
        if Path(file).name != recipe:
            own = _imported(recipe)
            for module in own:
                if has_algorithm(module):
                    return module
            if not own:  # a script that is there may train the file that the configuration names
                made_by = f"{self.folder}: was made by {recipe}.py, which is not one of baselines"
                raise UserError(f"{made_by}; {_named(f'path/to/{recipe}.py')}")
        if file not in algorithms().values():
            raise UserError(f"{self.folder}: its config.yaml names baselines/{file}.py, and there is no such file")
        return module_of(file)


def _imported(name: str) -> list[ModuleType]:
    """The modules of files ``<name>.py`` that are imported already and not part of Shoal."""
    modules = [module for key, module in list(sys.modules.items()) if not key.startswith("shoal.")]
    return [module for module in modules if Path(getattr(module, "__file__", None) or "").stem == name]


def _named(code: str) -> str:
    """How the user has code run that a folder is about."""
    return f'a folder runs no code by itself: file="{code}" of shoal.load, import={code} of a command, names it'


def load(folder: str | Path, file: str | Path | None = None) -> Runs:
    """Open the folder that a training left behind, or is still writing. Nothing in it is run.

    ``file`` is the user's own Python (``path/to/file.py``, or ``package.module``) that made it, or that registers its
    environment or network. Only policies need it, and not if it is imported already.
    """
    runs = Runs(Path(folder), read_config(Path(folder)), file)
    refuse_too_many(runs)
    return runs
