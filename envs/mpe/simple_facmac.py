"""simple_facmac: predators with limited sight hunt scripted prey, as JaxMARL has it.

JaxMARL took the task from FACMAC (Peng et al. 2021, https://arxiv.org/abs/2003.06709), whose prey flees. This one
follows JaxMARL's ``step_env`` exactly, so that results compare, and not the paper:

- prey ``i`` reasons from the position and size of entity ``adversaries - 1 + 2 i``, not from its own;
- it prefers a place that *touches* an adversary (the paper: that does not) and rests if it finds none;
- ``score="min"`` looks at the first adversary, not at the nearest one;
- directions are drawn as ``pi * sqrt(U(0, 2))``, all prey share one draw, and its force is not scaled by ``accel``;
- an agent sees either all landmarks or none, and all other agents or none, by the root of their summed squares;
- adversaries see the velocity of the last prey only, and the prey's rewards read the catches of the last prey.

The prey's own actions are ignored; the agents are listed all the same, as in JaxMARL.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.simple_tag import SimpleTag
from shoal.envs.mpe.world import relative, squared_distances, total
from shoal.envs.options import check_choice, check_count
from shoal.errors import UserError

CANDIDATES = 100  # places that a prey considers
WAYPOINTS = 5
BLOCKED = -9999999.0


class SimpleFacmac(SimpleTag):
    """simple_tag with scripted prey and a ``view_radius`` (-1: none); ``score_function`` is how prey chooses."""

    name = "mpe/simple_facmac"

    def __init__(
        self,
        num_good_agents: int = 1,
        num_adversaries: int = 3,
        num_landmarks: int = 2,
        view_radius: float = 1.5,
        score_function: str = "sum",
        continuous: bool = True,
    ):
        check_count("num_landmarks", num_landmarks, 0)
        if isinstance(view_radius, str | bool) or (view_radius < 0 and view_radius != -1):
            raise UserError(f"env.kwargs.view_radius={view_radius!r}: must be at least 0, or -1 for no limit")
        self.view_radius = np.inf if view_radius == -1 else float(view_radius)
        self.score_function = check_choice("score_function", score_function, ("sum", "min"))
        super().__init__(num_good_agents, num_adversaries, num_landmarks, continuous=continuous)
        self.obs_sizes = (max(self.obs_sizes),) * self.num_agents  # JaxMARL fills the prey's with zeros
        entities = self.num_agents + num_landmarks
        self.prey_stands_at = np.minimum(self.num_adversaries - 1 + 2 * np.arange(self.num_good), entities - 1)

    def thrust(self, key, state, thrust):
        prey = self._prey_thrust(key, jnp.concatenate([state.pos, state.landmarks]))
        return jnp.concatenate([thrust[: self.num_adversaries], prey])

    def _prey_thrust(self, key, entities):
        """``[good, 2]``: towards the best of the candidates drawn from a disc."""
        key, length_key = jax.random.split(key)
        _, angle_key = jax.random.split(key)
        length = jnp.sqrt(jax.random.uniform(length_key, (CANDIDATES,)))
        angle = jnp.pi * jnp.sqrt(jax.random.uniform(angle_key, (CANDIDATES,), maxval=2.0))
        direction = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
        places = length[:, None] * direction  # [candidates, 2]
        forces = []
        for i in self.prey_stands_at:
            score = self._score(places, entities, i)
            best = jnp.argmax(score)
            forces.append(jnp.where(score[best] < 0, 0.0, places[best]))
        return jnp.stack(forces)

    def _score(self, places, entities, i):
        """``[candidates]``: how good entity ``i`` finds it to go to ``places``."""
        bad, radius = self.num_adversaries, self.world.radius
        if self.score_function == "min":
            squares = squared_distances(entities[i] + places, entities[:bad])
            reachable = jnp.any(squares < (radius[:bad] + radius[i]) ** 2, axis=1)
            return jnp.where(reachable, 0.0, BLOCKED) + jnp.sqrt(squares[:, 0])
        reachable = True
        for step in range(1, WAYPOINTS + 1):
            squares = squared_distances(entities[i] + places * (step / WAYPOINTS), entities)
            reachable &= jnp.any(squares < (radius + radius[i]) ** 2, axis=1)
        return jnp.where(reachable, 0.0, BLOCKED) + total(jnp.sqrt(squares[:, :bad]))

    def observe(self, state):
        agents, bad, landmarks = self.num_agents, self.num_adversaries, 2 * self.world.landmarks
        seen = relative(state.pos, state.landmarks)
        to_landmarks, to_others = seen[:, :landmarks], seen[:, landmarks:]
        # the root keeps XLA from summing anew for every entry that the sum decides about
        sees_others = jnp.sqrt(total(to_others**2)) <= self.view_radius  # [A]
        if landmarks:
            sees_landmarks = jnp.sqrt(total(to_landmarks**2)) <= self.view_radius
            to_landmarks = jnp.where(sees_landmarks[:, None], to_landmarks, 0.0)
        to_others = jnp.where(sees_others[:, None], to_others, 0.0)
        prey_vel = jnp.where((sees_others & (np.arange(agents) < bad))[:, None], state.vel[-1], 0.0)
        return jnp.concatenate([state.vel, state.pos, to_landmarks, to_others, prey_vel], axis=1)
