"""Simple spread: agents cover all landmarks without running into each other."""

from __future__ import annotations

from shoal.envs.mpe.world import relative
from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import count
from shoal.envs.vmas.entities import Agent, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.placement import uniform
from shoal.envs.vmas.world import World


class SimpleSpread(Scenario):
    """All lose, for each agent, each landmark's distance to the nearest agent, and 2 for each pair that touches.

    Hidden: nothing.
    """

    def __init__(self, n_agents: int = 3, obs_agents: bool = True):
        count("n_agents", n_agents)
        self.obs_agents = obs_agents
        agents = [Agent(name=f"agent_{i}", shape=Sphere(0.15)) for i in range(n_agents)]
        landmarks = [Landmark(name=f"landmark {i}", collide=False, colour="black") for i in range(n_agents)]
        super().__init__(World(landmarks, agents))

    def spawn(self, key):
        return {"pos": uniform(key, self.world.size, (-1.0, -1.0), (1.0, 1.0))}

    def reward(self, key, state):
        n = self.num_agents
        far = distance(state.pos[:n, None], self.pos(state)).min(axis=1)  # [landmarks]
        touching = self.world.overlap(state, self.bodies[:, None], self.bodies).sum() - n  # each touches itself
        return state, self.shared(-n * far.sum() - touching), {}

    def observe(self, key, state):
        pos, n = self.pos(state), self.num_agents
        return self.beside(pos, self.vel(state), relative(pos, state.pos[:n])[:, : None if self.obs_agents else 2 * n])
