"""The battle: its state, the step, the script of the enemies, and what the allies see.

Shapes: A allies, M enemies, U = A + M units (allies first), E environments, F features of a unit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.envs.base import Discrete, Env, TimeStep
from shoal.envs.options import check_choice, check_count
from shoal.envs.smax.arrays import batched_last, distance, fold, heading, pick, push
from shoal.envs.smax.units import TYPES, Stats, per_type

HORIZON = 100
MOVES = 5  # north, east, south, west, stop
STOP = 4
SECTIONS, PER_SECTION = 32, 2  # of a conic observation
SPREAD = 2.0  # units start within this of their place, per coordinate


class State(struct.PyTreeNode):
    """The battle between two steps; a unit is alive while it has health."""

    pos: chex.Array  # [2, U] x and y
    health: chex.Array  # [U]
    cooldown: chex.Array  # [U] seconds until a unit can attack again
    types: chex.Array  # [U] int32
    action: chex.Array  # [U] int32: what a unit did last
    goal: chex.Array  # [2, M] where an enemy goes while it sees nobody
    prey: chex.Array  # [M] int32: whom an enemy attacked last, counted as in its actions; -1 for nobody


class Viewer(NamedTuple):
    """An ally that looks around, or several along a leading axis."""

    number: chex.Array  # []
    place: chex.Array  # [2, E]
    sight: chex.Array  # [E] how far it sees
    alive: chex.Array  # [E]
    own: chex.Array  # [F', E] what it knows of itself


class Smax(Env):
    """A battle of allies, which are the agents, against enemies, which follow a script."""

    horizon = HORIZON

    def __init__(
        self,
        units: tuple[str, str] | int,
        *,
        map_width: float = 32,
        map_height: float = 32,
        world_steps_per_env_step: int = 8,
        time_per_step: float = 1.0 / 16,
        enemy_shoots: bool = True,
        attack_mode: str = "closest",
        see_enemy_actions: bool = True,
        walls_cause_death: bool = True,
        won_battle_bonus: float = 1.0,
        use_self_play_reward: bool = False,
        observation_type: str = "unit_list",
        unit_type_velocities: Sequence[float] = (3.15, 2.25, 4.13, 3.15, 4.13, 3.15),
        unit_type_attacks: Sequence[float] = (9.0, 10.0, 13.0, 8.0, 5.0, 12.0),
        unit_type_attack_ranges: Sequence[float] = (5.0, 6.0, 6.0, 2.0, 2.0, 5.0),
        unit_type_sight_ranges: Sequence[float] = (9.0, 10.0, 10.0, 9.0, 8.0, 9.0),
        unit_type_radiuses: Sequence[float] = (0.375, 0.5625, 0.625, 0.5, 0.375, 0.625),
        unit_type_health: Sequence[float] = (45.0, 125.0, 160.0, 150.0, 35.0, 80.0),
        unit_type_weapon_cooldowns: Sequence[float] = (0.61, 1.07, 1.87, 0.86, 0.5, 0.59),
    ):
        """``units``: an entry of ``MAPS``; what is given by ``unit_type`` has a number for each of ``TYPES``."""
        check_choice("attack_mode", attack_mode, ("closest", "random"))
        check_choice("observation_type", observation_type, ("unit_list", "conic"))
        check_count("world_steps_per_env_step", world_steps_per_env_step, 1)
        self.table = Stats(
            velocities=per_type("unit_type_velocities", unit_type_velocities),
            attacks=per_type("unit_type_attacks", unit_type_attacks),
            attack_ranges=per_type("unit_type_attack_ranges", unit_type_attack_ranges),
            sight_ranges=per_type("unit_type_sight_ranges", unit_type_sight_ranges),
            radiuses=per_type("unit_type_radiuses", unit_type_radiuses),
            health=per_type("unit_type_health", unit_type_health),
            weapon_cooldowns=per_type("unit_type_weapon_cooldowns", unit_type_weapon_cooldowns),
        )  # [K]
        self.random_units = isinstance(units, int)
        teams = ("m" * units,) * 2 if isinstance(units, int) else units
        self.allies, self.enemies = map(len, teams)
        self.types = np.array([TYPES.index(unit) for unit in "".join(teams)], np.int32)
        self.size = np.array([map_width, map_height], np.float32)
        self.substeps, self.seconds = world_steps_per_env_step, time_per_step
        self.enemy_shoots, self.attack_mode = enemy_shoots, attack_mode
        self.see_enemy_actions, self.walls_cause_death = see_enemy_actions, walls_cause_death
        self.won_battle_bonus, self.use_self_play_reward = won_battle_bonus, use_self_play_reward
        self.observation_type = observation_type
        # Nobody attacks twice within these world steps, so that they can share their random numbers.
        self.between_shots = max(1, math.floor(self.table.weapon_cooldowns.min() / time_per_step))

        self.agents = tuple(f"ally_{i}" for i in range(self.allies))
        self.groups = ("ally",) * self.allies
        own, other = 4 + len(TYPES), 7 + len(TYPES)
        seen = self.units - 1 if observation_type == "unit_list" else SECTIONS * PER_SECTION
        self.obs_sizes = (other * seen + own,) * self.allies
        self.state_size = (own + 2) * self.units
        self.action_space = Discrete((MOVES + self.enemies,) * self.allies)
        self._begin, self._advance = batched_last(self.begin), batched_last(self.advance)

    @property
    def units(self) -> int:
        """``U``."""
        return self.allies + self.enemies

    @property
    def shots(self) -> int:
        """The most that a unit can fire in one step."""
        return -(-self.substeps // self.between_shots)

    def reset(self, key: chex.PRNGKey) -> tuple[State, TimeStep]:
        numbers = 2 * self.units + (2 * self.allies + 6 if self.random_units else 0)
        return self._begin(jax.random.uniform(key, (numbers,)))

    def step(self, key: chex.PRNGKey, state: State, action: chex.Array) -> tuple[State, TimeStep]:
        numbers = self.shots * self.units + (2 if self.attack_mode == "random" else 1) * self.enemies
        return self._advance(state, action, jax.random.uniform(key, (numbers,)))

    def begin(self, uniform: chex.Array) -> tuple[State, TimeStep]:
        """The first states of ``E`` battles; ``uniform``: the random numbers, ``[.., E]`` in [0, 1)."""
        units, count = self.units, uniform.shape[-1]
        types = jnp.broadcast_to(self.types[:, None], (units, count))
        noise, rest = uniform[: 2 * units].reshape(2, units, count), uniform[2 * units :]
        if self.random_units:
            types = jnp.tile(jnp.floor(rest[: self.allies] * len(TYPES)).astype(jnp.int32), (2, 1))
            pos = self._random_places(noise, rest[self.allies :])
        else:
            east = np.where(np.arange(units) < self.allies, 0.25, 0.75)
            place = np.stack([east * self.size[0], np.full(units, 0.5 * self.size[1])]).astype(np.float32)
            pos = place[..., None] + SPREAD * (2.0 * noise - 1.0)
        stats = self.stats(types)
        health = jnp.broadcast_to(stats.health, (units, count))
        pos = push(pos, health > 0, stats.radiuses)
        state = State(
            pos=pos,
            health=health,
            cooldown=jnp.zeros((units, count)),
            types=types,
            action=jnp.full((units, count), STOP, jnp.int32),
            goal=self.size[:, None, None] - pos[:, self.allies :],
            prey=jnp.full((self.enemies, count), -1, jnp.int32),
        )
        return state, self.timestep(state, stats, jnp.zeros(count))

    def _random_places(self, noise: chex.Array, uniform: chex.Array) -> chex.Array:
        """SMACv2's: one team in the middle and the other around it, or mirrored; ``[2, U, E]``."""
        team, size = self.allies, self.size[:, None, None]
        group, along, coins = uniform[:team] * 4, uniform[team : team + 4], uniform[team + 4 :] < 0.5
        corners = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32).T[..., None] * size  # [2, 4, 1]
        groups = along * size / 2 + (1.0 - along) * corners  # [2, 4, E]
        around = fold(jnp.stack([jnp.where(jnp.floor(group) == i, groups[:, i, None], 0.0) for i in range(4)]), 0)
        middle = jnp.broadcast_to(size / 2, around.shape)
        surround = jnp.where(
            coins[0], jnp.concatenate([middle, around], axis=1), jnp.concatenate([around, middle], axis=1)
        ) + SPREAD * (2.0 * noise - 1.0)
        west = noise[:, :team] * size * np.array([0.5, 1.0], np.float32)[:, None, None]
        east = jnp.stack([self.size[0] - west[0], west[1]])
        return jnp.where(coins[1], surround, jnp.concatenate([west, east], axis=1))

    def advance(self, state: State, action: chex.Array, uniform: chex.Array) -> tuple[State, TimeStep]:
        """One step of ``E`` battles; ``uniform``: the random numbers, ``[.., E]`` in [0, 1)."""
        stats, count = self.stats(state.types), action.shape[-1]
        numbers = self.shots * self.units
        enemy_action, prey = self.enemy_actions(state, stats, uniform[numbers:])
        action = jnp.concatenate([action, enemy_action])  # [U, E]
        # A new cooldown is off by -1 to 2 world steps.
        late = self.seconds * (3.0 * uniform[:numbers].reshape(self.shots, self.units, count) - 1.0)
        late = jnp.repeat(late, self.between_shots, axis=0)[: self.substeps]
        carry = state.pos, state.health, state.cooldown
        step = partial(self._world_step, action=action, stats=stats)
        (pos, health, cooldown), _ = jax.lax.scan(step, carry, late)
        before, state = state, state.replace(pos=pos, health=health, cooldown=cooldown, action=action, prey=prey)
        return state, self.timestep(state, stats, self.reward(before, state, stats))

    def _world_step(self, carry: tuple, late: chex.Array, action: chex.Array, stats: Stats) -> tuple[tuple, None]:
        """A part of a step: all units move and attack at once, then those that overlap part."""
        (pos, health, cooldown), allies = carry, self.allies
        alive = health > 0
        moved = jnp.clip(pos + heading(action) * (stats.velocities * self.seconds), 0.0, self.size[:, None, None])
        moved = jnp.where(alive, moved, pos)

        both = alive[:allies, None] & alive[allies:]
        far = jnp.where(both, distance(pos[:, :allies], pos[:, allies:]), jnp.inf)  # [A, M, E]
        ally_aims = action[:allies, None] == np.arange(self.enemies)[:, None] + MOVES  # [A, M, E]
        enemy_aims = action[None, allies:] == allies - 1 - np.arange(allies)[:, None, None] + MOVES  # [A, M, E]
        near = [
            fold(ally_aims & (far < stats.attack_ranges[:allies, None]), 1, operator.or_),
            fold(enemy_aims & (far < stats.attack_ranges[None, allies:]), 0, operator.or_),
        ]
        fires = jnp.concatenate(near) & (cooldown <= 0.0)
        power = jnp.where(fires, stats.attacks, 0.0)
        damage = [
            fold(jnp.where(enemy_aims, power[None, allies:], 0.0), 1),
            fold(jnp.where(ally_aims, power[:allies, None], 0.0), 0),
        ]
        health = jnp.maximum(health - jnp.concatenate(damage), 0.0)
        cooldown = jnp.where(fires, stats.weapon_cooldowns + late, cooldown - self.seconds)
        if self.walls_cause_death:
            inside = (moved > 0.0) & (moved < self.size[:, None, None])
            health = jnp.where(inside[0] & inside[1], health, 0.0)
        return (push(moved, health > 0, stats.radiuses), health, cooldown), None

    def enemy_actions(self, state: State, stats: Stats, uniform: chex.Array) -> tuple[chex.Array, chex.Array]:
        """What the script does, ``[M, E]``, and its ``prey``.

        An enemy attacks one in range until that is dead or away; else it follows someone that it sees; else it goes
        to the point opposite to its start. It counts the allies from the last to the first.
        """
        allies, enemies = self.allies, self.enemies
        pos, alive = state.pos, state.health > 0
        backwards = pos[:, :allies][:, ::-1]
        way = backwards[:, None] - pos[:, allies:, None]  # [2, M, A, E]
        far = jnp.sqrt(way[0] ** 2 + way[1] ** 2)
        visible = (far < stats.sight_ranges[allies:, None]) & alive[:allies][::-1] & alive[allies:, None]
        in_range = (far < stats.attack_ranges[allies:, None]) & visible
        if self.attack_mode == "random":
            new = pick(in_range, uniform[enemies:])
        else:
            far = jnp.where(in_range, far, jnp.inf)
            new = in_range & (far == fold(far, 1, jnp.minimum)[:, None])
        number = np.arange(allies, dtype=np.int32)[:, None]
        old = in_range & (state.prey[:, None] == number)
        chosen = jnp.where(fold(old, 1, operator.or_)[:, None], old, new)
        prey = fold(jnp.where(chosen, number, -1), 1, jnp.maximum)

        followed = pick(visible, uniform[:enemies])
        at = jnp.where(alive[allies:], pos[:, allies:], 0.0)  # what the dead see of themselves
        way = jnp.where(fold(visible, 1, operator.or_), fold(jnp.where(followed, way, 0.0), 2), state.goal - at)
        vertical = jnp.where(way[1] >= 0.0, 0, 2)
        move = jnp.where(jnp.abs(way[1]) >= jnp.abs(way[0]), vertical, jnp.where(way[0] >= 0.0, 1, 3))
        return jnp.where((prey >= 0) & self.enemy_shoots, prey + MOVES, move), prey

    def reward(self, before: State, state: State, stats: Stats) -> chex.Array:
        """``[E]``, the same for all allies: the share of health that the enemies lost, and a bonus for the victory."""
        lost = fold(((before.health - state.health) / stats.health)[self.allies :], 0)
        harm = jnp.zeros_like(lost) if self.use_self_play_reward else jnp.abs(lost) / self.enemies
        ours, theirs = self.teams_alive(state)
        defeat = jnp.where(theirs & ~ours, -self.won_battle_bonus, 0.0) if self.use_self_play_reward else 0.0
        return harm + jnp.where(ours & ~theirs, self.won_battle_bonus, 0.0) + defeat

    def teams_alive(self, state: State) -> tuple[chex.Array, chex.Array]:
        """Whether any ally is alive and whether any enemy is, ``[E]`` each."""
        health = state.health[: self.allies], state.health[self.allies :]
        return fold(health[0] > 0, 0, operator.or_), fold(health[1] > 0, 0, operator.or_)

    def timestep(self, state: State, stats: Stats, reward: chex.Array) -> TimeStep:
        """What the allies see, ``[.., E]``."""
        allies, alive = self.allies, state.health > 0
        health, place = (state.health / stats.health)[:, None], state.pos.swapaxes(0, 1)
        types = (state.types[:, None] == np.arange(len(TYPES))[:, None]).astype(jnp.float32)  # [U, K, E]
        ready = jnp.clip(state.cooldown / stats.weapon_cooldowns, 0.0, 1.0)[:, None]

        world = jnp.concatenate([health, place, state.cooldown[:, None], types], axis=1)
        world = jnp.where(alive[:, None], world, 0.0).reshape(-1, alive.shape[-1])
        team = jnp.broadcast_to((np.arange(self.units) >= allies)[:, None].astype(np.float32), alive.shape)

        own = jnp.concatenate([health, place / self.size[:, None], ready, types], axis=1)
        own = jnp.where(alive[:, None], own, 0.0)
        seen = jnp.concatenate([health, place, self.deeds(state), ready, types], axis=1)  # [U, F, E]
        sight = jnp.broadcast_to(stats.sight_ranges, alive.shape)
        # A loop, because XLA would otherwise fuse all of it into the transposition that follows, which takes long.
        viewers = jax.tree.map(lambda x: x[:allies], Viewer(np.arange(allies), place, sight, alive, own))
        obs = jax.lax.map(partial(self.look, seen=seen, alive=alive), viewers)

        far = distance(state.pos[:, :allies], state.pos[:, allies:])  # [A, M, E]
        shootable = (far < stats.attack_ranges[:allies, None]) & alive[:allies, None] & alive[allies:]
        moves = jnp.broadcast_to(alive[:allies, None], (allies, STOP, alive.shape[-1]))
        ours, theirs = self.teams_alive(state)
        return TimeStep(
            obs=obs,
            state=jnp.concatenate([world, team, state.types.astype(jnp.float32)]),
            action_mask=jnp.concatenate([moves, jnp.ones_like(moves[:, :1]), shootable], axis=1),
            reward=jnp.broadcast_to(reward, (allies, *reward.shape)),
            terminated=~(ours & theirs),
            truncated=jnp.zeros_like(ours),
            alive=alive[:allies],
            info={"won": (ours & ~theirs).astype(jnp.float32)},
        )

    def deeds(self, state: State) -> chex.Array:
        """What the units did last, as they are seen: the direction and whom they attacked, ``[U, 3, E]``."""
        most = np.where(np.arange(self.units) < self.allies, self.enemies, self.allies)[:, None] + MOVES - 1
        attack = jnp.where(state.action >= MOVES, state.action, 0) / most
        deeds = jnp.stack([*heading(state.action), attack], axis=1)
        return deeds if self.see_enemy_actions else deeds.at[self.allies :].set(0.0)

    def look(self, viewer: Viewer, seen: chex.Array, alive: chex.Array) -> chex.Array:
        """What one ally observes, ``[O, E]``; ``seen [U, F, E]`` are all units on the map, ``alive`` is ``[U, E]``."""
        own = viewer.own
        way = (seen[:, 1:3] - viewer.place) / viewer.sight
        visible = (jnp.sqrt(way[:, 0] ** 2 + way[:, 1] ** 2) < 1.0) & viewer.alive
        parts = seen[:, :1], way, seen[:, 3:]
        if self.observation_type == "conic":
            others = self.in_directions(viewer.number, jnp.concatenate(parts, axis=1), visible)
        else:
            visible = (visible & alive)[:, None]
            seen = jnp.concatenate([jnp.where(visible, part, 0.0) for part in parts], axis=1)
            before = np.arange(self.units - 1)[:, None, None] < viewer.number
            others = jnp.where(before, seen[:-1], seen[1:])  # all but itself
        return jnp.concatenate([others.reshape(-1, own.shape[-1]), own])

    def in_directions(self, viewer: chex.Array, seen: chex.Array, visible: chex.Array) -> chex.Array:
        """The first two units in each of 32 directions, ``[32, 2, F, E]``; as in JaxMARL never unit 0."""
        x, y, unit = seen[:, 1], seen[:, 2], np.arange(self.units)[:, None]
        angle = jnp.arctan(y / (x + 1e-8)) + (x < 0) * (2.0 * (y > 0) - 1.0) * math.pi  # [U, E]
        edges = (2.0 * math.pi * np.arange(SECTIONS + 1) / SECTIONS - math.pi).astype(np.float32)[:, None]
        within = (angle[:, None] > edges[:-1]) & (angle[:, None] < edges[1:])
        within &= (visible & (unit != viewer) & (unit > 0))[:, None]  # [U, 32, E]
        rank = jnp.cumsum(within, axis=0)
        chosen = jnp.stack([within & (rank == place) for place in range(1, PER_SECTION + 1)], axis=2)
        return jnp.einsum("usne,ufe->snfe", chosen.astype(jnp.float32), seen)

    def stats(self, types: chex.Array) -> Stats:
        """Every unit's."""
        if not self.random_units:
            return jax.tree.map(lambda row: row[self.types][:, None], self.table)
        return jax.tree.map(lambda row: sum((types == i) * value for i, value in enumerate(row)), self.table)
