"""What an algorithm is: a class with pure methods, written for one run. The library adds the run axis with ``vmap``.

Shapes: ``R`` runs, ``T`` time, ``E`` environments, ``A`` agents, ``O`` observation, ``N`` actions, in that order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import chex
import jax
from flax import struct

from shoal.config.fields import setting, validate_fields
from shoal.envs.base import Env, TimeStep
from shoal.envs.wrappers import AgentId
from shoal.errors import UserError
from shoal.nn.networks import SHARING, policy_of_agent
from shoal.rl.groups import Groups
from shoal.rl.metrics import Metrics
from shoal.rl.returns import DEATHS, earning

Params = Any
Hypers = Any

HEADS = {  # what a policy network's outputs are, and the name of that network in the policy and under `algo`
    "distribution": "actor",  # the parameters of `distributions.policy`
    "vector": "actor",  # the action for `distributions.from_vector` before its tanh, or the scores of its choices
    "values": "q",  # of which `exploration.best` takes the highest
}


class TrainState(struct.PyTreeNode):
    """The state of one run, in two halves. What the library does to a state follows from them.

    A clone copies ``learnt``, a run that diverges keeps the last one that was finite, and several learners of a run
    have one in common. ``slot`` stays where it is: each learner has its part of it, and a clone that moves in goes on
    with it. The arrays of ``slot.envs`` have a leading axis E, which devices may share.
    """

    learnt: Any  # parameters, optimiser, targets, statistics, counters: with `params` and `opt_state` at least
    slot: Any  # `envs`, replay, and the random key: with `key` at least


@dataclass(frozen=True)
class Config:
    """Sizes and switches that every algorithm has: fixed when the program is compiled."""

    total_steps: float = setting(1e6, low=1)  # environment steps of one run
    num_envs: int = setting(16, low=1, divided="evenly")  # E: environments stepped side by side
    rollout_length: int = setting(128, low=1)  # T: steps of each environment between two updates
    sharing: str = setting("shared", choices=SHARING)  # which agents have parameters in common
    agent_id: bool = setting(False)  # append the agent's one-hot number to its observation
    normalise_obs: bool = setting(False)  # observations to mean 0 and deviation 1, by running statistics
    death: str = setting("keeps_return", choices=DEATHS)  # an agent's return ends with the episode, or with its death

    def __post_init__(self) -> None:
        validate_fields("algo.", self, type(self))


class Algorithm:
    """One run of an algorithm on an environment. A copy of a file is edited, or a subclass changes a method."""

    Config: ClassVar[type] = Config
    Hypers: ClassVar[type]
    recipe: ClassVar[str] = ""  # config/<recipe>.yaml
    head: ClassVar[str] = ""  # one of HEADS, for an export to numpy; "" if the policy is none of them
    evolving: tuple[str, ...] = ("lr",)  # the hyperparameters that evolve if none are named
    learning_rates: ClassVar[Mapping[str, tuple[str, ...]]] = {"lr": ()}  # of which parts of `opt_state`; () for all

    def __init__(self, config: Any, env: Env, axis_name: str | None = None) -> None:
        self.config = config
        self.env = AgentId(env) if config.agent_id else env
        self.axis_name = axis_name  # of the learners that train one run together (shoal.rl.learners), if several do
        self.policies = Groups(policy_of_agent(config.sharing, env.group_ids), axis_name)  # who has common parameters
        self.teams = Groups(env.group_ids, axis_name)
        self.setup()

    def setup(self) -> None:
        """Everything static: networks, optimiser, vectorised environment; and checks that need them."""
        raise NotImplementedError(f"{type(self).__name__}.setup")

    def init(self, key: chex.PRNGKey, hypers: Hypers) -> TrainState:
        """The state before the first update."""
        raise NotImplementedError(f"{type(self).__name__}.init")

    def update(self, state: TrainState, hypers: Hypers) -> tuple[TrainState, Metrics]:
        """One rollout and its learning."""
        raise NotImplementedError(f"{type(self).__name__}.update")

    def policy(self, learnt: Any) -> Params:
        """The part of what was learnt that :meth:`act` reads."""
        raise NotImplementedError(f"{type(self).__name__}.policy")

    def act(
        self, policy: Params, memory: Any, timestep: TimeStep, key: chex.PRNGKey, greedy: bool
    ) -> tuple[Any, chex.Array]:
        """How a policy plays outside of training: the memory after, and the environment's action for ``[E, ...]``."""
        raise NotImplementedError(f"{type(self).__name__}.act")

    def initial_memory(self, num_envs: int) -> Any:
        """What :meth:`act` remembers at the start of an episode; nothing without a recurrent policy."""
        return ()

    def init_optimiser(self, params: Params, hypers: Hypers) -> Any:
        """The first ``opt_state`` of some parameters."""
        raise NotImplementedError(f"{type(self).__name__}.init_optimiser")

    def check_divides(self, name: str, what: str, whole: int) -> None:
        """Refuse a ``config.<name>`` that does not divide the ``whole``, which is ``what``."""
        value = getattr(self.config, name)
        if value and whole % value:
            raise UserError(f"algo.{name}={value}: must divide {what} = {whole}")

    def earning(self, alive: chex.Array) -> chex.Array:
        """The agents ``[..., A]`` whose return goes on, of those that are ``alive``: see ``algo.death``."""
        return earning(alive, self.config.death)

    @property
    def returns_end_early(self) -> bool:
        """Whether an agent's return may end before its episode."""
        return self.env.mortal and self.config.death == "ends_return"

    @property
    def steps_per_rollout(self) -> int:
        """Environment steps of one rollout of one learner."""
        return int(self.config.num_envs * self.config.rollout_length)

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update, of all learners."""
        return self.steps_per_rollout

    @property
    def num_updates(self) -> int:
        """Updates that make up ``total_steps``."""
        return max(1, math.ceil(self.config.total_steps / self.steps_per_update))

    def train(self, key: chex.PRNGKey, hypers: Hypers) -> tuple[TrainState, Metrics]:
        """The whole training as one pure function: the last state, and metrics ``[updates]``.

        ``jax.jit(jax.vmap(algorithm.train))(keys, hypers)`` trains several runs.
        """
        state = self.init(key, hypers)
        return jax.lax.scan(lambda s, _: self.update(s, hypers), state, length=self.num_updates)


def algorithm_in(module: ModuleType) -> type[Algorithm]:
    """The algorithm that a file defines; of several the last one."""
    found = _algorithms(module)
    if not found:
        raise UserError(f"{module.__file__}: defines no algorithm, a subclass of shoal.Algorithm")
    return found[-1]


def has_algorithm(module: ModuleType) -> bool:
    """Whether a file defines an algorithm."""
    return bool(_algorithms(module))


def _algorithms(module: ModuleType) -> list[type[Algorithm]]:
    things = [thing for thing in vars(module).values() if isinstance(thing, type) and issubclass(thing, Algorithm)]
    return [thing for thing in things if thing.__module__ == module.__name__]
