"""Recipes for single environments: ``env=`` chooses them, and the command line goes over them."""

from __future__ import annotations

from importlib import import_module

import pytest
from omegaconf import OmegaConf

import envs
from shoal import config
from tests.conftest import ROOT

FOLDER = ROOT / "config" / "recipes"
RECIPES = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*/*.yaml"))


def composed(file: str, *words: str):
    """The configuration of an algorithm file, checked."""
    module = import_module(f"baselines.{file.split('_')[0]}.{file}")
    config._register_schema(module.Config, module.Hypers, name=file)
    cfg = config._compose(file, list(words), config.CONFIG_DIR)
    config.check_settings(cfg, module.Config, module.Hypers)
    return module, cfg


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_chosen_by_its_environment(recipe):
    file, _, env = recipe.partition("/")
    module, cfg = composed(file, f"env={env}")
    told = OmegaConf.load(FOLDER / f"{recipe}.yaml")
    assert OmegaConf.merge(cfg, told) == cfg  # all that it says is so
    _, plain = composed(file)
    assert cfg != plain or env == plain.env.name
    made = envs.make(cfg.env.name, **cfg.env.kwargs)
    module.make(config.build(cfg.algo, "algo.", module.Config), made)  # and it fits the environment


def test_the_command_line_goes_over_a_recipe():
    _, cfg = composed("ippo_ff_mpe", "env=matrix/climbing", "hypers.hysteresis=0.5", "algo.sharing=shared")
    assert (cfg.hypers.hysteresis, cfg.algo.sharing, cfg.hypers.ent_coef) == (0.5, "shared", 0.3)


def test_other_environments_have_the_files_recipe():
    _, cfg = composed("ippo_ff_mpe", "env=matrix/penalty")
    assert cfg.hypers == composed("ippo_ff_mpe")[1].hypers


def test_every_recipe_that_the_issue_names_is_there():
    tasks = {recipe.partition("/")[2] for recipe in RECIPES}
    own = {composed(file)[1].env.name for file in ("ippo_ff_mpe", "ippo_rnn_smax", "mappo_ff_vmas", "mappo_rnn_smax")}
    wanted = {f"mpe/simple_{name}" for name in ("spread", "reference", "speaker_listener", "tag")}
    wanted |= {"smax/3m", "smax/2s3z", "smax/5m_vs_6m", "smax/smacv2_5_units", "overcooked/cramped_room"}
    wanted |= {"mabrax/ant_4x2", "mabrax/halfcheetah_6x1", "hanabi/two_players", "matrix/climbing"}
    assert wanted <= tasks | own
