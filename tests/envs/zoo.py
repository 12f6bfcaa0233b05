"""A PettingZoo environment in which everything can be told from a number: ``pettingzoo/tests.envs.zoo``.

It counts its steps. Of its three agents ``scout_1`` dies at step 2. The seed says how an episode ends: at step 4 by
itself (even), or cut at step 5 (odd). Workers import this file, so it needs nothing but PettingZoo.
"""

from __future__ import annotations

import os

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

DIES, ENDS, CUT = 2, 4, 5
LOOKS = {"scout_0": 4, "scout_1": 4, "runner_0": 6}


class Zoo(ParallelEnv):
    metadata = {"name": "zoo"}  # noqa: RUF012

    def __init__(self, actions="discrete", masks="", looks="vector", fails=0, exits=0, own_state=False):
        self.possible_agents = list(LOOKS)
        self.kind, self.masks, self.looks, self.fails, self.exits = actions, masks, looks, fails, exits
        if own_state:
            self.state = lambda: np.array([self.steps, self.seed % 7], np.float32)

    def observation_space(self, agent):
        if self.looks == "picture":
            return spaces.Box(0, 255, (4, 5, 3), np.uint8)
        vector = spaces.Box(-np.inf, np.inf, (LOOKS[agent],), np.float64)
        if self.masks != "in observation":
            return vector
        return spaces.Dict({"observation": vector, "action_mask": spaces.MultiBinary(3)})

    def action_space(self, agent):
        return {
            "discrete": spaces.Discrete(3 if agent == "runner_0" else 2, start=1),
            "multi": spaces.MultiDiscrete([2, 3] if agent == "runner_0" else [4]),
            "box": spaces.Box(-2.0, np.array([1.0] * (3 if agent == "runner_0" else 1)), dtype=np.float64),
            "endless": spaces.Box(-np.inf, np.inf, (1,)),
        }[self.kind]

    def reset(self, seed=None, options=None):
        self.agents, self.steps, self.seed, self.last = list(self.possible_agents), 0, seed, {}
        return self._seen(), self._infos()

    def step(self, actions):
        assert set(actions) == set(self.agents)
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), (agent, action)
        self.steps, self.last = self.steps + 1, {agent: float(np.sum(action)) for agent, action in actions.items()}
        if self.steps == self.fails:
            raise RuntimeError("the wheels\ncame off")
        if self.steps == self.exits:
            os._exit(3)
        seen, infos = self._seen(), self._infos()
        rewards = {agent: self.steps + 10 * self.last[agent] for agent in self.agents}
        over = self.steps == ENDS and self.seed % 2 == 0
        ended = {agent: over or (agent == "scout_1" and self.steps == DIES) for agent in self.agents}
        cut = dict.fromkeys(self.agents, self.steps == CUT)
        self.agents = [agent for agent in self.agents if not (ended[agent] or cut[agent])]
        return seen, rewards, ended, cut, infos

    def mask(self, agent):
        size = 3 if agent == "runner_0" else 2
        return (np.arange(size) + self.steps) % 2 == 0

    def _infos(self):
        return {a: {"action_mask": self.mask(a)} if self.masks == "in info" else {} for a in self.agents}

    def _seen(self):
        return {agent: self._look(agent) for agent in self.agents}

    def _look(self, agent):
        if self.looks == "picture":
            return np.full((4, 5, 3), 51 * self.steps, np.uint8)
        row = [self.steps, self.seed % 1000, list(LOOKS).index(agent), self.last.get(agent, -1.0), 7.0, 8.0]
        vector = np.array(row[: LOOKS[agent]])
        return {"observation": vector, "action_mask": self.mask(agent)} if self.masks == "in observation" else vector


parallel_env = Zoo
