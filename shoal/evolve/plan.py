"""An evolution as a plan: populations on the run axis, rounds instead of chunks."""

from __future__ import annotations

import math
from pathlib import Path

import jax
import numpy as np
from omegaconf import DictConfig

from shoal.algorithm import Algorithm, Hypers
from shoal.config.schemes import Halving
from shoal.config.settings import SHARES
from shoal.errors import UserError
from shoal.evolve.rules import first_values, make_rules, parse
from shoal.folder.layout import swept_values
from shoal.nn import elastic
from shoal.run import sweep
from shoal.run.placement import Placement
from shoal.run.plan import Plan


def evolving_plan(
    algorithm: Algorithm, hypers: Hypers, swept: dict, cfg: DictConfig, folder: Path, placement: Placement
) -> Plan:
    """A training of ``seeds`` populations: rounds instead of chunks, of which several make a chunk."""
    for name in swept_values(swept):
        raise UserError(f"sweep.{name}: evolution chooses the values itself; evolve.hypers.{name}={{min: a, max: b}}")
    params = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), hypers)).learnt.params  # shapes alone, of any key
    flags = (elastic.has(params), elastic.has_activation(params))
    if cfg.algo.get("elastic_batches"):
        shares = tuple(name for name in SHARES if hasattr(hypers, name))
        algorithm.evolving = algorithm.evolving + shares
    rules = make_rules(parse(cfg.evolve), cfg.population, algorithm, hypers, *flags)
    if algorithm.env.host and isinstance(rules.scheme, Halving):
        raise UserError("evolve=halving: begins trainings amid others, which environments on the host cannot")
    members = rules.population
    sweep.limit_runs(cfg.seeds * members, f"seeds={cfg.seeds}, population={members}")
    if isinstance(cfg.runs_per_batch, int) and cfg.runs_per_batch % members:
        raise UserError(f"runs_per_batch={cfg.runs_per_batch}: must be a multiple of population={members}")
    seeds = np.arange(cfg.seed, cfg.seed + cfg.seeds)
    runs = sweep.Runs(
        seed=np.repeat(seeds, members),
        point=np.zeros(len(seeds) * members, int),
        points=[{}],
        hypers=first_values(rules, hypers, seeds.tolist()),
        member=np.tile(np.arange(members), len(seeds)),
    )
    updates, rounds = chunk_of_rounds(algorithm.num_updates, rules.scheme.rounds, cfg)
    chunks = math.ceil(algorithm.num_updates / updates)
    return Plan(algorithm, runs, cfg, folder, updates, chunks, placement, rules, rounds)


def chunk_of_rounds(num_updates: int, rounds: int, cfg: DictConfig) -> tuple[int, int]:
    """The updates and the rounds of a chunk; a round's updates, and how many rounds there are, do not depend on chunks.

    A chunk is a whole share of the rounds, so that no round follows the last one to fill it up; there may be more
    chunks than were asked for.
    """
    if cfg.get("updates_per_chunk"):  # a training that goes on; folders of before say no rounds
        return cfg.updates_per_chunk, cfg.get("rounds_per_chunk") or math.ceil(rounds / cfg.chunks)
    per_round = math.ceil(num_updates / rounds)
    total = math.ceil(num_updates / per_round)
    rounds_per_chunk = next(n for n in range(math.ceil(total / cfg.chunks), 0, -1) if total % n == 0)
    return rounds_per_chunk * per_round, rounds_per_chunk
