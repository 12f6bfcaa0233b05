"""Football: two teams, a ball and two goals; either team learns or is scripted (envs/vmas/football_planner.py)."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario, State
from shoal.envs.vmas.football_planner import Moving
from shoal.envs.vmas.geometry import Vec, distance
from shoal.envs.vmas.scenarios._football import Options, Team, ball_of, blue_and_red, blues_and_reds, marks, walls
from shoal.envs.vmas.world import World

SHOT = 2.67  # what a shot is multiplied with, beside u_shoot_multiplier
BOUNCE, FAST = 0.05, 0.3  # the force that keeps the ball off the edges, and the speed along y at which it ends
RESTING = 1e-6  # the speed of a ball that waits for somebody
TOUCHING = 0.01


class Football(Scenario):
    """A team earns ``scoring_reward`` for a goal and loses as much for one against it; if ``dense_reward`` also what
    the ball came closer to the goal, and what the closest player came closer to the ball while that lies far away.

    Reds see and act mirrored. With ``ai_blue_agents`` reds learn against scripted blues, at which VMAS fails.

    Hidden: ``force [W, 2]`` of all players and the ball in the last step; of the ``T`` teams that learn
    ``dist_ball_to_goal [T]`` and ``min_agent_dist_to_ball [T]`` (those of the reset unless ``dense_reward``); of the
    ``P`` scripted players ``target_pos`` and ``target_pos_rel``, ``[P, 2]``: where they wanted to go, in the world and
    from the ball.
    """

    terminates = True
    position = None
    horizon = 500
    options_type = Options

    def __init__(self, options: Options):
        self.options, self.pitch = options, options.pitch
        blues, reds = blues_and_reds(options)
        self.blue, self.red = blue_and_red(options, blues, reds)
        self.learning = tuple(team for team in (self.blue, self.red) if team.learns)
        self.scripted = next((team for team in (self.blue, self.red) if team.planner), None)
        self.planner: Any = self.scripted and self.scripted.planner
        ways = np.array([team.way for team in self.learning], np.float32)
        self.goals = np.stack([ways * (self.pitch.half_length + options.ball_size / 2), 0 * ways], axis=1)  # [T, 2]
        self.side = np.repeat(np.arange(len(ways)), [len(team.rows) for team in self.learning])  # [A] of T

        lines, places, turns = zip(*walls(self.pitch), strict=True)
        points = marks(options, blues, reds)
        self.places = np.pad(np.array(places, np.float32), ((0, len(points)), (0, 0)))  # [L, 2]
        self.turns = np.pad(np.array(turns, np.float32), (0, len(points)))  # [L]
        self.start, self.ball = len(self.turns), len(self.turns) + len(blues) + len(reds)
        super().__init__(
            World(
                [*lines, *points],
                [*blues, *reds, ball_of(options)],
                substeps=2,
                drag=0.05,
                x_semidim=self.pitch.half_length + options.goal_depth - options.agent_size,
                y_semidim=self.pitch.half_width - options.agent_size,
            )
        )
        mirrored = np.isin(np.arange(len(self.world.agents)), self.red.rows) & self.red.learns
        signs = np.array([-1, 1, -1, 1], np.float32)[: self.u_size]  # of x and of the torque
        self.mirror = np.where(mirrored[:, None], signs, np.float32(1))  # [W, U]

    # ---------------------------------------------------------------------------------------------------- the start

    def spawn(self, key):
        place_key, *order_keys = jax.random.split(key, 3)
        teams = (self.blue, self.red)
        draw = jax.random.uniform(place_key, (sum(len(team.rows) for team in teams) * 2,)).reshape(-1, 2)
        pitch, places, turns = self.pitch, [], []
        for team, order_key in zip(teams, order_keys, strict=True):
            mine, n = draw[team.rows], len(team.rows)
            if team.formation:
                slots = jnp.asarray(self.formation(n) * np.array([-team.way, 1], np.float32))
                slots = jax.random.permutation(order_key, slots) if self.options.randomise_formation_indices else slots
                places.append(slots + (mine - 0.5) * self.options.formation_noise)
            else:
                left = pitch.agent_size * team.way - (pitch.half_length if team.way > 0 else 0.0)
                room = np.array([pitch.half_length, 2 * pitch.half_width], np.float32)
                places.append(mine * room + np.array([left, -pitch.half_width], np.float32))
            turns.append(np.full(n, 0.0 if team.formation or team.way > 0 else np.pi, np.float32))
        pos = jnp.concatenate([self.places, *places, np.zeros((1, 2))])
        return {"pos": pos, "rot": np.concatenate([self.turns, *turns, np.zeros(1, np.float32)])}

    def formation(self, n: int) -> np.ndarray:
        """``[n, 2]``: the places of a team, x away from the middle, column by column."""
        end = self.pitch.half_length + self.pitch.goal_depth
        xs = np.linspace(0, end, n // self.options.formation_agents_per_column + 3)[1:-1]
        slots = []
        for x, first in zip(xs, range(0, n, self.options.formation_agents_per_column), strict=False):
            size = min(self.options.formation_agents_per_column, n - first)
            ys = np.linspace(self.pitch.half_width, -self.pitch.half_width, size + 2)[1:-1]
            slots += [(x, y) for y in ys]
        return np.array(slots, np.float32).reshape(n, 2)

    def remember(self, state, given):
        values = {"force": jnp.zeros((len(self.world.agents), 2)), **self.distances(state)}
        if self.scripted:
            nowhere = jnp.zeros((len(self.scripted.rows), 2))
            values |= {"target_pos": nowhere, "target_pos_rel": nowhere}
        return values

    # --------------------------------------------------------------------------------------------------- the actions

    def control(self, key, state, u):
        return self.play(self.draw(key), state, u)

    def draw(self, key: chex.PRNGKey) -> chex.Array:
        """``[P, n]``: the normals that scripted players need in a step."""
        shape = (len(self.scripted.rows), self.planner.draws) if self.scripted else (0, 0)
        return jax.random.normal(key, (shape[0] * shape[1],)).reshape(shape)

    def play(self, normals: chex.Array, state: State, u: chex.Array) -> tuple[State, chex.Array]:
        """The actions ``[W, U]`` of all, and what scripted players keep in mind; ``u`` are those of the policies."""
        u = u * self.mirror
        blue, red = u[self.blue.rows], u[self.red.rows]
        if self.scripted:
            state, moves = self.script(normals, state)
            blue, red = (moves, red) if self.scripted is self.blue else (blue, moves)
        ball = self.bounce(state)
        if self.options.enable_shooting:
            ball = ball + self.kick(state, jnp.concatenate([blue, red])[:, 3])
        u = jnp.concatenate([blue, red, jnp.pad(ball, (0, self.u_size - 2))[None]])
        return state.remember(force=u[:, :2]), u

    def script(self, normals: chex.Array, state: State) -> tuple[State, chex.Array]:
        """The actions ``[P, U]`` of the scripted players."""
        assert self.scripted is not None
        rows, planner = self.scripted.rows, self.planner
        places = self.start + rows
        players = Moving(Vec.of(state.pos[places]), Vec.of(state.vel[places]))
        ball = Moving(Vec.of(state.pos[self.ball]), Vec.of(state.vel[self.ball]))
        aims = Vec.of(state["target_pos"]), Vec.of(state["target_pos_rel"])
        plan, target_rel = planner.plan(normals, players, ball, *aims)
        moves = planner.follow(plan, players).array
        if self.sizes[rows[0]] > 2:  # turns to where it looked first, and never shoots
            off = wrapped(-state.rot[places])
            turn = jnp.where(jnp.abs(off) < np.pi / 2, jnp.sin(off), jnp.sign(off))
            moves = jnp.concatenate([moves, turn[:, None]], axis=1)
        moves = jnp.pad(moves, ((0, 0), (0, self.u_size - moves.shape[1]))) * self.u_multiplier[rows]
        if self.options.n_traj_points:
            times = np.linspace(0, 1, self.options.n_traj_points, dtype=np.float32)[:, None]
            shown = plan.at(times).array.swapaxes(0, 1).reshape(-1, 2)  # [P * points, 2]
            state = state.replace(pos=state.pos.at[self.start - len(shown) : self.start].set(shown))
        return state.remember(target_pos=plan.target.array, target_pos_rel=target_rel.array), moves

    def bounce(self, state: State) -> chex.Array:
        """``[2]``: the force that keeps a slow ball off the edges, and out of the way of the goals' ends."""
        pos, edges = state.pos[self.ball], np.array([self.pitch.half_length, self.pitch.half_width], np.float32)
        reach = 2 * self.pitch.agent_size
        push = jnp.minimum(edges - pos, reach) / reach - jnp.minimum(edges + pos, reach) / reach
        slow = 1 - jnp.minimum(jnp.abs(state.vel[self.ball, 1]), FAST) / FAST
        free = jnp.stack([jnp.abs(pos[1]) >= self.pitch.half_goal, True])
        return BOUNCE * slow * push * free

    def kick(self, state: State, shots: chex.Array) -> chex.Array:
        """``[2]``: the force on the ball, by the player closest to it, if that looks at it; ``shots`` ``[players]``."""
        rot, away = state.rot[self.start : self.ball], state.pos[self.ball] - state.pos[self.start : self.ball]
        far = distance(away, jnp.zeros(2))
        off = wrapped(rot - jnp.arctan2(away[:, 1], away[:, 0]))
        hits = (
            (far <= self.options.shooting_radius)
            & (jnp.abs(off) <= self.options.shooting_angle / 2)
            & (far == far.min())
        )
        force = jnp.where(hits, shots * (SHOT * self.options.u_shoot_multiplier), 0.0)
        return jnp.stack([jnp.sum(force * jnp.cos(rot)), jnp.sum(force * jnp.sin(rot))])

    # -------------------------------------------------------------------------------------------------- what is earned

    def distances(self, state: State) -> dict[str, chex.Array]:
        """``[T]``: from the ball to the goal that a team attacks, and from its closest player to the ball."""
        ball = state.pos[self.ball]
        near = [distance(state.pos[self.start + team.rows], ball).min() for team in self.learning]
        return {"dist_ball_to_goal": distance(ball, self.goals), "min_agent_dist_to_ball": jnp.stack(near)}

    def scored(self, state: State) -> chex.Array:
        """1 for a goal of the blues, -1 for one of the reds."""
        pos = state.pos[self.ball]
        over = jnp.abs(pos[0]) > self.pitch.half_length + self.pitch.ball_size / 2
        return jnp.where(over & (jnp.abs(pos[1]) <= self.pitch.half_goal), jnp.sign(pos[0]), 0.0)

    def reward(self, key, state):
        ways = np.array([team.way for team in self.learning], np.float32)
        sparse = ways * self.options.scoring_reward * self.scored(state)  # [T]
        nearer = approach = jnp.zeros_like(sparse)
        if self.options.dense_reward:
            now = self.distances(state)
            came = {name: state[name] - value for name, value in now.items()}
            nearer, approach = (
                self.options.pos_shaping_factor_ball_goal * came["dist_ball_to_goal"],
                self.options.pos_shaping_factor_agent_ball * came["min_agent_dist_to_ball"],
            )
            moving = distance(state.vel[self.ball], jnp.zeros(2)) > RESTING
            approach = jnp.where(
                (now["min_agent_dist_to_ball"] < self.options.distance_to_ball_trigger) | moving, 0.0, approach
            )
            state = state.remember(**now)
        info = {
            "sparse_reward": sparse,
            "ball_goal_pos_rew": nearer,
            "all_agent_ball_pos_rew": approach,
            "ball_pos": jnp.broadcast_to(state.pos[self.ball], (len(ways), 2)),
            "dist_ball_to_goal": state["dist_ball_to_goal"],
            "min_agent_dist_to_ball": state["min_agent_dist_to_ball"],
            "touching_ball": state["min_agent_dist_to_ball"]
            <= self.options.agent_size + self.options.ball_size + TOUCHING,
        }
        of_agents = {name: value[self.side] for name, value in info.items()}
        return state, (sparse + (nearer + approach))[self.side], of_agents

    def done(self, state):
        return self.scored(state) != 0

    # ---------------------------------------------------------------------------------------------------- what is seen

    def observe(self, key, state):
        views = [self.view(state, team, goal) for team, goal in zip(self.learning, self.goals, strict=True)]
        if len({view.shape[1] for view in views}) == 1:
            return jnp.concatenate(views)
        return [row for view in views for row in view]

    def view(self, state: State, team: Team, goal: np.ndarray) -> chex.Array:
        """``[n, O]``: what the players of a team see, mirrored for those who play to the left."""
        mine, rivals = team.rows, (self.red if team is self.blue else self.blue).rows
        mates = np.array([np.delete(mine, i) for i in range(len(mine))], int)  # [n, n - 1]
        rivals = np.tile(rivals, (len(mine), 1))
        seen = np.concatenate(
            [
                rivals[:, : None if self.options.observe_adversaries else 0],
                mates[:, : None if self.options.observe_teammates else 0],
            ],
            1,
        )
        pos, vel, force = state.pos[self.start :], state.vel[self.start :], state["force"]  # [W, 2]
        ball = [jnp.broadcast_to(v, (len(mine), 2)) for v in (pos[-1] - goal, vel[-1], force[-1])]
        own = [force[mine], pos[mine] - pos[-1], vel[mine] - vel[-1], *ball, pos[mine] - goal, vel[mine]]
        others = [pos[mine][:, None] - pos[seen], vel[mine][:, None] - vel[seen], vel[seen], force[seen]]
        mirror = np.array([team.way, 1], np.float32)
        about_me = (jnp.stack(own, axis=1) * mirror).reshape(len(mine), -1)
        about_others = (jnp.stack(others, axis=2) * mirror).reshape(len(mine), -1)
        if not self.options.enable_shooting:
            return jnp.concatenate([about_me, about_others], axis=1)
        rot = state.rot[self.start + mine, None] - (np.pi if team is self.red else 0.0)
        return jnp.concatenate([about_me[:, :12], rot, about_me[:, 12:], about_others], axis=1)


def wrapped(angle: chex.Array) -> chex.Array:
    """The same angle from minus half a turn to half a turn."""
    return (angle + np.pi) % (2 * np.pi) - np.pi
