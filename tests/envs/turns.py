"""Agents that take turns, for ``pettingzoo/tests.envs.turns``: what the protocol cannot play."""

from pettingzoo import AECEnv


class Turns(AECEnv):
    metadata = {"name": "turns", "is_parallelizable": False}  # noqa: RUF012


env = Turns
