"""Which algorithm file trains on which environments: ``python tools/support.py`` tries all, writes docs/support.md.

A pair is supported if two small updates run and leave finite parameters and losses. A pair that a file refuses is
listed with its reason. ``--files qmix_rnn_mpe,...`` tries some files only and keeps the columns of the others.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType

import jax
import numpy as np

from shoal import envs
from shoal.algorithm import algorithm_in
from shoal.config.words import Parser, some_of
from shoal.envs.base import Continuous, Discrete, Env
from shoal.errors import UserError
from shoal.nn.models import Model
from shoal.run.compile import RUN_ONCE

ROOT = Path(__file__).parent.parent
FILES = (
    "ippo.ippo_ff_mpe",
    "ippo.ippo_rnn_smax",
    "mappo.mappo_ff_vmas",
    "mappo.mappo_rnn_smax",
    "qmix.qmix_rnn_mpe",
    "qmix.pqn_rnn_smax",
    "maddpg.maddpg_ff_mpe",
    "maddpg.mad4pg_ff_mpe",
    "masac.masac_ff_vmas",
)
# One task of every family, and one of every kind of action.
TASKS: tuple[tuple[str, dict], ...] = (
    ("mpe/simple_spread", {}),
    ("mpe/simple_spread", {"continuous": True}),
    ("mpe/simple_speaker_listener", {}),
    ("mpe/simple_world_comm", {"multi_discrete": True}),
    ("jaxmarl_mpe/simple_crypto", {}),
    ("matrix/hidden", {}),
    ("vmas/navigation", {}),
    ("vmas/navigation", {"continuous": False}),
    ("smax/3m", {}),
    ("smax/smacv2_5_units", {}),
    ("jaxmarl_smax/3m", {}),
    ("overcooked/cramped_room", {}),
    ("overcooked_v2/cramped_room", {}),
    ("hanabi/two_players", {}),
    ("mabrax/ant_4x2", {}),
    ("jaxnav/grid", {}),
    ("coin_game/coin_game", {}),
    ("switch_riddle/switch_riddle", {}),
    ("storm/np", {}),
    ("pettingzoo/sisl.multiwalker_v9", {}),
    ("pettingzoo/sisl.pursuit_v5", {}),
    ("pettingzoo/butterfly.knights_archers_zombies_v11", {}),
)


def actions(env: Env) -> str:
    """The kind of action, in words."""
    kind = {Discrete: "discrete", Continuous: "continuous"}.get(type(env.action_space), "multi-discrete")
    return kind + (", sizes differ" if len(set(env.action_space.sizes)) > 1 else "")


def trains(module: ModuleType, env: Env) -> str:
    """``yes``, or why not."""
    base = module.Config()
    fields = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
    small = {
        name: dataclasses.replace(value, widths=(8,), hidden=8)
        for name, value in fields.items()
        if isinstance(value, Model)
    }
    wanted = {"num_envs": 2, "rollout_length": 8, "minibatches": 2, "epochs": 1, "total_steps": 32, "sharing": "group"}
    wanted |= {"batch_size": 2, "buffer_size": 64, "learning_starts": 0, "gradient_steps": 1}
    sizes = {name: value for name, value in wanted.items() if name in fields}
    try:
        config = dataclasses.replace(base, **small, **sizes)
        arguments = (jax.random.PRNGKey(0), module.Hypers())
        state, metrics = (
            jax.jit(algorithm_in(module)(config, env).train).lower(*arguments).compile(RUN_ONCE)(*arguments)
        )
    except UserError as error:
        return f"no: {str(error).split(';')[0].split(': ', 1)[1]}"
    finite = [np.isfinite(x).all() for x in jax.tree.leaves((state.learnt.params, metrics["loss"]))]
    return "yes" if all(finite) else "NaN"


def main() -> None:
    parser = Parser(__doc__)
    families = {name.split("/")[0] for name, _ in TASKS}
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "support.md")
    parser.add_argument(
        "--only", type=some_of(families), default="", help="families, comma-separated; the other rows of the table stay"
    )
    parser.add_argument(
        "--files",
        type=some_of(name.split(".")[1] for name in FILES),
        default="",
        help="files, comma-separated; the other columns of the table stay",
    )
    options = parser.parse_args()
    only = options.only.split(",") if options.only else []
    forgotten = {name.split("/")[0] for name in envs.list()} - {name.split("/")[0] for name, _ in TASKS}
    assert not forgotten, f"no task of {forgotten}"
    modules = {name.split(".")[1]: importlib.import_module(f"shoal.baselines.{name}") for name in FILES}
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    kept = {line.split(" | ")[0]: line for line in lines if line.startswith("| `")}
    header = next((line.strip("| ").split(" | ") for line in lines if line.startswith("| environment")), [])
    columns = {name.strip("`"): i for i, name in enumerate(header)}
    tried = options.files.split(",") if options.files else list(modules)
    rows = []
    for name, kwargs in TASKS:
        title = " ".join([f"| `{name}`", *(f"`{key}={value}`" for key, value in kwargs.items())])
        if not only or name.split("/")[0] in only:
            env = envs.make(name, **kwargs)
            before = kept.get(title, "").strip("| ").split(" | ")
            said = [trains(module, env) if file in tried else before[columns[file]] for file, module in modules.items()]
            facts = [str(env.num_agents), ", ".join(env.group_names), actions(env), *said]
            kept[title] = f"{title} | {' | '.join(facts)} |"
            print(kept[title], flush=True)
        rows += [kept[title]] if title in kept else []
    names = [f"`{name}`" for name in modules]
    options.out.write_text(
        "# What trains on what\n\nWritten by `python tools/support.py`: two updates of tiny size each, parameters "
        "and losses finite. One task of every family, and one of every kind of action.\n\n"
        f"| environment | agents | teams | actions | {' | '.join(names)} |\n|{'---|' * (4 + len(names))}\n"
        + "\n".join(rows)
        + "\n"
    )


if __name__ == "__main__":
    main()
