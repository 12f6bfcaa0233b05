"""An environment that is only given agent by agent, though its agents act at once: ``pettingzoo/tests.envs.aec``."""

from mpe2.simple_spread_v3 import env

__all__ = ["env"]
