"""Record steps of the real VMAS into ``tests/data/vmas/<task>.npz``, which tests/envs/test_vmas.py compares with.

    pip install 'shoal[oracle]' && python tools/record_vmas.py [task ...]

One environment at a time (``num_envs=1``): what VMAS couples across a batch is not wanted. A case is a set of arguments
and a kind of action; its episodes start from VMAS's own resets, and go on with random actions or a full push in one
direction, or from states with bodies thrown at each other, or where the task is (almost) done. Each file holds, per
case, ``[episode, step]`` arrays: the states (one more than steps) with what the scenario remembers, actions,
observations, rewards, dones and infos.
``bodies.npz`` is no task: all pairs of shapes, joints, limits and dynamics in worlds of their own.
``football_planner.npz``, for tests/envs/test_vmas_football.py, are cases of football with scripted players, and the
normals that they drew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import vmas
from torch.utils._python_dispatch import TorchDispatchMode
from vmas.simulator.core import Agent, Box, Landmark, Line, Sphere, World
from vmas.simulator.dynamics.diff_drive import DiffDrive
from vmas.simulator.dynamics.forward import Forward
from vmas.simulator.dynamics.holonomic import Holonomic
from vmas.simulator.dynamics.holonomic_with_rot import HolonomicWithRotation
from vmas.simulator.dynamics.kinematic_bicycle import KinematicBicycle
from vmas.simulator.dynamics.roatation import Rotation
from vmas.simulator.dynamics.static import Static
from vmas.simulator.joints import Joint
from vmas.simulator.scenario import BaseScenario
from vmas.simulator.sensors import Lidar

from shoal.config.words import Parser

FIELDS = ("pos", "vel", "rot", "ang_vel")
EPISODES = {"random": (2, 20), "push": (2, 8), "thrown": (6, 3), "arrived": (6, 2)}  # how many, of how many steps
FEWER = {"random": (1, 20), "push": (1, 6), "thrown": (6, 2), "arrived": (4, 2)}
TOUCHING = {"touching": (40, 1)}  # of the world "contacts"
SHORT = {"football": FEWER, "football_planner": FEWER}  # what would make large files

# BenchMARL's arguments, conf/task/vmas: Shoal's defaults. Then further cases, each changing some of them.
BENCHMARL: dict[str, dict[str, Any]] = {
    "balance": {"n_agents": 4, "random_package_pos_on_line": True, "package_mass": 5},
    "ball_passage": {"n_passages": 1, "fixed_passage": False, "random_start_angle": True},
    "ball_trajectory": {"joints": True},
    "buzz_wire": {"random_start_angle": True, "collision_reward": -10},
    "discovery": {
        "n_agents": 5, "n_targets": 7, "lidar_range": 0.35, "covering_range": 0.25, "agents_per_target": 2,
        "targets_respawn": True, "shared_reward": True,
    },
    "dispersion": {"n_agents": 4, "n_food": 4, "share_reward": True, "food_radius": 0.02, "penalise_by_time": False},
    "dropout": {"n_agents": 4, "energy_coeff": 0.02, "start_same_point": False},
    "flocking": {"n_agents": 4, "n_obstacles": 5, "collision_reward": -0.1},
    "football": {
        "n_blue_agents": 3, "n_red_agents": 3, "ai_red_agents": True, "physically_different": False,
        "spawn_in_formation": False, "only_blue_formation": True, "formation_agents_per_column": 2,
        "randomise_formation_indices": False, "formation_noise": 0.2, "n_traj_points": 0, "ai_strength": 1.0,
        "ai_decision_strength": 1.0, "ai_precision_strength": 1.0, "agent_size": 0.025, "goal_size": 0.35,
        "goal_depth": 0.1, "pitch_length": 3.0, "pitch_width": 1.5, "ball_mass": 0.25, "ball_size": 0.02,
        "u_multiplier": 0.1, "enable_shooting": False, "u_rot_multiplier": 0.0003, "u_shoot_multiplier": 0.6,
        "shooting_radius": 0.08, "shooting_angle": 1.5708, "max_speed": 0.15, "ball_max_speed": 0.3,
        "dense_reward": True, "pos_shaping_factor_ball_goal": 10.0, "pos_shaping_factor_agent_ball": 0.1,
        "distance_to_ball_trigger": 0.4, "scoring_reward": 100.0, "observe_teammates": True,
        "observe_adversaries": True, "dict_obs": False,
    },
    "give_way": {
        "mirror_passage": False, "observe_rel_pos": False, "done_on_completion": False, "final_reward": 0.01,
    },
    "joint_passage": {
        "n_passages": 1, "fixed_passage": True, "joint_length": 0.5, "random_start_angle": True,
        "random_goal_angle": True, "observe_joint_angle": False, "asym_package": True, "mass_ratio": 5,
        "mass_position": 0.75,
    },
    "joint_passage_size": {
        "n_passages": 3, "fixed_passage": False, "random_start_angle": False, "random_goal_angle": False,
        "observe_joint_angle": False,
    },
    "multi_give_way": {"agent_collision_penalty": -0.1},
    "navigation": {
        "n_agents": 3, "collisions": True, "agents_with_same_goal": 1, "split_goals": False,
        "observe_all_goals": False, "shared_rew": False, "lidar_range": 0.35, "agent_radius": 0.1,
    },
    "passage": {"n_passages": 1, "shared_reward": True},
    "reverse_transport": {"n_agents": 4, "package_width": 0.6, "package_length": 0.6, "package_mass": 50},
    "sampling": {
        "n_agents": 3, "shared_rew": False, "n_gaussians": 3, "lidar_range": 0.2, "cov": 0.05, "collisions": True,
        "spawn_same_pos": False,
    },
    "simple": {},
    "simple_adversary": {"n_agents": 3, "n_adversaries": 1},
    "simple_crypto": {"dim_c": 4},
    "simple_push": {},
    "simple_reference": {},
    "simple_speaker_listener": {},
    "simple_spread": {"n_agents": 3, "obs_agents": True},
    "simple_tag": {
        "num_good_agents": 1, "num_adversaries": 3, "num_landmarks": 2, "shape_agent_rew": False,
        "shape_adversary_rew": False, "agents_share_rew": False, "adversaries_share_rew": True,
        "observe_same_team": True, "observe_pos": True, "observe_vel": True, "bound": 1.0, "respawn_at_catch": False,
    },
    "simple_world_comm": {
        "num_good_agents": 2, "num_adversaries": 4, "num_landmarks": 1, "num_food": 2, "num_forests": 2,
    },
    "transport": {
        "n_agents": 4, "n_packages": 1, "package_width": 0.15, "package_length": 0.15, "package_mass": 50,
    },
    "wheel": {"n_agents": 4, "line_length": 1, "line_mass": 30, "desired_velocity": 0.05},
    "wind_flocking": {
        "horizon": 100, "dist_shaping_factor": 1, "vel_shaping_factor": 1, "wind_shaping_factor": 1,
        "rot_shaping_factor": 0, "pos_shaping_factor": 0, "energy_shaping_factor": 0, "wind": 0,
        "cover_angle_tolerance": 1, "observe_rel_pos": True, "observe_rel_vel": True, "observe_pos": False,
        "desired_vel": 0.4,
    },
}  # fmt: skip
EXTRA: dict[str, list[dict[str, Any]]] = {
    "balance": [{"n_agents": 3, "package_mass": 1, "random_package_pos_on_line": False}],
    "ball_passage": [{"n_passages": 3, "fixed_passage": True, "random_start_angle": False}],
    "ball_trajectory": [
        {"joints": False, "pos_shaping_factor": 2, "speed_shaping_factor": 0.5, "dist_shaping_factor": 3},
        {"pos_shaping_factor": 1, "dist_shaping_factor": 1},
    ],
    "buzz_wire": [{"random_start_angle": False, "pos_shaping_factor": 3, "collision_reward": -2, "max_speed_1": 0.1}],
    "discovery": [
        {
            "n_agents": 3, "n_targets": 4, "x_semidim": 1.5, "y_semidim": 0.5, "min_dist_between_entities": 0.12,
            "lidar_range": 0.6, "covering_range": 0.4, "use_agent_lidar": True, "n_lidar_rays_entities": 9,
            "n_lidar_rays_agents": 7, "agents_per_target": 1, "targets_respawn": False, "shared_reward": False,
            "agent_collision_penalty": -0.3, "covering_rew_coeff": 2.0, "time_penalty": -0.01,
        },
        {"targets_respawn": False, "agent_collision_penalty": -1},
    ],
    "dispersion": [
        {"n_agents": 3, "n_food": 5, "share_reward": False, "food_radius": 0.3, "penalise_by_time": True},
        {"share_reward": True, "food_radius": 0.4, "penalise_by_time": True, "pos_range": 0.5},
    ],
    "dropout": [{"n_agents": 3, "energy_coeff": 0.5, "start_same_point": True}],
    "flocking": [
        {
            "n_agents": 3, "n_obstacles": 2, "collision_reward": -1, "dist_shaping_factor": 5, "n_lidar_rays": 5,
            "min_dist_between_entities": 0.2,
        },
    ],
    "football": [  # without the random moves of scripted players
        {"ai_red_agents": False, "n_red_agents": 2, "observe_teammates": False, "dense_reward": False},
        {
            "ai_red_agents": False, "n_blue_agents": 2, "n_red_agents": 2, "enable_shooting": True,
            "u_rot_multiplier": 0.003, "shooting_radius": 0.1,
        },
        {
            "n_red_agents": 0, "n_blue_agents": 5, "physically_different": True, "enable_shooting": True,
            "u_multiplier": 0.12, "u_shoot_multiplier": 0.7, "shooting_angle": 4.0, "spawn_in_formation": True,
            "formation_agents_per_column": 3,
        },
        {
            "ai_red_agents": False, "n_blue_agents": 3, "n_red_agents": 1, "spawn_in_formation": True,
            "only_blue_formation": False, "formation_noise": 0.1, "randomise_formation_indices": True,
            "observe_adversaries": False, "observe_teammates": False, "agent_size": 0.03, "goal_size": 0.44,
            "goal_depth": 0.17, "pitch_length": 2.6, "pitch_width": 1.9, "ball_size": 0.023, "u_multiplier": 0.13,
            "max_speed": 0.21, "ball_max_speed": 0.37, "ball_mass": 0.3, "pos_shaping_factor_ball_goal": 7.0,
            "pos_shaping_factor_agent_ball": 0.3, "distance_to_ball_trigger": 0.2, "scoring_reward": 10.0,
        },
    ],
    "football_planner": [
        {"n_blue_agents": 1, "observe_teammates": False, "ai_strength": 0.5, "n_red_agents": 2, "n_traj_points": 3},
        {"n_blue_agents": 2, "ai_decision_strength": 0.6, "ai_strength": (0.3, 0.8)},
        {"n_blue_agents": 2, "n_red_agents": 2, "ai_precision_strength": 0.7},
        {"ai_blue_agents": True, "n_blue_agents": 2, "n_red_agents": 3, "enable_shooting": True, "n_traj_points": 2},
        {
            "n_blue_agents": 1, "n_red_agents": 12, "observe_teammates": False, "observe_adversaries": False,
            "ai_decision_strength": (1.0, 0.5), "ai_precision_strength": (0.2, 0.5), "agent_size": 0.03,
            "goal_size": 0.44, "goal_depth": 0.17, "pitch_length": 2.6, "pitch_width": 1.9, "ball_size": 0.023,
            "u_multiplier": 0.13, "max_speed": 0.21, "ball_max_speed": 0.37,
        },
    ],
    "give_way": [
        {
            "mirror_passage": True, "observe_rel_pos": True, "done_on_completion": True, "final_reward": 1.0,
            "energy_rew_coeff": 0.5, "agent_collision_penalty": -1, "passage_collision_penalty": -2,
            "obstacle_collision_penalty": -3, "min_input_norm": 0.3, "pos_shaping_factor": 2, "dt_delay": 2,
        },
        {"box_agents": True, "agent_collision_penalty": -1, "obstacle_collision_penalty": -3},
        {"use_velocity_controller": False, "v_range": 0.3, "a_range": 2, "linear_friction": 0.3, "energy_rew_coeff": 1},
    ],
    "joint_passage": [
        {
            "n_passages": 2, "fixed_passage": False, "asym_package": False, "mass_ratio": 3,
            "observe_joint_angle": True, "collision_reward": -1, "energy_reward_coeff": 0.2, "all_passed_rot": False,
            "pos_shaping_factor": 2, "rot_shaping_factor": 3, "max_speed_1": 0.2,
        },
        {"collision_reward": -1, "random_start_angle": False, "random_goal_angle": False, "joint_length": 0.4},
        {"use_controller": True, "mass_position": -0.5},
    ],
    "joint_passage_size": [
        {
            "n_passages": 4, "fixed_passage": True, "asym_package": True, "mass_ratio": 3, "observe_joint_angle": True,
            "collision_reward": -1, "energy_reward_coeff": 0.2, "random_goal_angle": True, "pos_shaping_factor": 2,
            "rot_shaping_factor": 3, "middle_angle_180": True, "max_speed_1": 0.2, "joint_length": 0.4,
            "mass_position": 0.3,
        },
        {"collision_reward": -1, "use_vel_controller": True},
    ],
    "multi_give_way": [
        {
            "shared_rew": False, "u_range": 0.3, "a_range": 2, "linear_friction": 0.2, "min_input_norm": 0.2,
            "final_reward": 1, "agent_collision_penalty": -1, "pos_shaping_factor": 2,
        },
        {"box_agents": True, "agent_collision_penalty": -1},
        {"pos_shaping_factor": 0},
    ],
    "navigation": [
        {
            "n_agents": 4, "observe_all_goals": True, "shared_rew": True, "lidar_range": 0.8,
            "agent_radius": 0.15, "n_lidar_rays": 7, "pos_shaping_factor": 3,
            "final_reward": 2, "agent_collision_penalty": -2, "enforce_bounds": True, "world_spawning_x": 2,
            "world_spawning_y": 1.5,
        },
        {"collisions": False, "agents_with_same_goal": 2},
        {"collisions": False, "n_agents": 4, "agents_with_same_goal": 2, "split_goals": True, "shared_rew": True},
    ],
    "passage": [{"n_passages": 3, "shared_reward": False}],
    "reverse_transport": [{"n_agents": 2, "package_width": 0.4, "package_length": 0.8, "package_mass": 5}],
    "sampling": [
        {
            "n_agents": 2, "shared_rew": True, "n_gaussians": 2, "lidar_range": 0.5, "cov": [0.1, 0.02],
            "agent_radius": 0.05, "xdim": 0.5, "ydim": 1.5, "grid_spacing": 0.25, "norm": False,
        },
    ],
    "simple_adversary": [{"n_agents": 5, "n_adversaries": 2}],
    "simple_crypto": [{"dim_c": 6}],
    "simple_spread": [{"n_agents": 5, "obs_agents": False}],
    "simple_tag": [
        {
            "num_good_agents": 3, "num_adversaries": 2, "num_landmarks": 1, "shape_agent_rew": True,
            "shape_adversary_rew": True, "agents_share_rew": True, "adversaries_share_rew": False,
            "observe_same_team": False, "observe_vel": False, "bound": 0.7,
        },
        {"num_good_agents": 2, "shape_adversary_rew": True, "observe_pos": False},
    ],
    "simple_world_comm": [
        {"num_good_agents": 3, "num_adversaries": 2, "num_landmarks": 2, "num_food": 1, "num_forests": 1},
    ],
    "transport": [
        {"n_agents": 2, "package_width": 0.3, "package_length": 0.2, "package_mass": 5},
        {"n_agents": 3, "n_packages": 2},
    ],
    "wheel": [{"n_agents": 2, "line_length": 1.6, "line_mass": 5, "desired_velocity": 0.3}],
    "wind_flocking": [
        {
            "wind": 2, "vel_shaping_factor": 2, "dist_shaping_factor": 3, "wind_shaping_factor": 4,
            "pos_shaping_factor": 1, "rot_shaping_factor": 0.5, "energy_shaping_factor": 0.2, "observe_pos": True,
            "cover_angle_tolerance": 0.7, "v_range": 0.3,
        },
        {
            "wind": 1, "use_controller": False, "f_range": 2, "observe_rel_pos": False, "observe_rel_vel": False,
            "desired_vel": 0.2,
        },
    ],
}  # fmt: skip
DISCRETE: dict[str, list[dict[str, Any]]] = {  # further cases with discrete actions
    "football": [
        {"ai_red_agents": False, "n_blue_agents": 2, "n_red_agents": 2, "enable_shooting": True, "shooting_angle": 4.0},
    ],
}
BENCHMARL["football_planner"] = BENCHMARL["football"]
ALWAYS = {"football": {"disable_ai_red": True}}  # in the cases of this task


# ------------------------------------------------------------------------------------ what a scenario remembers


def of_agents(attribute: str) -> Callable:
    """A value per policy agent."""
    return lambda env: {attribute: torch.stack([getattr(agent, attribute) for agent in env.agents])}


def of_scenario(*attributes: str) -> Callable:
    return lambda env: {name: getattr(env.scenario, name) for name in attributes}


def of_landmarks(*attributes: str) -> Callable:
    """A value per landmark that has it."""

    def read(env):
        found = [landmark for landmark in env.world.landmarks if hasattr(landmark, attributes[0])]
        return {name: torch.stack([getattr(landmark, name) for landmark in found]) for name in attributes}

    return read


def goals(env) -> dict[str, torch.Tensor]:
    """Which landmark each agent is about, -1 for none; what a secret is."""
    landmarks, found = env.world.landmarks, {}
    for name in ("goal", "goal_a", "goal_b"):
        values = [getattr(agent, name, None) for agent in env.world.agents]
        if any(isinstance(value, Landmark) for value in values):
            found[name] = torch.tensor([landmarks.index(v) if isinstance(v, Landmark) else -1 for v in values])
    return found


def controllers(env) -> dict[str, torch.Tensor]:
    """The memory of the agents' PID controllers."""
    agents = [agent for agent in env.agents if hasattr(agent, "controller")]
    zeros = torch.zeros(1, 2)
    read = lambda agent, name: zeros + getattr(agent.controller, name)  # noqa: E731
    return {name: torch.stack([read(agent, name) for agent in agents]) for name in ("accum_errs", "prev_err")}


def give_way(env) -> dict[str, torch.Tensor]:
    values = {**of_agents("shaping")(env), **(controllers(env) if env.scenario.use_velocity_controller else {})}
    queues = [getattr(agent, "input_queue", []) for agent in env.agents]
    if queues[0]:
        values["input_queue"] = torch.stack([torch.stack(list(queue)) for queue in queues])
    return values


def sampling(env) -> dict[str, torch.Tensor]:
    scenario = env.scenario
    return {"locs": torch.stack(scenario.locs), "max_pdf": scenario.max_pdf, "sampled": scenario.sampled}


def joint_passage(env) -> dict[str, torch.Tensor]:
    joint, names = env.scenario.joint, ("pos_shaping_pre", "pos_shaping_post", "rot_shaping_pre", "rot_shaping_post")
    values = {name: getattr(joint, name) for name in names if hasattr(joint, name)}
    values["passed"] = env.scenario.passed
    for name in ("pass_center", "big_passage_pos", "small_passage_pos", "middle_angle"):
        if hasattr(env.scenario, name):
            values[name] = getattr(env.scenario, name)
    uses = getattr(env.scenario, "use_controller", False) or getattr(env.scenario, "use_vel_controller", False)
    return {**values, **(controllers(env) if uses else {})}


def wind_flocking(env) -> dict[str, torch.Tensor]:
    values = of_scenario("t", "distance_shaping", "pos_shaping", "rot_shaping")(env)
    for name in ("vel_shaping", "energy_shaping", "wind_shaping"):
        values |= of_agents(name)(env)
    values["gravity"] = torch.stack([agent.gravity for agent in env.agents])
    return {**values, **(controllers(env) if env.scenario.use_controller else {})}


def crypto(env) -> dict[str, torch.Tensor]:
    alice = env.world.agents[2]
    return {"secret": alice.secret, "key": alice.key}


def planners(env) -> list:
    """The scripted teams of football."""
    scenario = env.scenario
    teams = ((scenario.ai_blue_agents, "blue_controller"), (scenario.ai_red_agents, "red_controller"))
    return [planner for scripted, name in teams if scripted and not (planner := getattr(scenario, name)).disabled]


def football(env) -> dict[str, torch.Tensor]:
    """The forces of the last step, the distances of the teams that learn, the aims of those that are scripted."""
    ball, scenario = env.scenario.ball, env.scenario
    learning = [team for team in ("blue", "red") if not getattr(scenario, f"ai_{team}_agents")]
    values = {"force": torch.stack([agent.state.force for agent in env.world.agents])}
    if learning:
        to_goal = torch.stack([getattr(ball, f"pos_shaping_{team}") for team in learning])
        to_ball = torch.stack([getattr(ball, f"pos_shaping_agent_{team}") for team in learning])
        values["dist_ball_to_goal"] = to_goal / scenario.pos_shaping_factor_ball_goal
        values["min_agent_dist_to_ball"] = to_ball / scenario.pos_shaping_factor_agent_ball
    aims = [planner.objectives[agent] for planner in planners(env) for agent in planner.teammates]
    for name in ("target_pos", "target_pos_rel") if aims else ():
        values[name] = torch.stack([aim[name] for aim in aims])
    return values


HIDDEN: dict[str, Callable] = {
    "balance": of_scenario("global_shaping"),
    "ball_passage": of_landmarks("pos_shaping_pre", "pos_shaping_post"),
    "ball_trajectory": of_scenario("pos_shaping", "speed_shaping", "dist_shaping"),
    "buzz_wire": of_scenario("pos_shaping"),
    "discovery": of_scenario("all_time_covered_targets"),
    "dispersion": of_landmarks("eaten"),
    "dropout": of_landmarks("eaten"),
    "football": football,
    "football_planner": football,
    "flocking": lambda env: {**of_scenario("t")(env), **of_agents("distance_shaping")(env)},
    "give_way": give_way,
    "joint_passage": joint_passage,
    "joint_passage_size": joint_passage,
    "multi_give_way": lambda env: {**of_agents("shaping")(env), **controllers(env)},
    "navigation": of_agents("pos_shaping"),
    "passage": of_agents("global_shaping"),
    "reverse_transport": of_landmarks("global_shaping", "on_goal"),
    "sampling": sampling,
    "simple_adversary": goals,
    "simple_crypto": crypto,
    "simple_push": goals,
    "simple_reference": goals,
    "simple_speaker_listener": goals,
    "transport": of_landmarks("global_shaping", "on_goal"),
    "wind_flocking": wind_flocking,
}


# ------------------------------------------------------------------------------------------- worlds of no task

FREE = {"movable": True, "rotatable": True}
WORLDS: dict[str, dict[str, Any]] = {  # what the test builds again from the same words
    "pairs": {
        "world": {"substeps": 2, "linear_friction": 0.05},
        "landmarks": [
            {"shape": ["Box", 0.4, 0.2], **FREE, "mass": 2.0},
            {"shape": ["Box", 0.5, 0.5, True], **FREE},
            {"shape": ["Box", 0.3, 0.2], "movable": True},
            {"shape": ["Line", 0.5], **FREE},
            {"shape": ["Line", 0.4]},
            {"shape": ["Sphere", 0.1], "movable": True, "mass": 0.5},
        ],
        "agents": [{"shape": ["Sphere", 0.07]}, {"shape": ["Box", 0.2, 0.1]}, {"shape": ["Line", 0.3]}],
    },
    "limits": {
        "world": {"substeps": 3, "drag": 0.1, "angular_friction": 0.02, "x_semidim": 1.0, "gravity": [0.1, -0.2]},
        "landmarks": [
            {"shape": ["Sphere", 0.05], "movable": True, "gravity": [0.0, 0.5], "drag": 0.5},
            {"shape": ["Line", 0.5], **FREE, "angular_friction": 0.5, "linear_friction": 0.3},
        ],
        "agents": [
            {"dynamics": ["HolonomicWithRotation"], "max_f": 0.4, "max_t": 0.0005, "u_multiplier": 1.5},
            {"dynamics": ["HolonomicWithRotation"], "f_range": 0.3, "t_range": 0.0003, "max_speed": 0.2},
            {"v_range": 0.1, "mass": 3.0, "u_range": 0.5, "gravity": [0.3, 0.0]},
        ],
    },
    "dynamics": {
        "world": {"dt": 0.05},
        "landmarks": [],
        "agents": [
            {"dynamics": [name, *arguments], "collide": False}
            for name, *arguments in (
                ("Holonomic",), ("HolonomicWithRotation",), ("Forward",), ("Rotation",), ("Static",),
                ("DiffDrive", "rk4"), ("DiffDrive", "euler"),
                ("KinematicBicycle", 0.05, 0.07, 0.6, "euler"), ("KinematicBicycle", 0.05, 0.07, 0.6, "rk4"),
            )
        ],
    },
    "joints": {
        "world": {"substeps": 5, "joint_force": 5.0, "torque_constraint_force": 0.002},
        "landmarks": [
            {"shape": ["Sphere", 0.05], "movable": True},
            {"shape": ["Box", 0.3, 0.2], **FREE},
            {"shape": ["Line", 0.4], **FREE},
        ],
        "agents": [{}, {"shape": ["Box", 0.2, 0.1]}],
        "rods": [["agent_0", "landmark_0", 0.3, 2.0]],
        "joints": [
            ["landmark_1", "agent_1", [1.0, -1.0], [0.0, 0.5], None],
            ["landmark_2", "landmark_1", [-1.0, 0.0], [0.5, 1.0], 0.4],
        ],
    },
    "lidar": {
        "world": {},
        "landmarks": [
            {"shape": ["Sphere", 0.2], "movable": True},
            {"shape": ["Box", 0.4, 0.2], **FREE},
            {"shape": ["Line", 0.6], **FREE},
        ],
        "agents": [{"dynamics": ["HolonomicWithRotation"]}, {}],
        "lidar": {"rays": 16, "reach": 0.7, "start": 0.05},
    },
}  # fmt: skip
# Two bodies each, far from all others: every pair of shapes, solid and hollow boxes apart. They are heavy, because
# forces are stiff: the last bit of a place moves the angular velocity of a light box by more than 1e-5.
SMALL = {"sphere": ["Sphere", 0.1], "line": ["Line", 0.3], "box": ["Box", 0.3, 0.2], "hollow": ["Box", 0.2, 0.15, True]}
LARGE = {
    "sphere": ["Sphere", 0.15], "line": ["Line", 0.5], "box": ["Box", 0.4, 0.2], "hollow": ["Box", 0.5, 0.5, True],
}  # fmt: skip
CONTACTS = [(a, b) for i, a in enumerate(LARGE) for b in list(SMALL)[: i + 1]]
WORLDS["contacts"] = {
    "world": {},
    "landmarks": [{"shape": LARGE[a], **FREE, "mass": 20.0} for a, _ in CONTACTS],
    "agents": [{"shape": SMALL[b], "rotatable": True, "mass": 20.0} for _, b in CONTACTS],
    "contacts": CONTACTS,
}
SHAPES = {"Sphere": Sphere, "Box": Box, "Line": Line}
DYNAMICS = {
    "Holonomic": Holonomic,
    "HolonomicWithRotation": HolonomicWithRotation,
    "Forward": Forward,
    "Rotation": Rotation,
    "Static": Static,
}


class Bodies(BaseScenario):
    """A world of :data:`WORLDS`: no reward, and observations only if it has a lidar."""

    def make_world(self, batch_dim: int, device, **kwargs) -> World:
        self.words = kwargs.pop("words")
        arguments = dict(self.words["world"])
        world = World(batch_dim, device, **arguments)
        for i, words in enumerate(self.words["landmarks"]):
            world.add_landmark(Landmark(f"landmark_{i}", **self.arguments(words, world)))
        for i, words in enumerate(self.words["agents"]):
            world.add_agent(Agent(f"agent_{i}", **self.arguments(words, world)))
        named = {entity.name: entity for entity in world.entities}
        for a, b, length, mass in self.words.get("rods", []):
            world.add_joint(Joint(named[a], named[b], dist=length, mass=mass))
        for a, b, anchor_a, anchor_b, lock in self.words.get("joints", []):
            turn = {"rotate_a": False, "rotate_b": False, "fixed_rotation_a": lock, "fixed_rotation_b": lock}
            world.add_joint(
                Joint(named[a], named[b], tuple(anchor_a), tuple(anchor_b), dist=0, **({} if lock is None else turn))
            )
        return world

    def arguments(self, words: dict, world: World) -> dict:
        """VMAS's arguments of an entity."""
        words = dict(words)
        if "shape" in words:
            kind, *sizes = words["shape"]
            words["shape"] = SHAPES[kind](*sizes)
        if "gravity" in words:
            words["gravity"] = torch.tensor(words["gravity"])
        if "dynamics" in words:
            kind, *sizes = words["dynamics"]
            if kind == "DiffDrive":
                words["dynamics"] = DiffDrive(world, integration=sizes[0])
            elif kind == "KinematicBicycle":
                front, rear, most, integration = sizes
                words["dynamics"] = KinematicBicycle(world, 0.1, front, rear, most, integration=integration)
            else:
                words["dynamics"] = DYNAMICS[kind]()
        if "lidar" in self.words and "movable" not in words:
            rays = self.words["lidar"]
            start = rays["start"]
            words["sensors"] = [Lidar(world, start, start + 2 * math.pi, n_rays=rays["rays"], max_range=rays["reach"])]
        return words

    def reset_world_at(self, env_index=None) -> None:
        for entity in self.world.entities:
            entity.set_pos(torch.rand(1, 2) * 1.2 - 0.6, batch_index=None)
            entity.set_rot(torch.rand(1, 1) * 6 - 3, batch_index=None)

    def reward(self, agent):
        return torch.zeros(1)

    def observation(self, agent):
        return agent.sensors[0].measure() if agent.sensors else torch.zeros(1, 1)


def record_bodies() -> dict[str, np.ndarray]:
    """Every world of no task, with its words as JSON."""
    arrays = {}
    for seed, (name, words) in enumerate(WORLDS.items()):
        env = vmas.make_env(
            scenario=Bodies(), num_envs=1, device="cpu", continuous_actions=True, clamp_actions=True, words=words
        )
        env.task = "bodies"
        recorded = record(env, "bodies", True, seed, TOUCHING if name == "contacts" else EPISODES)
        arrays |= {f"{name}/{field}": array for field, array in recorded.items()}
        arrays[f"{name}/words"] = np.array(json.dumps(words))
    return arrays


# ------------------------------------------------------------------------------------------- what a step draws


class Normals(TorchDispatchMode):
    """Keeps all standard normals that are drawn."""

    def __init__(self):
        super().__init__()
        self.drawn: list[np.ndarray] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if "randn" in str(function):
            self.drawn.append(found.detach().numpy().copy())
        return found


def football_normals(env, drawn: list[np.ndarray]) -> np.ndarray:
    """``[P, 11 + G]``: of each scripted player, those for two places, three values, where to and how fast it goes, and
    for who has the ball, which is asked ``G`` times; zeros where none was drawn."""
    queue, rows = list(drawn), []
    for planner in planners(env):
        names = [agent.name for agent in planner.teammates]
        asks = [name for name in names if "0" in name]
        normals = np.zeros((len(names), 11 + len(asks)), np.float32)
        vague, rough = planner.decision_strength != 1, planner.precision_strength != 1
        for i, name in enumerate(names):
            if name in asks and vague:
                normals[:, 11 + asks.index(name)] = queue.pop(0)[0, : len(names)]
            parts = [(7, 2), (9, 2)] * rough + [(0, 4)] + [(4, 3)] * vague + [(7, 2), (9, 2)] * rough
            for start, size in parts:
                if (values := queue.pop(0)).size:
                    normals[i, start : start + size] = values.reshape(-1)
        rows.append(normals)
    assert not queue
    width = max((row.shape[1] for row in rows), default=0)
    rows = [np.pad(row, ((0, 0), (0, width - row.shape[1]))) for row in rows]
    return np.concatenate(rows) if rows else np.zeros((0, 12), np.float32)


DRAWN: dict[str, Callable] = {"football_planner": football_normals}


# ---------------------------------------------------------------------------------------------------- recording


def read(env, hidden: Callable) -> dict[str, np.ndarray]:
    """The state of the one environment."""
    state = {f: np.stack([getattr(e.state, f)[0].numpy().copy() for e in env.world.entities]) for f in FIELDS}
    state["rot"], state["ang_vel"] = state["rot"][:, 0], state["ang_vel"][:, 0]
    if any(agent.state.c is not None for agent in env.world.agents):
        width = env.world.dim_c
        rows = [np.zeros(width, np.float32) if a.silent else a.state.c[0].numpy().copy() for a in env.world.agents]
        state["comm"] = np.stack(rows)
    for name, value in hidden(env).items():
        state[f"hidden.{name}"] = np.asarray(value).copy()
    return state


EVENTS = ("discovery", "dispersion", "dropout")  # reward that agents come to landmarks, not what changed since


def throw(env, rng: np.random.Generator) -> None:
    """Put every free body onto another one that it collides with, moving and turning; those in joints only stir.

    Where events are rewarded they are put onto the first two landmarks, which has not happened before the step.
    """
    joined = {entity.name for joint in env.world.joints for entity in (joint.entity_a, joint.entity_b)}
    entities = env.world.entities
    for entity in entities:
        if not entity.movable and not entity.rotatable:
            continue
        if entity.name in joined:
            entity.state.pos = entity.state.pos + torch.tensor(rng.normal(0, 0.01, (1, 2)), dtype=torch.float32)
        else:
            others = [o for o in entities if o is not entity and entity.collides(o)]
            others = env.world.landmarks[:2] if env.task in EVENTS else others
            if others and entity.movable:
                other = others[rng.integers(len(others))]
                reach = entity.shape.circumscribed_radius() + other.shape.circumscribed_radius()
                angle, far = rng.uniform(0, 2 * math.pi), rng.uniform(0.2, 1.0) * reach
                offset = [[far * math.cos(angle), far * math.sin(angle)]]
                if reach > 1:  # a wall or a floor: somewhere along it
                    offset = [[rng.uniform(-1, 1), rng.uniform(0.3, 0.56)]]
                entity.state.pos = other.state.pos + torch.tensor(offset, dtype=torch.float32)
            if entity.rotatable:
                entity.state.rot = torch.tensor(rng.uniform(-3, 3, (1, 1)), dtype=torch.float32)
        if entity.movable:
            entity.state.vel = torch.tensor(rng.normal(0, 0.3, (1, 2)), dtype=torch.float32)
        if entity.rotatable:
            entity.state.ang_vel = torch.tensor(rng.normal(0, 0.3, (1, 1)), dtype=torch.float32)
    for agent in env.agents if env.task not in EVENTS else []:
        env.scenario.reward(agent)  # brings what is remembered up to date


def crowd(env, rng: np.random.Generator) -> None:
    """Put football's players around the ball, most of them looking at it."""
    ball, players = env.scenario.ball, env.world.agents[:-1]
    ball.state.pos = torch.tensor(rng.uniform(-0.7, 0.7, (1, 2)), dtype=torch.float32)
    for player in players:
        angle, far = rng.uniform(-math.pi, math.pi), rng.uniform(0.04, 0.1)
        offset = torch.tensor([[far * math.cos(angle), far * math.sin(angle)]], dtype=torch.float32)
        player.state.pos = ball.state.pos - offset
        player.state.rot = torch.tensor([[angle + rng.normal(0, 0.7)]], dtype=torch.float32)
    for agent in env.agents:
        env.scenario.reward(agent)


def tensor(values) -> torch.Tensor:
    """Of the one environment."""
    return torch.tensor(np.reshape(values, (1, -1)), dtype=torch.float32)


def to_wall(rng: np.random.Generator, landmark: Landmark, agent: Agent) -> np.ndarray:
    """From the centre of a square box to where an agent inside it touches a wall."""
    angle = landmark.state.rot.item() + rng.integers(4) * math.pi / 2  # of the wall
    turn = agent.state.rot.item() - angle
    if isinstance(agent.shape, Sphere):
        reach = agent.shape.radius  # of the agent towards the wall
    else:
        width = agent.shape.width if isinstance(agent.shape, Box) else 0.0
        reach = (abs(agent.shape.length * math.cos(turn)) + abs(width * math.sin(turn))) / 2
    out, along = landmark.shape.length / 2 - reach + rng.uniform(-0.005, 0.003), rng.uniform(-0.05, 0.05)
    normal = np.array([math.cos(angle), math.sin(angle)])
    return out * normal + along * np.array([-normal[1], normal[0]])


def press(env, rng: np.random.Generator, i: int) -> None:
    """Move each agent of "contacts" up to the landmark of its number, until they touch; every other one from inside."""
    for number, (landmark, agent) in enumerate(zip(env.world.landmarks, env.agents, strict=True)):
        landmark.state.pos = tensor([1.1 * (number % 4) - 1.65, 1.1 * (number // 4) - 1.1])
        if CONTACTS[number][0] == "hollow" and i % 2:
            offset = to_wall(rng, landmark, agent)
        else:
            angle, depth = rng.uniform(0, 2 * math.pi), rng.uniform(0.0005, 0.006)
            direction = np.array([math.cos(angle), math.sin(angle)])
            free, deep = 0.7, 0.0  # how far from the landmark
            for _ in range(20):
                far = (free + deep) / 2
                agent.state.pos = landmark.state.pos + tensor(far * direction)
                if env.world.get_distance(landmark, agent).item() > 0:
                    free = far
                else:
                    deep = far
            offset = (deep - depth) * direction  # not just where the force sets in: it is not zero there
        agent.state.pos = landmark.state.pos + tensor(offset)
        for body in (landmark, agent):
            body.state.vel, body.state.ang_vel = tensor(rng.normal(0, 0.1, 2)), tensor(rng.normal(0, 0.1, 1))


def arrive_at_goals(env, rng: np.random.Generator, i: int) -> None:
    """Put the agents at their goals, closer or less close, or two against each other."""
    near = (0.005, 0.02, 0.06)[i % 3] * (0.4 if env.task == "passage" else 1.0)
    for agent in env.agents:
        agent.state.pos = agent.goal.state.pos + tensor(rng.normal(0, near, 2))
    if "give_way" in env.task and i % 3 == 2:
        first, second = env.agents[:2]
        reach = getattr(first.shape, "radius", None) or first.shape.length / 2
        first.state.pos, second.state.pos = tensor([-reach, 0.0]), tensor([reach + rng.uniform(0.0, 0.005), 0.0])
        first.state.vel, second.state.vel = tensor([0.1, 0.0]), tensor([-0.1, 0.0])


def arrive_with_rod(env, rng: np.random.Generator, i: int) -> None:
    """Lay the rod on its goal, exactly or nearly, or put it upright into a gap, one agent above the wall."""
    scenario = env.scenario
    goal, rod = scenario.goal.state, scenario.joint.landmark.state
    if i % 3 == 2:
        gap = next(x for x in env.world.landmarks if x.name.startswith("passage") and not x.collide)
        rot = tensor([math.pi / 2])
        lowest = gap.shape.width / 2 + (rng.uniform(-0.03, -0.01) if i == 2 else rng.uniform(-0.01, 0.02))  # agent 0
        pos = gap.state.pos + tensor([0.0, scenario.joint_length / 2 + lowest])
    else:
        rot = goal.rot + tensor([math.pi * (i // 3) + rng.normal(0, 0.004)])
        pos = goal.pos + tensor(rng.normal(0, (0.003, 0.02)[i % 3], 2))
    half = scenario.joint_length / 2 * torch.cat([rot.cos(), rot.sin()], dim=-1)
    rod.pos, rod.rot = pos, rot
    for agent, side in zip(env.agents, (-1, 1), strict=True):
        agent.state.pos = pos + side * half
    for landmark in env.world.landmarks:
        if landmark.name == "mass":
            landmark.state.pos = pos + scenario.mass_position * half


def arrive_at_targets(env, rng: np.random.Generator, i: int) -> None:
    """All targets of discovery but one or two were covered; enough agents are at the first of these, or too few."""
    scenario = env.scenario
    scenario.all_time_covered_targets[:] = True
    scenario.all_time_covered_targets[:, : 1 + (i % 3 == 2)] = False
    for agent in env.agents[: scenario._agents_per_target - i % 2]:
        agent.state.pos = env.world.landmarks[0].state.pos + tensor(rng.uniform(-0.1, 0.1, 2))


def arrive_with_ball(env, rng: np.random.Generator, i: int) -> None:
    """Put football's ball on the line of a goal, moving on."""
    scenario, side = env.scenario, 1 - 2 * (i % 2)
    ball = scenario.ball.state
    ball.pos = tensor([side * (scenario.pitch_length / 2 + rng.uniform(-0.03, 0.05)), rng.uniform(-0.1, 0.1)])
    ball.vel = tensor([side * rng.uniform(0.1, 0.3), 0.0])


ARRIVE: dict[str, Callable] = {
    "discovery": arrive_at_targets,
    "football": arrive_with_ball,
    "give_way": arrive_at_goals,
    "joint_passage": arrive_with_rod,
    "joint_passage_size": arrive_with_rod,
    "multi_give_way": arrive_at_goals,
    "navigation": arrive_at_goals,
    "passage": arrive_at_goals,
}


def pad(rows: list[np.ndarray]) -> np.ndarray:
    """Stack vectors of different lengths, zeros behind the shorter ones."""
    size = max((len(row) for row in rows), default=0)
    return np.array([np.pad(row, (0, size - len(row))) for row in rows], np.float32).reshape(len(rows), size)


def draw(env, rng: np.random.Generator, kind: str, continuous: bool) -> list[np.ndarray]:
    """An action per agent; ``push``: as hard as it goes in a direction, with words at random."""
    actions = []
    for agent, space in zip(env.agents, env.action_space, strict=True):
        if not continuous:
            actions.append(rng.integers(0, space.n, size=1))
            continue
        size = agent.action_size
        limit = agent.action.u_range_tensor.numpy().reshape(-1)
        move = rng.uniform(-1.1, 1.1, size) if kind != "push" else rng.choice([-1.0, 1.0], size)
        move = 0.3 * move if kind == "arrived" else move  # to stay there
        words = rng.uniform(-0.1, 1.1, space.shape[0] - size)
        actions.append(np.concatenate([move * limit, words]).astype(np.float32))
    return actions


def episode(env, task: str, rng, kind: str, steps: int, continuous: bool, number: int) -> dict[str, np.ndarray]:
    """The ``number``-th episode of its kind: ``[steps + 1]`` states and ``[steps]`` of all else."""
    env.reset(seed=int(rng.integers(2**31)))
    if kind == "touching":
        press(env, rng, number)
    if kind == "arrived":
        ARRIVE[task](env, rng, number)
        for agent in env.agents if number % 2 and task not in EVENTS else []:
            env.scenario.reward(agent)  # brings what is remembered up to date
    if kind == "thrown":
        throw(env, rng)
        if task in SHORT and rng.uniform() < 0.6:
            crowd(env, rng)
    hidden = HIDDEN.get(task, lambda env: {})
    states, rows = [read(env, hidden)], []
    actions = draw(env, rng, kind, continuous)
    for _ in range(steps):
        if kind != "push":
            actions = draw(env, rng, kind, continuous)
        tensors = [torch.tensor(action)[None] for action in actions]
        with Normals() if task in DRAWN else nullcontext() as normals:
            obs, reward, done, info = env.step(tensors)
        row = {
            "action": pad(actions) if continuous else np.concatenate(actions),
            "obs": pad([o[0].numpy() for o in obs]),
            "reward": np.array([r.reshape(-1)[0].item() for r in reward], np.float32),
            "done": done[0].numpy(),
        }
        if task in DRAWN:
            row["normals"] = DRAWN[task](env, normals.drawn)
        for name in info[0] if info else ():
            row[f"info.{name}"] = np.stack([np.asarray(i[name][0], np.float32).reshape(-1) for i in info])
        rows.append(row)
        states.append(read(env, hidden))
    stacked = {name: np.stack([state[name] for state in states]) for name in states[0]}
    return stacked | {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def record(env, task: str, continuous: bool, seed: int, kinds: dict) -> dict[str, np.ndarray]:
    """All episodes of a case: ``<kind>/<field>`` with ``[episode, step]`` in front."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {
        "entities": np.array([entity.name for entity in env.world.entities]),
        "agents": np.array([agent.name for agent in env.agents]),
        "obs_sizes": np.array([space.shape[0] for space in env.observation_space]),
    }
    for kind, (number, steps) in kinds.items():
        if not continuous and kind == "push":
            continue
        if kind == "arrived" and (task not in ARRIVE or getattr(env.scenario, "targets_respawn", False)):
            continue
        each = range(number if continuous else 1)
        found = [episode(env, task, rng, kind, steps, continuous, i) for i in each]
        arrays |= {f"{kind}/{name}": np.stack([e[name] for e in found]) for name in found[0]}
    return arrays


QUANTILES = np.linspace(0, 1, 33)
DRAWS = {"sampling": sampling, "simple_crypto": crypto} | {
    f"simple_{x}": goals for x in ("adversary", "push", "reference", "speaker_listener")
}


def spawns(env, resets: int = 1000) -> dict[str, np.ndarray]:
    """How VMAS's resets are distributed: quantiles of every coordinate and angle, of the least distance, and of the
    hidden values that are drawn."""
    poses, draws = [], []
    for seed in range(resets):
        env.reset(seed=seed)
        state = read(env, DRAWS.get(env.task, lambda env: {}))
        poses.append(np.concatenate([state["pos"], state["rot"][:, None]], axis=1))
        draws.append(
            {
                n: np.squeeze(v).astype(float)
                for n, v in state.items()
                if n.startswith("hidden.") and n != "hidden.sampled"
            }
        )
    hidden = {name: np.quantile(np.stack([draw[name] for draw in draws]), QUANTILES, axis=0) for name in draws[0]}
    drawn = np.stack(poses)  # [resets, N, 3]
    apart = np.linalg.norm(drawn[:, :, None, :2] - drawn[:, None, :, :2], axis=-1)
    apart[:, np.arange(drawn.shape[1]), np.arange(drawn.shape[1])] = np.inf
    nearest = np.quantile(apart.min(axis=(1, 2)), QUANTILES)
    return {"poses": np.quantile(drawn, QUANTILES, axis=0), "nearest": nearest, **hidden}


def respawns(env, steps: int = 1000) -> dict[str, np.ndarray]:
    """Where a covered target of discovery goes, from one state: quantiles of its place and of how near others are."""
    env.reset(seed=0)
    entities, target = env.world.entities, env.world.landmarks[0]
    for agent, offset in zip(env.agents, ([0.11, 0.0], [-0.11, 0.0]), strict=False):
        agent.state.pos = target.state.pos + tensor(offset)
    start, places = [entity.state.pos.clone() for entity in entities], []
    for _ in range(steps):
        for entity, pos in zip(entities, start, strict=True):
            entity.state.pos, entity.state.vel = pos.clone(), torch.zeros(1, 2)
        env.step([torch.zeros(1, 2) for _ in env.agents])
        places.append(np.stack([entity.state.pos[0].numpy().copy() for entity in entities]))
    drawn = np.stack(places)  # [steps, N, 2]
    nearest = np.linalg.norm(drawn[:, 1:] - drawn[:, :1], axis=-1).min(axis=1)
    return {
        "pos": np.concatenate([pos.numpy() for pos in start]),
        "places": np.quantile(drawn[:, 0], QUANTILES, axis=0),
        "nearest": np.quantile(nearest, QUANTILES),
    }


def record_task(task: str) -> dict[str, np.ndarray]:
    """Every case of a task: ``<case>/...``, with the arguments that differ from BenchMARL's as JSON."""
    arrays = {}
    cases = [("default", {}, True), ("discrete", {}, False)]
    cases += [(f"extra_{i}", extra, True) for i, extra in enumerate(EXTRA.get(task, []))]
    cases += [(f"discrete_{i}", extra, False) for i, extra in enumerate(DISCRETE.get(task, []))]
    for seed, (case, extra, continuous) in enumerate(cases):
        extra = {**ALWAYS.get(task, {}), **extra}
        env = vmas.make_env(
            scenario=task.removesuffix("_planner"),
            num_envs=1,
            device="cpu",
            continuous_actions=continuous,
            clamp_actions=True,
            **{**BENCHMARL[task], **extra},
        )
        env.task = task
        recorded = record(env, task, continuous, seed, SHORT.get(task, EPISODES))
        if continuous and not task.endswith("_planner"):
            resets = 150 if task == "sampling" else 1000  # one of sampling takes a second
            recorded |= {f"spawn/{name}": array for name, array in spawns(env, resets).items()}
        if continuous and getattr(env.scenario, "targets_respawn", False):
            recorded |= {f"respawn/{name}": array for name, array in respawns(env).items()}
        arrays |= {f"{case}/{name}": array for name, array in recorded.items()}
        arrays[f"{case}/kwargs"] = np.array(json.dumps(extra))
    return arrays


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("tasks", nargs="*", help="all, if none is named")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "tests" / "data" / "vmas")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    for task in options.tasks or (*BENCHMARL, "bodies"):
        arrays = record_bodies() if task == "bodies" else record_task(task)
        compact = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in arrays.items()}
        path = options.out / f"{task}.npz"
        np.savez_compressed(path, **compact)
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KB", flush=True)


if __name__ == "__main__":
    main()
