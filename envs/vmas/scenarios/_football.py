"""Football's options, and what its world is made of: players, walls, nets, and the marks of planned paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from shoal.envs.vmas.checks import at_least, count, positive
from shoal.envs.vmas.dynamics import Holonomic, HolonomicWithRotation
from shoal.envs.vmas.entities import Agent, Box, Landmark, Line, Sphere
from shoal.envs.vmas.football_planner import Pitch, Planner
from shoal.errors import UserError


@dataclass(frozen=True)
class Options:
    """What a user can choose; three strengths of scripted players are a number, or one for blue and one for red."""

    n_blue_agents: int = 3
    n_red_agents: int = 3
    ai_red_agents: bool = True  # reds are scripted
    ai_blue_agents: bool = False  # blues are scripted
    disable_ai_red: bool = False  # scripted reds stand still
    physically_different: bool = False  # two attackers, two midfielders, a keeper
    spawn_in_formation: bool = False
    only_blue_formation: bool = True
    formation_agents_per_column: int = 2
    randomise_formation_indices: bool = False  # who has which place of the formation
    formation_noise: float = 0.2
    n_traj_points: int = 0  # marks of each scripted player's path, for pictures
    ai_strength: float | tuple[float, ...] = 1.0  # how fast scripted players are
    ai_decision_strength: float | tuple[float, ...] = 1.0
    ai_precision_strength: float | tuple[float, ...] = 1.0
    agent_size: float = 0.025
    goal_size: float = 0.35
    goal_depth: float = 0.1
    pitch_length: float = 3.0
    pitch_width: float = 1.5
    ball_mass: float = 0.25
    ball_size: float = 0.02
    u_multiplier: float = 0.1  # of a force
    enable_shooting: bool = False
    u_rot_multiplier: float = 0.0003  # of a torque
    u_shoot_multiplier: float = 0.6
    shooting_radius: float = 0.08  # a shot reaches a ball within this
    shooting_angle: float = 1.5708  # and within this angle, half of it to each side
    max_speed: float = 0.15
    ball_max_speed: float = 0.3
    dense_reward: bool = True
    pos_shaping_factor_ball_goal: float = 10.0
    pos_shaping_factor_agent_ball: float = 0.1
    distance_to_ball_trigger: float = 0.4  # a ball closer than this need not be approached
    scoring_reward: float = 100.0
    observe_teammates: bool = True
    observe_adversaries: bool = True
    dict_obs: bool = False  # VMAS's, not here

    def __post_init__(self) -> None:
        """Refuse what is out of range or does not go together."""
        for name, least in {
            "n_blue_agents": 1,
            "n_red_agents": 0,
            "formation_agents_per_column": 1,
            "n_traj_points": 0,
        }.items():
            count(name, getattr(self, name), least)
        sizes = ("agent_size", "goal_size", "goal_depth", "ball_size", "pitch_length", "pitch_width", "ball_mass")
        for name in (*sizes, "max_speed", "ball_max_speed"):
            positive(name, getattr(self, name))
        for name in ("shooting_radius", "shooting_angle", "distance_to_ball_trigger", "formation_noise"):
            at_least(name, getattr(self, name))
        if self.goal_size + 2 * self.agent_size >= self.pitch_width:
            raise UserError(f"env.kwargs.goal_size={self.goal_size:g}: must be below pitch_width - 2 * agent_size")
        if self.dict_obs:
            raise UserError("env.kwargs.dict_obs=True: must be false, observations are arrays here")
        if self.ai_blue_agents and (self.ai_red_agents or not self.n_red_agents):
            raise UserError("env.kwargs.ai_blue_agents=True: needs ai_red_agents=false and n_red_agents above 0")
        if self.physically_different:
            if self.n_blue_agents != len(DIFFERENT):
                raise UserError(
                    f"env.kwargs.physically_different=True: needs n_blue_agents=5, not {self.n_blue_agents}"
                )
            at_least("agent_size", self.agent_size, -2 * ATTACKER.radius)
            at_least("max_speed", self.max_speed, -KEEPER.speed)
        for name in STRENGTHS:
            _of_both(name, getattr(self, name))

    @property
    def pitch(self) -> Pitch:
        """The measures of the pitch."""
        return Pitch(
            half_length=self.pitch_length / 2,
            half_width=self.pitch_width / 2,
            half_goal=self.goal_size / 2,
            goal_depth=self.goal_depth,
            agent_size=self.agent_size,
            ball_size=self.ball_size,
        )

    def strengths(self, team: int) -> list[float]:
        """Speed, decision and precision of the blues' (0) or the reds' (1) scripted players."""
        return [_of_both(name, getattr(self, name))[team] for name in STRENGTHS]


STRENGTHS = ("ai_strength", "ai_decision_strength", "ai_precision_strength")


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


def blues_and_reds(options: Options) -> tuple[list[Agent], list[Agent]]:
    """The players of both teams."""
    builds = DIFFERENT if options.physically_different else (Build(),) * options.n_blue_agents
    blues = [_player(options, "blue", i, build) for i, build in enumerate(builds)]
    return blues, [_player(options, "red", i, Build()) for i in range(options.n_red_agents)]


def _player(options: Options, colour: str, number: int, build: Build) -> Agent:
    scripted = options.ai_blue_agents if colour == "blue" else options.ai_red_agents
    shoots = options.enable_shooting and not (scripted and colour == "red")
    force = options.u_multiplier + build.force
    turn, shot = options.u_rot_multiplier + build.torque, options.u_shoot_multiplier + build.shot
    return Agent(
        name=f"agent_{colour}_{number}",
        group=colour,
        shape=Sphere(options.agent_size + build.radius),
        scripted=scripted,
        dynamics=Shooting() if shoots else Holonomic(),
        u_multiplier=(force, force, turn, shot) if shoots else force,
        max_speed=options.max_speed + build.speed,
        colour=colour,
    )


def ball_of(options: Options) -> Agent:
    """The ball, which is an agent that nobody learns to be."""
    return Agent(
        name="Ball",
        group="ball",
        scripted=True,
        shape=Sphere(options.ball_size),
        mass=options.ball_mass,
        max_speed=options.ball_max_speed,
        colour="black",
    )


def blue_and_red(options: Options, blues: list[Agent], reds: list[Agent]) -> tuple[Team, Team]:
    """Both teams, with the planner of each that is scripted and not switched off."""
    teams = []
    for index, (players, way) in enumerate(((blues, 1), (reds, -1))):
        scripted = bool(players) and players[0].scripted
        planner = None
        if scripted and not (way < 0 and options.disable_ai_red):
            names, radii = tuple(p.name for p in players), tuple(p.shape.reach for p in players)
            planner = Planner(names, radii, options.pitch, way, *options.strengths(index))
        formation = options.spawn_in_formation and not (way < 0 and options.only_blue_formation)
        rows = (len(blues) if way < 0 else 0) + np.arange(len(players))
        teams.append(Team(rows, way, bool(players) and not scripted, formation, planner))
    return teams[0], teams[1]


def marks(options: Options, blues: list[Agent], reds: list[Agent]) -> list[Landmark]:
    """The points that show the planned paths of scripted players."""
    return [
        Landmark(name=f"{name} {i} Trajectory {j}", shape=Sphere(0.01), collide=False, colour=name.lower())
        for name, team in (("Red", reds), ("Blue", blues))
        for i, one in enumerate(team)
        for j in range(options.n_traj_points * one.scripted)
    ]


def _of_both(name: str, value: float | tuple[float, ...]) -> tuple[float, ...]:
    """What is said of both teams, or of blue and red."""
    found = value if isinstance(value, tuple) else (value, value)
    if len(found) != 2:
        raise UserError(f"env.kwargs.{name}={value}: must be a number, or one for blue and one for red")
    for one in found:
        at_least(name, one)
    return found


def walls(pitch: Pitch) -> list[tuple[Landmark, tuple[float, float], float]]:
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
