"""MPE, the multi-agent particle environments, as ``mpe/simple_spread`` and so on.

The same state and action give the same next state, observations and rewards as in JaxMARL's ``step_env`` and, where
that has the task, in PettingZoo's ``mpe2`` (tests/envs/test_mpe.py compares with both). Names, order and numbering of
agents and actions are JaxMARL's. Where the two disagree, the default is JaxMARL's, so that curves compare, and
``rules="mpe2"`` chooses the other:

=================  =======================================  =========================================================
task               jaxmarl 0.2.0                            mpe2 1.1.1
=================  =======================================  =========================================================
simple_tag,        landmarks spawn in [-1, 1]               landmarks spawn in [-0.9, 0.9]
simple_world_comm
simple_tag with    adversaries see the velocity of the      every agent sees the velocities of all other good agents
2 good or more     last good agent, good agents none
simple_tag with    all good agents pay for the catches of   each good agent pays for its own catches
2 good or more     the last one
simple_world_comm  adversaries see the velocities of the    every agent sees the velocities of all other good agents
without 2 good     last two others, good agents of the
                   last other, whichever team
simple_crypto      eve, alice, bob                          eve, bob, alice
simple_crypto      colours are 0 and 255                    colours are 0 and 1
simple_crypto      nobody is rewarded if all are silent     whoever is silent is left out of the rewards
=================  =======================================  =========================================================

They agree elsewhere. Further, mpe2 clips continuous actions into their bounds, JaxMARL and this do not; two entities in
exactly one place are NaN in both and push each other nowhere here; JaxMARL's own time limit is a step late, our
``TimeLimit`` is not. ``simple_facmac`` exists in JaxMARL only (see its module). Left out are noise on
actions and messages, which no task uses, and mpe2's curriculum, neighbour and early-success options.
"""

from shoal.envs.mpe.base import State
from shoal.envs.mpe.simple import Simple
from shoal.envs.mpe.simple_adversary import SimpleAdversary
from shoal.envs.mpe.simple_crypto import SimpleCrypto
from shoal.envs.mpe.simple_facmac import SimpleFacmac
from shoal.envs.mpe.simple_push import SimplePush
from shoal.envs.mpe.simple_reference import SimpleReference
from shoal.envs.mpe.simple_speaker_listener import SimpleSpeakerListener
from shoal.envs.mpe.simple_spread import SimpleSpread
from shoal.envs.mpe.simple_tag import SimpleTag
from shoal.envs.mpe.simple_world_comm import SimpleWorldComm
from shoal.envs.registry import Factory, register

__all__ = ["State", "register_all"]


def _facmac(predators: int) -> Factory:
    """The paper's sizes: a prey and two landmarks for every three predators."""

    def make(continuous: bool = True) -> SimpleFacmac:
        return SimpleFacmac(predators // 3, predators, 2 * predators // 3, score_function="min", continuous=continuous)

    return make


def register_all() -> None:
    """Make every task known as ``mpe/<task>``."""
    tasks: dict[str, Factory] = {
        "simple": Simple,
        "simple_adversary": SimpleAdversary,
        "simple_crypto": SimpleCrypto,
        "simple_facmac": SimpleFacmac,
        "simple_facmac_3a": _facmac(3),
        "simple_facmac_6a": _facmac(6),
        "simple_facmac_9a": _facmac(9),
        "simple_push": SimplePush,
        "simple_reference": SimpleReference,
        "simple_speaker_listener": SimpleSpeakerListener,
        "simple_spread": SimpleSpread,
        "simple_tag": SimpleTag,
        "simple_world_comm": SimpleWorldComm,
    }
    for name, factory in tasks.items():
        register(f"mpe/{name}", factory)
