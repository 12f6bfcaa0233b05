"""What an environment returns is compared with what it declares, field by field, in one line each."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.envs import registry
from shoal.envs.base import Continuous, Discrete, Env, MultiDiscrete, TimeStep
from shoal.envs.check import check, check_facts
from shoal.errors import UserError


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))


class Walk(Env):
    """Two agents on a line; ``wrong`` replaces fields of the time step, after reset, step or both."""

    def __init__(self, wrong=None, after=("reset", "step"), **facts):
        self.agents, self.groups = ("a", "b"), ("team", "team")
        self.obs_sizes, self.state_size, self.action_space, self.horizon = (2, 3), 6, Discrete((3, 2)), 10
        vars(self).update(facts)
        self.wrong, self.after = wrong or {}, after

    def reset(self, key):
        return self.show("reset", {"pos": jnp.zeros(2), "time": jnp.int32(0)})

    def step(self, key, state, action):
        return self.show("step", {"pos": state["pos"] + action, "time": state["time"] + 1})

    def show(self, name, state):
        timestep = TimeStep(
            obs=jnp.zeros((2, 3)),
            state=jnp.zeros(6),
            action_mask=jnp.ones((2, 3), bool),
            reward=-jnp.abs(state["pos"]),
            terminated=False,  # a plain False is enough
            truncated=False,
            alive=np.ones(2, bool),
            info={"won": jnp.float32(0)},
        )
        return state, timestep.replace(**self.wrong) if name in self.after else timestep


def refusal(env) -> str:
    """The line that ``check`` raises, without the name of the environment."""
    env.name = "my/walk"
    with pytest.raises(UserError) as error:
        check(env)
    text = str(error.value)
    assert text.startswith("env=my/walk: ") and "\n" not in text
    return text.removeprefix("env=my/walk: ")


def test_a_right_environment_passes():
    check(Walk())
    check(Walk(action_space=Continuous.box((3, 3), -1.0, 1.0), step=lambda key, state, action: Walk().reset(key)))
    check(Walk({"reward": np.zeros(2)}))  # 64 bits become 32 in JAX
    envs.register("my/walk", Walk)
    env = envs.make("my/walk")
    check(env)
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    state, _ = jax.vmap(env.reset)(keys)
    _, timestep = jax.vmap(env.step)(keys, state, jnp.zeros((4, 2), jnp.int32))
    assert timestep.truncated.dtype == bool and not timestep.truncated.any()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("reward", 0.0, "reward after reset is float32 []: must be float32 [2] (agents)"),
        ("reward", jnp.zeros(2, int), "reward after reset is int32 [2]: must be float32 [2] (agents)"),
        ("reward", [0.0, 0.0], "reward after reset is a list: must be float32 [2] (agents)"),
        (
            "obs",
            jnp.zeros((2, 2)),
            "obs after reset is float32 [2, 2]: must be float32 [2, 3] (agents, the largest of obs_",
        ),
        ("obs", jnp.zeros((2, 3), jnp.bfloat16), "obs after reset is bfloat16 [2, 3]: must be float32 [2, 3]"),
        ("obs", None, "obs after reset is None: must be float32 [2, 3]"),
        ("state", jnp.zeros(5), "state after reset is float32 [5]: must be float32 [6] (state_size)"),
        ("action_mask", jnp.ones((2, 2), bool), "action_mask after reset is bool [2, 2]: must be bool [2, 3]"),
        ("action_mask", jnp.ones((2, 3)), "action_mask after reset is float32 [2, 3]: must be bool [2, 3]"),
        ("terminated", 0, "terminated after reset is int32 []: must be bool [] (one for all agents)"),
        ("terminated", jnp.zeros(2, bool), "terminated after reset is bool [2]: must be bool []"),
        ("truncated", jnp.float32(0), "truncated after reset is float32 []: must be bool []"),
        ("alive", jnp.bool_(True), "alive after reset is bool []: must be bool [2] (agents)"),
        ("alive", jnp.ones(2), "alive after reset is float32 [2]: must be bool [2]"),
        ("info", None, "info after reset is None: must be a dict"),
        ("info", {"name": "x"}, "info['name'] after reset is a str: must be an array or a number"),
        ("info", {"won": jnp.zeros(2)}, "info['won'] after reset has the shape [2]: must be []"),
        ("info", {"task_reward": jnp.float32(0)}, "info['task_reward'] after reset has the shape []: must be [2]"),
    ],
)
def test_a_wrong_field_is_named(field, value, message):
    assert refusal(Walk({field: value})).startswith(message)
    if field != "info":
        assert refusal(Walk({field: value}, after=("step",))).startswith(message.replace("reset", "step"))


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({}, "info['won'] is float32 [] after reset and missing after step: must not change"),
        ({"won": 0.0, "hit": 1.0}, "info['hit'] is missing after reset and float32 [] after step"),
        ({"won": 1}, "info['won'] is float32 [] after reset and int32 [] after step"),
    ],
)
def test_info_does_not_change(info, message):
    assert refusal(Walk({"info": info}, after=("step",))).startswith(message)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (
            {"pos": jnp.zeros(2, int), "time": 0},
            "state['pos'] is int32 [2] after reset and float32 [2] after step: must",
        ),
        ({"pos": jnp.zeros(()), "time": 0}, "state['pos'] is float32 [] after reset and float32 [2] after step"),
        ({"pos": jnp.zeros(2), "time": 0.0}, "state['time'] is float32 [] after reset and int32 [] after step"),
        ({"pos": jnp.zeros(2)}, "state['time'] is missing after reset and int32 [] after step"),
        ({"pos": jnp.zeros(2), "time": None}, "state['time'] is missing after reset and int32 [] after step"),
        ({"pos": jnp.zeros(2), "time": "noon"}, "state['time'] after reset is a str: must be an array or a number"),
        ({"pos": jnp.zeros(2), "time": 0, "x": {}}, "state is a dict after reset and a dict after step: must have one"),
    ],
)
def test_the_state_keeps_its_structure_shapes_and_types(first, message):
    class Changes(Walk):
        def reset(self, key):
            return first, super().reset(key)[1]

        def step(self, key, state, action):
            return self.show("step", {"pos": 0.5 * jnp.zeros(2), "time": jnp.int32(1)})

    assert refusal(Changes()).startswith(message)


def test_a_state_may_hold_keys_and_plain_numbers():
    class Keys(Walk):
        def reset(self, key):
            return (jax.random.key(0), 0, 1.0), super().reset(key)[1]

        def step(self, key, state, action):
            assert isinstance(state[1], jax.Array)  # as in a training
            return (jax.random.fold_in(state[0], 1), state[1] + 1, 0.5 * state[2]), super().reset(key)[1]

    check(Keys())


def test_what_is_returned_is_a_state_and_a_time_step():
    class Alone(Walk):
        def reset(self, key):
            return super().reset(key)[1]

    class Gym(Walk):
        def step(self, key, state, action):
            return 0, 1, 2, 3

    assert refusal(Alone()) == "reset returns a TimeStep: must be (state, TimeStep)"
    assert refusal(Gym()) == "step returns a tuple: must be (state, TimeStep)"


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (Discrete((3, 2)), (2,), jnp.int32),
        (MultiDiscrete(((2, 1), (2, 1))), (2, 2), jnp.int32),
        (Continuous.box((3, 2), 0.0, 1.0), (2, 3), jnp.float32),
    ],
)
def test_step_gets_the_actions_that_the_space_describes(space, shape, dtype):
    seen = []

    class Sees(Walk):
        def step(self, key, state, action):
            seen.append((action.shape, action.dtype))
            return super().step(key, state, jnp.zeros(2))

    check(Sees(action_space=space))
    assert seen == [(shape, dtype)]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"agents": ["a", "b"]}, "agents is ['a', 'b']: must be a tuple of names"),
        ({"agents": ("a", "a")}, "agents is ('a', 'a'): must be a tuple of names, one for each agent, all different"),
        ({"agents": ()}, "agents is (): must be"),
        ({"groups": ("team",)}, "groups has the length 1: must be 2 (agents)"),
        ({"groups": "ab"}, "groups is 'ab': must be a tuple"),
        ({"obs_sizes": (3,)}, "obs_sizes has the length 1: must be 2 (agents)"),
        ({"obs_sizes": 3}, "obs_sizes is 3: must be a tuple"),
        ({"obs_sizes": (2.0, 3.0)}, "obs_sizes is (2.0, 3.0): must be a tuple of whole numbers"),
        ({"obs_shape": (2, 2, 1)}, "obs_shape is (2, 2, 1): its product must be each of obs_sizes (2, 3)"),
        ({"state_size": 6.0}, "state_size is 6.0: must be a whole number"),
        ({"horizon": 0}, "horizon is 0: must be a whole number"),
        ({"action_space": 5}, "action_space is 5: must be envs.Discrete"),
        ({"action_space": Discrete(5)}, "action_space.sizes is 5: must be a tuple of whole numbers above 0"),
        ({"action_space": Discrete((5, 0))}, "action_space.sizes is (5, 0): must be"),
        ({"action_space": Discrete((5,))}, "action_space.sizes has the length 1: must be 2 (agents)"),
        ({"action_space": MultiDiscrete(((2, 3), (2,)))}, "action_space.sizes is ((2, 3), (2,)): must be"),
        (
            {"action_space": Continuous((2, 2), -np.ones(2), np.ones((2, 2)))},
            "action_space.low has the shape [2]: must be [2, 2]",
        ),
    ],
)
def test_a_wrong_attribute_is_named(facts, message):
    with pytest.raises(UserError) as error:
        check_facts(Walk(**facts), "my/walk")
    assert str(error.value).startswith(f"env=my/walk: {message}")


@pytest.mark.parametrize("fact", ["agents", "groups", "obs_sizes", "state_size", "action_space", "horizon"])
def test_a_missing_attribute_is_named_where_the_environment_is_made(fact):
    def without():
        env = Walk()
        delattr(env, fact)
        return env

    envs.register("my/walk", without)
    with pytest.raises(UserError, match=f"env=my/walk: has no {fact}: must be "):
        envs.make("my/walk", horizon=3)


def test_a_factory_gives_an_environment():
    for given, kind in ((None, "None"), (SimpleNamespace(), "a SimpleNamespace")):
        envs.register("my/walk", lambda given=given: given)
        with pytest.raises(UserError, match=f"env=my/walk: its factory returns {kind}: must be an envs.Env"):
            envs.make("my/walk")


def test_an_error_in_reset_or_step_is_the_users_traceback():
    class Broken(Walk):
        def step(self, key, state, action):
            return state["velocity"]

    with pytest.raises(KeyError, match="velocity"):
        check(Broken())


def test_a_training_checks_its_environment(train, capsys):
    envs.register("my/walk", lambda: Walk({"reward": jnp.float32(0)}))
    with pytest.raises(SystemExit) as end:
        train("env=my/walk")
    assert end.value.code != 0
    assert "env=my/walk: reward after reset is float32 []: must be float32 [2] (agents)" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*envs.list("matrix"), *envs.list("vmas"), "smax/2s3z", "smax/smacv2_5_units"])
def test_ours_are_as_they_declare(name):
    check(envs.make(name))  # mpe and jaxmarl: in their files
