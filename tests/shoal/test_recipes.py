"""Recipes for single environments, chosen by ``env=``, and named algorithms; the command line goes over both."""

from __future__ import annotations

from importlib import import_module

import pytest
from omegaconf import OmegaConf

from shoal import envs
from shoal.algorithm import algorithm_in
from shoal.config import compose
from shoal.config.named import CONFIG_DIR, algorithms
from shoal.config.settings import build, check_settings
from tests.conftest import ROOT

FOLDER = ROOT / "config" / "recipes"
ALGORITHMS = algorithms()
FOLDERS = {file.split("/")[1]: file.split("/")[0] for file in ALGORITHMS.values()}
RECIPES = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*/*.yaml"))


def composed(file: str, *words: str):
    """The configuration of an algorithm file, checked."""
    module = import_module(f"shoal.baselines.{FOLDERS[file]}.{file}")
    compose.register(module.Config, module.Hypers, name=file)
    cfg = compose.compose(file, list(words), CONFIG_DIR)
    check_settings(cfg, module.Config, module.Hypers)
    return module, cfg


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_chosen_by_its_environment(recipe):
    name, _, env = recipe.partition("/")  # of a file, or of a named algorithm
    file, words = (ALGORITHMS[name].split("/")[1], [f"algorithm={name}"]) if name in ALGORITHMS else (name, [])
    module, cfg = composed(file, f"env={env}", *words)
    told = OmegaConf.load(FOLDER / f"{recipe}.yaml")
    assert OmegaConf.merge(cfg, told) == cfg  # all that it says is so
    _, plain = composed(file, *words)
    assert cfg != plain or env == plain.env.name
    made = envs.make(cfg.env.name, **cfg.env.kwargs)
    algorithm_in(module)(build(cfg.algo, "algo.", module.Config), made)  # and it fits the environment


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


NAMED = {
    "ippo": {},
    "mappo": {},
    "qmix": {"mixer": "qmix"},
    "vdn": {"mixer": "vdn"},
    "iql": {"mixer": "none"},
    "pqn_vdn": {"mixer": "vdn"},
    "maddpg": {"critic": "central", "twin": False},
    "iddpg": {"critic": "local", "twin": False},
    "matd3": {"critic": "central", "twin": True, "policy_delay": 2},
    "itd3": {"critic": "local", "twin": True, "policy_delay": 2},
    "mad4pg": {"n_step": 3},
    "masac": {"critic": "central"},
    "isac": {"critic": "local"},
}
NUMBERS = {"maddpg": {"target_noise": 0.0}, "matd3": {"target_noise": 0.2}, "itd3": {"target_noise": 0.2}}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_named_algorithm_is_a_yaml_over_its_file(name):
    file = ALGORITHMS[name].split("/")[1]
    module, cfg = composed(file, f"algorithm={name}")
    assert (cfg.algorithm, cfg.file) == (name, ALGORITHMS[name])
    assert NAMED.get(name, {}).items() <= dict(cfg.algo).items()
    assert NUMBERS.get(name, {}).items() <= dict(cfg.hypers).items()
    made = envs.make(cfg.env.name, **cfg.env.kwargs)
    algorithm_in(module)(build(cfg.algo, "algo.", module.Config), made)


def test_every_algorithm_that_the_issue_names_is_there():
    assert set(NAMED) <= set(ALGORITHMS)
