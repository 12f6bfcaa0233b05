"""How well anyone could do on simple_speaker_listener: ``python tools/speaker_bound.py``.

A beam search over the listener's moves, which knows the goal after a number of blind steps (a word spoken at the first
step is heard at the second). It finds a good plan, not always the best one, so that the true optimum may be a little
higher. Printed is the mean return per agent with its standard error; EPyMARL sums it over both agents.
"""

from __future__ import annotations

import numpy as np

from shoal.config.words import Parser

STARTS, STEPS, BEAM = 300, 25, 300
DAMPING, THRUST, DT = 0.25, 5.0, 0.1  # MPE's, mass 1
MOVES = THRUST * np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])


def plan(start: np.ndarray, goal: np.ndarray, blind: int) -> float:
    """The return of the best plan found from ``start [2]`` to ``goal [2]``."""
    pos, vel, total = start[None], np.zeros((1, 2)), np.zeros(1)
    for step in range(STEPS):
        moves = MOVES[:1] if step < blind else MOVES
        vel = (vel[:, None] * (1 - DAMPING) + moves * DT).reshape(-1, 2)
        pos = np.repeat(pos, len(moves), axis=0) + vel * DT
        total = np.repeat(total, len(moves)) - np.square(pos - goal).sum(-1)
        promise = total - 3.0 * np.square(pos + 0.3 * vel - goal).sum(-1)
        best = np.argsort(-promise)[:BEAM]
        pos, vel, total = pos[best], vel[best], total[best]
    return float(total.max())


if __name__ == "__main__":
    Parser(__doc__).parse_args()
    rng = np.random.default_rng(0)
    places = rng.uniform(-1, 1, (STARTS, 2, 2))
    for blind in (0, 1):
        returns = np.array([plan(start, goal, blind) for start, goal in places])
        error = returns.std() / np.sqrt(STARTS)
        mean = returns.mean()
        print(f"goal known after {blind} steps: {mean:.2f} +- {error:.2f} per agent, {2 * mean:.2f} summed")
