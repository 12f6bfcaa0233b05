"""Means over groups of agents: those of one policy, or of one team."""

from __future__ import annotations

from dataclasses import dataclass

import chex
import jax.numpy as jnp
import numpy as np

from shoal.rl import learners


@dataclass(frozen=True, eq=False)
class Groups:
    """Which group each agent belongs to. All means are over the entries of all learners of a run."""

    ids: np.ndarray  # [A]: the index of each agent's group
    axis_name: str | None = None  # of the learners (shoal.rl.learners)

    @property
    def count(self) -> int:
        """``G``: the number of groups."""
        return int(self.ids.max()) + 1

    def mean(self, x: chex.Array, where: chex.Array) -> chex.Array:
        """``[G]``: the mean of ``x [..., A]`` over each group's entries ``where [..., A]`` holds; 0 if there are none.

        With several learners it is one learner's part: the mean of the parts is the mean over all of their entries.
        """
        if self.count == 1:
            return (jnp.where(where, x, 0.0).sum() / self._divisor(where.sum()))[None]
        member = (np.arange(self.count)[:, None] == self.ids).astype(np.float32)  # [G, A]
        over = tuple(range(x.ndim - 1))
        totals = jnp.where(where, x, 0.0).sum(over)  # [A]
        return (member * totals).sum(-1) / self._divisor((member * where.sum(over)).sum(-1))

    def mean_of_all(self, x: chex.Array, where: chex.Array) -> chex.Array:
        """:meth:`mean` with the parts of all learners together."""
        return learners.mean(self.mean(x, where), self.axis_name)

    def normalise(self, x: chex.Array, where: chex.Array) -> chex.Array:
        """``x [..., A]`` with mean 0 and deviation 1 in each group, by the entries that ``where [..., A]`` holds."""
        centred = x - self.mean_of_all(x, where)[self.ids]
        variance = self.mean_of_all(jnp.square(centred), where)[self.ids]
        return centred / jnp.sqrt(variance + 1e-8)

    def _divisor(self, count: chex.Array) -> chex.Array:
        """What a learner divides its sum by: the entries that each learner has on average.

        A count that is known while the program is traced is the same for all, which saves an exchange.
        """
        count = count.astype(np.float32)
        count = count if isinstance(count, np.ndarray | np.generic) else learners.mean(count, self.axis_name)
        return jnp.where(count > 0, count, 1.0)
