"""What an algorithm is to the rest of the library, and the shape legend that all files share.

Shapes: ``R`` runs, ``T`` time, ``E`` environments, ``A`` agents, ``O`` observation, ``N`` actions, in that order.
An algorithm is written for one run; the library adds the run axis with ``vmap``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import chex
import jax

from shoal.envs.base import Env

Params = Any
TrainState = Any  # a flax.struct.dataclass with at least `params` and `opt_state`
Hypers = Any
Metrics = dict[str, chex.Array]


HEADS = {  # what a policy network's outputs are, and the name of that network in the policy and under `algo`
    "distribution": "actor",  # the parameters of `distributions.policy`
    "vector": "actor",  # the action for `distributions.from_vector` before its tanh, or the scores of its choices
    "values": "q",  # of which `exploration.best` takes the highest
}


class Acting(NamedTuple):
    """How to play a policy: for evaluation, rendering and export."""

    initial_carry: Callable[[int], Any]  # (num_envs) -> carry, the memory of a recurrent policy, () for others
    act: Callable[..., tuple[Any, chex.Array]]  # (policy, carry, timestep, key, greedy) -> carry, env action
    head: str = ""  # one of HEADS, for an export to numpy; "" if it is none of them


@dataclass(frozen=True)
class Algorithm:
    """One run of an algorithm as pure functions."""

    init: Callable[[chex.PRNGKey, Hypers], TrainState]  # parameters, optimiser, env state, key, counters
    update: Callable[[TrainState, Hypers], tuple[TrainState, Metrics]]  # one rollout and its learning
    policy: Callable[[TrainState], Params]  # what `act` needs: the parameters and, if used, the normalisation
    acting: Acting
    env: Env
    steps_per_update: int  # environment steps of one update
    num_updates: int  # updates that make up `total_steps`
    # For evolution (shoal.evolve.select).
    init_optimiser: Callable[[Params, Hypers], Any] | None = None  # the first `opt_state` of some parameters
    inherited: tuple[str, ...] = ("params", "opt_state", "target", "obs_stats", "value_stats")  # what a clone copies
    evolving: tuple[str, ...] = ("lr",)  # the hyperparameters that evolve if none are named
    learning_rates: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"lr": ()})  # of which part of
    # `opt_state`; () for all of it

    def learnt(self, state: TrainState) -> dict[str, Any]:
        """What a clone copies of a state; where a run diverges, all of it stays as it was before."""
        return {name: getattr(state, name) for name in self.inherited if hasattr(state, name)}


def make_train(algorithm: Algorithm) -> Callable[[chex.PRNGKey, Hypers], tuple[TrainState, Metrics]]:
    """The whole training as one pure function ``train(key, hypers) -> state, metrics [updates]``."""

    def train(key: chex.PRNGKey, hypers: Hypers) -> tuple[TrainState, Metrics]:
        state = algorithm.init(key, hypers)
        return jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=algorithm.num_updates)

    return train
