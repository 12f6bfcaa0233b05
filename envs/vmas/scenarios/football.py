"""Football: two teams, a ball and two goals; either team learns or is scripted (envs/vmas/football_planner.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario, State
from shoal.envs.vmas.checks import at_least, count, positive
from shoal.envs.vmas.dynamics import Holonomic, HolonomicWithRotation
from shoal.envs.vmas.entities import Agent, Box, Landmark, Line, Sphere
from shoal.envs.vmas.football_planner import Pitch, Planner
from shoal.envs.vmas.geometry import Vec, distance
from shoal.envs.vmas.world import World
from shoal.errors import UserError

SHOT = 2.67  # what a shot is multiplied with, beside u_shoot_multiplier
BOUNCE, FAST = 0.05, 0.3  # the force that keeps the ball off the edges, and the speed along y at which it ends
RESTING = 1e-6  # the speed of a ball that waits for somebody
TOUCHING = 0.01


class Build(NamedTuple):
    """How a player differs from the standard one."""

    radius: float = 0.0
    force: float = 0.0
    torque: float = 0.0
    shot: float = 0.0
    speed: float = 0.0


ATTACKER, KEEPER = Build(-0.005, 0.1, 0.0, -0.2, 0.05), Build(0.01, -0.05, 0.2, 0.0, -0.1)
DIFFERENT = (ATTACKER, ATTACKER, Build(), Build(), KEEPER)


@dataclass(frozen=True)
class Shooting(HolonomicWithRotation):
    """A force, a torque, and a shot that ``Football.kicks`` gives to the ball."""

    size: ClassVar[int] = 4


class Team(NamedTuple):
    """The players of a colour."""

    rows: np.ndarray  # [n] among the agents
    way: int  # 1: attacks to the right, -1: to the left
    learns: bool
    formation: bool  # whether it starts in one
    planner: Planner | None  # if it is scripted and not switched off


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

    def __init__(
        self,
        n_blue_agents: int = 3,
        n_red_agents: int = 3,
        ai_red_agents: bool = True,
        ai_blue_agents: bool = False,
        disable_ai_red: bool = False,
        physically_different: bool = False,
        spawn_in_formation: bool = False,
        only_blue_formation: bool = True,
        formation_agents_per_column: int = 2,
        randomise_formation_indices: bool = False,
        formation_noise: float = 0.2,
        n_traj_points: int = 0,
        ai_strength: float | tuple[float, ...] = 1.0,
        ai_decision_strength: float | tuple[float, ...] = 1.0,
        ai_precision_strength: float | tuple[float, ...] = 1.0,
        agent_size: float = 0.025,
        goal_size: float = 0.35,
        goal_depth: float = 0.1,
        pitch_length: float = 3.0,
        pitch_width: float = 1.5,
        ball_mass: float = 0.25,
        ball_size: float = 0.02,
        u_multiplier: float = 0.1,
        enable_shooting: bool = False,
        u_rot_multiplier: float = 0.0003,
        u_shoot_multiplier: float = 0.6,
        shooting_radius: float = 0.08,
        shooting_angle: float = 1.5708,
        max_speed: float = 0.15,
        ball_max_speed: float = 0.3,
        dense_reward: bool = True,
        pos_shaping_factor_ball_goal: float = 10.0,
        pos_shaping_factor_agent_ball: float = 0.1,
        distance_to_ball_trigger: float = 0.4,
        scoring_reward: float = 100.0,
        observe_teammates: bool = True,
        observe_adversaries: bool = True,
        dict_obs: bool = False,
    ):
        count("n_blue_agents", n_blue_agents)
        count("n_red_agents", n_red_agents, 0)
        count("formation_agents_per_column", formation_agents_per_column)
        count("n_traj_points", n_traj_points, 0)
        sizes = {"agent_size": agent_size, "goal_size": goal_size, "goal_depth": goal_depth, "ball_size": ball_size}
        sizes |= {"pitch_length": pitch_length, "pitch_width": pitch_width, "ball_mass": ball_mass}
        for name, value in {**sizes, "max_speed": max_speed, "ball_max_speed": ball_max_speed}.items():
            positive(name, value)
        triggers = {"shooting_radius": shooting_radius, "shooting_angle": shooting_angle}
        triggers |= {"distance_to_ball_trigger": distance_to_ball_trigger, "formation_noise": formation_noise}
        for name, value in triggers.items():
            at_least(name, value)
        if goal_size + 2 * agent_size >= pitch_width:
            raise UserError(f"env.kwargs.goal_size={goal_size:g}: must be below pitch_width - 2 * agent_size")
        if dict_obs:
            raise UserError("env.kwargs.dict_obs=True: must be false, observations are arrays here")
        if ai_blue_agents and (ai_red_agents or not n_red_agents):
            raise UserError("env.kwargs.ai_blue_agents=True: needs ai_red_agents=false and n_red_agents above 0")
        if physically_different and n_blue_agents != len(DIFFERENT):
            raise UserError(f"env.kwargs.physically_different=True: needs n_blue_agents=5, not {n_blue_agents}")
        if physically_different:
            at_least("agent_size", agent_size, -2 * ATTACKER.radius)
            at_least("max_speed", max_speed, -KEEPER.speed)
        strengths = [
            _pair("ai_strength", ai_strength),
            _pair("ai_decision_strength", ai_decision_strength),
            _pair("ai_precision_strength", ai_precision_strength),
        ]
        self.pitch = Pitch(pitch_length / 2, pitch_width / 2, goal_size / 2, goal_depth, agent_size, ball_size)
        self.per_column, self.shuffled = formation_agents_per_column, randomise_formation_indices
        self.formation_noise, self.points = formation_noise, n_traj_points
        self.shooting, self.shot = enable_shooting, SHOT * u_shoot_multiplier
        self.shooting_radius, self.shooting_angle = shooting_radius, shooting_angle
        self.dense, self.trigger, self.scoring = dense_reward, distance_to_ball_trigger, scoring_reward
        self.ball_factor, self.agent_factor = pos_shaping_factor_ball_goal, pos_shaping_factor_agent_ball
        self.touch = agent_size + ball_size + TOUCHING
        self.sees_rivals, self.sees_mates = observe_adversaries, observe_teammates

        def player(colour: str, i: int, scripted: bool, build: Build) -> Agent:
            shoots = enable_shooting and not (scripted and colour == "red")
            force = u_multiplier + build.force
            turn, shot = u_rot_multiplier + build.torque, u_shoot_multiplier + build.shot
            return Agent(
                name=f"agent_{colour}_{i}",
                group=colour,
                shape=Sphere(agent_size + build.radius),
                scripted=scripted,
                dynamics=Shooting() if shoots else Holonomic(),
                u_multiplier=(force, force, turn, shot) if shoots else force,
                max_speed=max_speed + build.speed,
                colour=colour,
            )

        builds = DIFFERENT if physically_different else (Build(),) * n_blue_agents
        blues = [player("blue", i, ai_blue_agents, build) for i, build in enumerate(builds)]
        reds = [player("red", i, ai_red_agents, Build()) for i in range(n_red_agents)]
        ball = Agent(
            name="Ball",
            group="ball",
            scripted=True,
            shape=Sphere(ball_size),
            mass=ball_mass,
            max_speed=ball_max_speed,
            colour="black",
        )
        blue_strengths, red_strengths = zip(*strengths, strict=True)
        by_formation = spawn_in_formation and not only_blue_formation
        self.blue = self._team(blues, 0, 1, spawn_in_formation, blue_strengths)
        self.red = self._team(reds, n_blue_agents, -1, by_formation, red_strengths, disable_ai_red)
        self.learning = tuple(team for team in (self.blue, self.red) if team.learns)
        self.scripted = next((team for team in (self.blue, self.red) if team.planner), None)
        self.planner: Any = self.scripted and self.scripted.planner
        ways = np.array([team.way for team in self.learning], np.float32)
        self.goals = np.stack([ways * (self.pitch.half_length + ball_size / 2), 0 * ways], axis=1)  # [T, 2]
        self.side = np.repeat(np.arange(len(ways)), [len(team.rows) for team in self.learning])  # [A] of T

        walls, places, turns = zip(*_walls(self.pitch), strict=True)
        plans = [
            Landmark(name=f"{name} {i} Trajectory {j}", shape=Sphere(0.01), collide=False, colour=name.lower())
            for name, team in (("Red", reds), ("Blue", blues))
            for i, one in enumerate(team)
            for j in range(n_traj_points * one.scripted)
        ]
        self.places = np.pad(np.array(places, np.float32), ((0, len(plans)), (0, 0)))  # [L, 2]
        self.turns = np.pad(np.array(turns, np.float32), (0, len(plans)))  # [L]
        self.start, self.ball = len(self.turns), len(self.turns) + n_blue_agents + n_red_agents
        super().__init__(
            World(
                [*walls, *plans],
                [*blues, *reds, ball],
                substeps=2,
                drag=0.05,
                x_semidim=self.pitch.half_length + goal_depth - agent_size,
                y_semidim=self.pitch.half_width - agent_size,
            )
        )
        mirrored = np.isin(np.arange(len(self.world.agents)), self.red.rows) & self.red.learns
        signs = np.array([-1, 1, -1, 1], np.float32)[: self.u_size]  # of x and of the torque
        self.mirror = np.where(mirrored[:, None], signs, np.float32(1))  # [W, U]

    def _team(self, players, first, way, formation, strengths, disabled=False) -> Team:
        scripted = bool(players) and players[0].scripted
        names, radii = tuple(p.name for p in players), tuple(p.shape.radius for p in players)
        planner = Planner(names, radii, self.pitch, way, *strengths) if scripted and not disabled else None
        learns = bool(players) and not scripted
        return Team(first + np.arange(len(players)), way, learns, formation, planner)

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
                slots = jax.random.permutation(order_key, slots) if self.shuffled else slots
                places.append(slots + (mine - 0.5) * self.formation_noise)
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
        xs = np.linspace(0, end, n // self.per_column + 3)[1:-1]
        slots = []
        for x, first in zip(xs, range(0, n, self.per_column), strict=False):
            size = min(self.per_column, n - first)
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
        if self.shooting:
            ball = ball + self.kick(state, jnp.concatenate([blue, red])[:, 3])
        u = jnp.concatenate([blue, red, jnp.pad(ball, (0, self.u_size - 2))[None]])
        return state.remember(force=u[:, :2]), u

    def script(self, normals: chex.Array, state: State) -> tuple[State, chex.Array]:
        """The actions ``[P, U]`` of the scripted players."""
        assert self.scripted is not None
        rows, planner = self.scripted.rows, self.planner
        places = self.start + rows
        pos, vel = Vec.of(state.pos[places]), Vec.of(state.vel[places])
        ball, ball_vel = Vec.of(state.pos[self.ball]), Vec.of(state.vel[self.ball])
        aims = Vec.of(state["target_pos"]), Vec.of(state["target_pos_rel"])
        plan, target_rel = planner.plan(normals, pos, vel, ball, ball_vel, *aims)
        moves = planner.follow(plan, pos, vel).array
        if self.sizes[rows[0]] > 2:  # turns to where it looked first, and never shoots
            off = wrapped(-state.rot[places])
            turn = jnp.where(jnp.abs(off) < np.pi / 2, jnp.sin(off), jnp.sign(off))
            moves = jnp.concatenate([moves, turn[:, None]], axis=1)
        moves = jnp.pad(moves, ((0, 0), (0, self.u_size - moves.shape[1]))) * self.u_multiplier[rows]
        if self.points:
            times = np.linspace(0, 1, self.points, dtype=np.float32)[:, None]
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
        hits = (far <= self.shooting_radius) & (jnp.abs(off) <= self.shooting_angle / 2) & (far == far.min())
        force = jnp.where(hits, shots * self.shot, 0.0)
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
        sparse = ways * self.scoring * self.scored(state)  # [T]
        nearer = approach = jnp.zeros_like(sparse)
        if self.dense:
            now = self.distances(state)
            came = {name: state[name] - value for name, value in now.items()}
            nearer, approach = (
                self.ball_factor * came["dist_ball_to_goal"],
                self.agent_factor * came["min_agent_dist_to_ball"],
            )
            moving = distance(state.vel[self.ball], jnp.zeros(2)) > RESTING
            approach = jnp.where((now["min_agent_dist_to_ball"] < self.trigger) | moving, 0.0, approach)
            state = state.remember(**now)
        info = {
            "sparse_reward": sparse,
            "ball_goal_pos_rew": nearer,
            "all_agent_ball_pos_rew": approach,
            "ball_pos": jnp.broadcast_to(state.pos[self.ball], (len(ways), 2)),
            "dist_ball_to_goal": state["dist_ball_to_goal"],
            "min_agent_dist_to_ball": state["min_agent_dist_to_ball"],
            "touching_ball": state["min_agent_dist_to_ball"] <= self.touch,
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
            [rivals[:, : None if self.sees_rivals else 0], mates[:, : None if self.sees_mates else 0]], 1
        )
        pos, vel, force = state.pos[self.start :], state.vel[self.start :], state["force"]  # [W, 2]
        ball = [jnp.broadcast_to(v, (len(mine), 2)) for v in (pos[-1] - goal, vel[-1], force[-1])]
        own = [force[mine], pos[mine] - pos[-1], vel[mine] - vel[-1], *ball, pos[mine] - goal, vel[mine]]
        others = [pos[mine][:, None] - pos[seen], vel[mine][:, None] - vel[seen], vel[seen], force[seen]]
        mirror = np.array([team.way, 1], np.float32)
        about_me = (jnp.stack(own, axis=1) * mirror).reshape(len(mine), -1)
        about_others = (jnp.stack(others, axis=2) * mirror).reshape(len(mine), -1)
        if not self.shooting:
            return jnp.concatenate([about_me, about_others], axis=1)
        rot = state.rot[self.start + mine, None] - (np.pi if team is self.red else 0.0)
        return jnp.concatenate([about_me[:, :12], rot, about_me[:, 12:], about_others], axis=1)


def wrapped(angle: chex.Array) -> chex.Array:
    """The same angle from minus half a turn to half a turn."""
    return (angle + np.pi) % (2 * np.pi) - np.pi


def _pair(name: str, value: float | tuple[float, ...]) -> tuple[float, ...]:
    """What is said of both teams, or of blue and red."""
    found = value if isinstance(value, tuple) else (value, value)
    if len(found) != 2:
        raise UserError(f"env.kwargs.{name}={value}: must be a number, or one for blue and one for red")
    for one in found:
        at_least(name, one)
    return found


def _walls(pitch: Pitch) -> list[tuple[Landmark, tuple[float, float], float]]:
    """The lines around the pitch and the goals, and the nets: each with its place and rotation."""
    end, upright = pitch.half_length, np.pi / 2
    side = Line(pitch.half_width - pitch.agent_size - pitch.half_goal)
    beside = (pitch.half_width + pitch.half_goal) / 2
    back, post = Line(2 * pitch.half_goal), Line(pitch.goal_depth)
    deep = pitch.goal_depth - pitch.agent_size
    middle = end + pitch.goal_depth / 2 - pitch.agent_size
    net = Box(pitch.goal_depth, 2 * pitch.half_goal)
    both = (("Right", 1), ("Left", -1))
    lines = [
        *((f"{name} Top Wall", side, (way * end, beside), upright) for name, way in both),
        *((f"{name} Bottom Wall", side, (way * end, -beside), upright) for name, way in both),
        *((f"{name} Goal Back", back, (way * (end + deep), 0.0), upright) for name, way in both),
        *((f"{name} Goal Top", post, (way * middle, pitch.half_goal), 0.0) for name, way in both),
        *((f"{name} Goal Bottom", post, (way * middle, -pitch.half_goal), 0.0) for name, way in both),
    ]
    nets = [("Blue", -1), ("Red", 1)]
    return [
        *((Landmark(name=name, shape=shape), place, turn) for name, shape, place, turn in lines),
        *(
            (
                Landmark(name=f"{name} Net", shape=net, collide=False, colour=f"light_{name.lower()}"),
                (way * pitch.net, 0.0),
                0.0,
            )
            for name, way in nets
        ),
    ]
