"""How fast Shoal is, and against what: jaxmarl's environment, JaxMARL's IPPO, the matrix products alone.

    python tools/speed.py                                  a few minutes on two cores
    python tools/speed.py --runs 1,10,1000 --json speed.json
    python tools/speed.py --only train,matmul --quick
    python tools/speed.py --only costs --env vmas/balance  # of prng=threefry, and of never using a first state twice

Every figure is the best of several calls of a program that was compiled before; programs that are compared take
turns, so that whatever else the machine does hits all of them alike. Training goes through the runner's own chunk
(one evaluation episode in it), spread over the cores as the runner does it. The reference does one run as
``jit(train)``, several as ``jit(vmap(train))``, as JaxMARL's users do. The persistent compilation cache is off.

Shapes: R runs, T time, E environments, A agents, O observation, N actions.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np

from shoal import envs
from shoal.algorithm import algorithm_in
from shoal.baselines.ippo import ippo_ff_mpe as ippo
from shoal.cli import cores_as_devices
from shoal.config.words import Parser, number, some_of
from shoal.envs.base import Discrete, Env, MultiDiscrete
from shoal.envs.wrappers import AutoReset
from shoal.errors import UserError
from shoal.hashing import key_of
from shoal.nn import networks
from shoal.rl.shuffle import permutations
from shoal.run import learners, sweep
from shoal.run.compile import RUN_LONG, RUN_ONCE
from shoal.run.placement import place
from shoal.run.progress import human, show_table
from shoal.run.state import first_state, train_chunk

PARTS = ("env", "train", "reference", "matmul")
MORE = ("costs",)  # measured only where --only names them
ENV_SIZES = (16, 1024)
REFERENCE_RUNS = 10  # the most that the reference is asked for: its vmapped activations grow with the runs
BUSY = 0.1  # cores that other processes may use before we warn

Figures = dict[str, Any]


@dataclass
class Program:
    """A compiled function with its arguments; one that ``carries`` gets its first result back, donated."""

    name: str
    compiled: Any
    arguments: list[Any]
    steps: int  # environment steps of one call
    carries: bool
    lower_seconds: float
    compile_seconds: float
    seconds: float = np.inf  # of the best call
    cores: float = 0.0  # busy during it, on average
    calls: int = 0
    result: Any = None

    def call(self) -> None:
        """Once more; the best call counts."""
        tick, cpu = time.perf_counter(), time.process_time()
        self.result = jax.block_until_ready(self.compiled(*self.arguments))
        seconds, cpu = time.perf_counter() - tick, time.process_time() - cpu
        self.calls += 1
        if self.carries:
            self.arguments[0] = self.result[0]
        if seconds < self.seconds:
            self.seconds, self.cores = seconds, cpu / seconds

    @property
    def speed(self) -> float:
        """Environment steps per second."""
        return self.steps / self.seconds

    @property
    def memory(self) -> int:
        """Bytes that the program itself needs."""
        sizes = self.compiled.memory_analysis()
        if sizes is None:
            return 0
        inside = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
        return inside + sizes.temp_size_in_bytes


def prepare(
    name: str, function: Callable, *arguments: Any, steps: int = 0, carries: bool = False, options: Any = None
) -> Program:
    """Lower and compile ``function`` for ``arguments``."""
    begin = time.perf_counter()
    lowered = jax.jit(function, donate_argnums=(0,) if carries else ()).lower(*arguments)
    middle = time.perf_counter()
    compiled = lowered.compile(options)
    return Program(name, compiled, list(arguments), steps, carries, middle - begin, time.perf_counter() - middle)


def race(programs: list[Program], repetitions: int) -> None:
    """Call the programs in turns; the first turn warms up and does not count."""
    for turn in range(repetitions + 1):
        for program in programs:
            program.call()
            if turn == 0:
                program.seconds = np.inf


def random_actions(env: Env, shape: tuple[int, ...]) -> chex.Array:
    """``shape + [A]`` or ``shape + [A, N]``."""
    space, key = env.action_space, jax.random.PRNGKey(1)
    if isinstance(space, Discrete):
        return jax.random.randint(key, (*shape, env.num_agents), 0, np.array(space.sizes))
    if isinstance(space, MultiDiscrete):
        sizes = np.array(space.sizes)
        return jax.random.randint(key, (*shape, *sizes.shape), 0, sizes)
    return jax.random.uniform(key, (*shape, env.num_agents, space.size), minval=space.low, maxval=space.high)


def stepping(name: str, env: Env, num_envs: int, length: int, rollouts: int) -> Program:
    """Random play through :class:`AutoReset`, with a pool of first states for each rollout as in training."""
    vec = AutoReset(env, num_envs, length)
    actions, keys = random_actions(env, (length, num_envs)), jax.random.split(jax.random.PRNGKey(2), (length, num_envs))

    def rollout(carry, actions, keys):
        key, pool_key = jax.random.split(carry[1])
        pool = vec.fresh(pool_key, carry[0])

        def step(state, inputs):
            state, timestep = vec.step(inputs[1], state, inputs[0], pool)
            return state, timestep.obs.sum() + timestep.reward.sum()  # without a use XLA would not compute them

        state, sums = jax.lax.scan(step, carry[0], (actions, keys))
        return (state, key), sums.sum()

    first = jax.jit(lambda key: (vec.reset(key)[0], key))(jax.random.PRNGKey(0))
    play = partial(repeat, rollout, rollouts)
    return prepare(name, play, first, actions, keys, steps=num_envs * length * rollouts, carries=True)


def jaxmarl_stepping(name: str, num_envs: int, length: int, rollouts: int) -> Program:
    """The same with jaxmarl's own ``step``, which resets by itself."""
    import jaxmarl

    env = jaxmarl.make(name)
    keys = jax.random.split(jax.random.PRNGKey(2), (length, num_envs))
    spaces = [env.action_space(agent) for agent in env.agents]
    sample = [jax.jit(jax.vmap(jax.vmap(space.sample)))(keys) for space in spaces]
    actions = dict(zip(env.agents, sample, strict=True))  # {agent: [T, E]}

    def rollout(state, actions, keys):
        def step(state, inputs):
            obs, state, reward, _, _ = jax.vmap(env.step)(inputs[1], state, inputs[0])
            return state, sum(leaf.sum() for leaf in jax.tree.leaves((obs, reward)))

        state, sums = jax.lax.scan(step, state, (actions, keys))
        return state, sums.sum()

    first = jax.jit(jax.vmap(env.reset))(keys[0])[1]
    play = partial(repeat, rollout, rollouts)
    return prepare("jaxmarl's step", play, first, actions, keys, steps=num_envs * length * rollouts, carries=True)


def repeat(function: Callable, times: int, carry: Any, *arguments: Any) -> tuple[Any, Any]:
    """``function(carry, *arguments) -> carry, result`` a few times in one program."""
    return jax.lax.scan(lambda c, _: function(c, *arguments), carry, length=times)


def training(
    module: ModuleType, config: Any, env: Env, runs: int, updates: int, count: int = 1, prng: str = "hash"
) -> Program:
    """An algorithm file as the runner trains it: its chunk, its start, its way over devices; ``count`` learners."""
    placement = place(learners=count)
    algorithm, width = learners.made(algorithm_in(module), config, env, count), placement.padded(runs)
    selected = sweep.expand(module.Hypers(), {}, width).select(np.arange(width))
    words, hypers = placement.put(selected, width)

    def first(words, hypers):
        return first_state(algorithm, key_of(words, prng), hypers)

    start = jax.jit(placement.over_runs(first, width)).lower(words, hypers)
    state = start.compile(RUN_ONCE)(words, hypers)

    def chunk(state, hypers):
        return train_chunk(algorithm, state, hypers, updates, episodes=1, greedy=True)

    steps = runs * updates * algorithm.steps_per_update
    program = placement.over_runs(chunk, width, in_place=True)
    name = "shoal" if count == 1 else f"shoal, {count} learners"
    return prepare(name, program, state, hypers, steps=steps, carries=True, options=RUN_LONG)


def reference(config: ippo.Config, name: str, runs: int, updates: int) -> Program:
    """The same recipe in JaxMARL's manner."""
    import reference_ippo

    shared = ("total_steps", "num_envs", "rollout_length", "epochs", "minibatches")
    sizes = {field: getattr(config, field) for field in shared}
    init, update = reference_ippo.make(reference_ippo.Config(env=name, width=config.actor.widths[0], **sizes))
    keys = jax.random.split(jax.random.PRNGKey(0), runs)
    state = jax.jit(lambda keys: jax.lax.map(init, keys))(keys)

    def chunk(state):
        return jax.lax.scan(update, state, length=updates)

    if runs == 1:
        state = jax.tree.map(lambda x: x[0], state)
    steps = runs * updates * config.num_envs * config.rollout_length
    return prepare("reference", chunk if runs == 1 else jax.vmap(chunk), state, steps=steps, carries=True)


def layers(config: ippo.Config, env: Env) -> list[list[tuple[int, int]]]:
    """The shapes of all kernels: actor's, then critic's."""
    heads = ((config.actor, ippo.distributions.head_size(env.action_space)), (config.critic, 1))
    return [list(pairwise((env.obs_size, *model.widths, size))) for model, size in heads]


def product_flops(config: ippo.Config, env: Env) -> float:
    """Of one update's matrix products: acting, valuing, and three products per layer (two in the first) to learn."""
    rows = config.num_envs * config.rollout_length * env.num_agents
    actor, critic = ([2 * rows * a * b for a, b in shapes] for shapes in layers(config, env))
    learning = sum(3 * sum(flops) - flops[0] for flops in (actor, critic))
    return sum(actor) + sum(critic) + config.epochs * learning


def products(name: str, matmul: Callable, config: ippo.Config, env: Env, runs: int, updates: int) -> Program:
    """Nothing but the matrix products of ``updates`` updates, one after the other, spread as training is."""
    key, num_envs = jax.random.PRNGKey(0), config.num_envs
    obs = jax.random.normal(key, (config.rollout_length, num_envs * env.num_agents, env.obs_size))  # [T, E A, O]
    minibatches = obs.reshape(config.minibatches, -1, env.obs_size)

    def gradient_step(kernels, x):
        outputs, pull = jax.vjp(lambda kernels: [reduce(matmul, torso, x) for torso in kernels], kernels)
        return jax.tree.map(lambda k, g: k - 1e-9 * g, kernels, pull(outputs)[0]), None

    def update(kernels, obs, minibatches):
        acted = jax.lax.map(lambda x: reduce(matmul, kernels[0], x).sum(), obs).sum()
        valued = reduce(matmul, kernels[1], obs.reshape(-1, env.obs_size)).sum()
        epoch = partial(jax.lax.scan, gradient_step)
        kernels, _ = jax.lax.scan(lambda k, _: epoch(k, minibatches), kernels, length=config.epochs)
        return kernels, acted + valued

    placement = place()
    width = placement.padded(runs)
    kernels = [[jnp.full((width, a, b), 1.0 / a) for a, b in shapes] for shapes in layers(config, env)]
    data = [placement.put(jnp.broadcast_to(x, (width, *x.shape)), width) for x in (obs, minibatches)]
    steps = runs * updates * num_envs * config.rollout_length
    together = placement.over_runs(partial(repeat, update, updates), width)
    return prepare(name, together, placement.put(kernels, width), *data, steps=steps, carries=True)


def measure_env(name: str, peer: str | None, sizes: tuple[int, ...], length: int, repetitions: int) -> list[Figures]:
    """Environment steps per second of random play, ours and jaxmarl's."""
    figures = []
    for num_envs in sizes:
        count = max(1, 8 * repetitions * sizes[0] // num_envs)  # rollouts in a call
        programs = [stepping(name, envs.make(name), num_envs, length, count)]
        if peer is not None:
            adapted = f"jaxmarl_{name}"
            programs.append(stepping(adapted, envs.make(adapted), num_envs, length, count))
            programs.append(jaxmarl_stepping(peer, num_envs, length, count))
        race(programs, repetitions)
        best = programs[0].speed
        figures += [{"envs": num_envs, "name": p.name, "speed": p.speed, "ours": best / p.speed} for p in programs]
    rows = [[f["name"], str(f["envs"]), human(f["speed"]), f"{f['ours']:.2f}x"] for f in figures]
    show_table([["random play", "envs", "steps/s", "ours / this"], *rows], "Environment alone, one device")
    return figures


def measure_training(
    config: ippo.Config, env: Env, peer: str | None, runs: int, updates: int, repetitions: int, only: list[str]
) -> list[Figures]:
    """Training, the reference and the matrix products of ``runs`` runs, in turns."""
    programs = [training(ippo, config, env, runs, updates)] if "train" in only else []
    alike = len(set(env.obs_sizes)) == len(set(env.action_space.sizes)) == 1  # all that the reference knows
    if "reference" in only and peer is not None and alike and runs <= REFERENCE_RUNS:
        programs.append(reference(config, peer, runs, updates))
    if "matmul" in only:
        programs.append(products("products", jnp.matmul, config, env, runs, updates))
        programs.append(products("products, transposed", networks.matmul, config, env, runs, updates))
    race(programs, repetitions)
    flops_per_step = product_flops(config, env) / (config.num_envs * config.rollout_length)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return [
        {
            "name": p.name,
            "runs": runs,
            "speed": p.speed,
            "ms_per_update": 1e3 * p.seconds / updates / runs,
            "product_gflops": 1e-9 * flops_per_step * p.speed,
            "cores": p.cores,
            "lower_seconds": p.lower_seconds,
            "compile_seconds": p.compile_seconds,
            "program_bytes": p.memory,
            "process_peak_bytes": peak,
            "updates": updates * p.calls,
            "episode_return": None if p.name.startswith("products") else float(p.result[1]["episode_return"].mean()),
        }
        for p in programs
    ]


def measure_costs(config: ippo.Config, env: Env, updates: int, repetitions: int) -> list[Figures]:
    """Training as it is, with ``prng=threefry``, and with first states that are used again where a pool runs dry."""
    programs = [training(ippo, config, env, 1, updates), training(ippo, config, env, 1, updates, prng="threefry")]
    programs[1].name = "prng=threefry"
    if AutoReset(env, config.num_envs, config.rollout_length).may_run_dry:
        with mock.patch.object(AutoReset, "_redraw", lambda self, dry, ahead, keys, used: ahead):
            programs.append(training(ippo, config, env, 1, updates))
        programs[2].name = "first states used twice"
    race(programs, repetitions)
    first = programs[0]
    rows = [["training", "steps/s", "shoal / this", "compiling s"]]
    for p in programs:
        rows.append([p.name, human(p.speed), f"{first.speed / p.speed:.3f}", f"{p.compile_seconds:.1f}"])
    show_table(rows, f"IPPO on {env.name}, one run: what choices cost")
    return [{"name": p.name, "speed": p.speed, "ours": first.speed / p.speed} for p in programs]


def show_training(figures: list[Figures]) -> None:
    """The tables of :func:`measure_training`."""
    rows = [["whole updates", "runs", "steps/s", "ms/update/run", "GFLOP/s", "cores busy", "return", "after updates"]]
    for f in figures:
        row = [f["name"], str(f["runs"]), human(f["speed"]), f"{f['ms_per_update']:.2f}", f"{f['product_gflops']:.1f}"]
        learnt = ["", ""] if f["episode_return"] is None else [f"{f['episode_return']:.2f}", str(f["updates"])]
        rows.append([*row, f"{f['cores']:.2f}", *learnt])
    show_table(rows, "IPPO; GFLOP/s of its matrix products; mean return per agent")
    rows = [["cost of a program", "runs", "lowering s", "compiling s", "its memory", "process peak so far"]]
    for f in figures:
        memory = [f"{human(f[name])}B" for name in ("program_bytes", "process_peak_bytes")]
        rows.append([f["name"], str(f["runs"]), f"{f['lower_seconds']:.2f}", f"{f['compile_seconds']:.2f}", *memory])
    show_table(rows, "Before the first update, nothing cached")


def measure_breakdown(config: ippo.Config, env: Env, repetitions: int) -> Figures:
    """Milliseconds of the parts of one update of one run, each a program of its own."""
    algorithm, hypers, key = ippo.make(config, env), ippo.Hypers(), jax.random.PRNGKey(1)
    setup = algorithm.update.keywords["setup"]

    def rollout(state, key):
        state, transitions = ippo.rollout(state, jax.random.split(key, 3), setup)
        return state, transitions.replace(next=transitions.next.replace(state=None, final_state=None))  # unused by IPPO

    state = jax.jit(algorithm.init)(key, hypers)
    compiled = partial(prepare, options=RUN_LONG)  # as the runner compiles its chunk
    acting = compiled("rollout: environment and policy", rollout, state, key)
    acting.call()
    make_batch = partial(ippo.make_batch, hypers=hypers, setup=setup)
    batching = compiled("batch: values and advantages", make_batch, *acting.result)
    batching.call()
    learn = partial(ippo.learn, hypers=hypers, setup=setup)
    learning = compiled("learning", learn, acting.result[0], batching.result, key)
    size = config.num_envs * config.rollout_length
    shuffle = compiled("  shuffle", lambda key: permutations(key, config.epochs, size), key)
    alone = stepping("  environment alone", env, config.num_envs, config.rollout_length, 1)
    parts = [acting, alone, batching, learning, shuffle]
    race(parts, repetitions)
    whole = acting.seconds + batching.seconds + learning.seconds
    rows = [[p.name, f"{1e3 * p.seconds:.3f}", f"{100 * p.seconds / whole:.0f} %"] for p in parts]
    show_table([["part (indented: of the one above)", "ms", "of all parts"], *rows], "One update of one run, by parts")
    figures = {p.name.strip(): 1e3 * p.seconds for p in parts}
    costs = [(p.compiled.cost_analysis() or {}).get("flops") for p in (learning, shuffle)]
    if None not in costs:  # XLA counts the body of a loop once: one gradient step
        figures["xla_learning_flops"] = flops = (costs[0] - costs[1]) * config.epochs * config.minibatches
        print(f"FLOP of one update: {human(product_flops(config, env))} in matrix products, those of acting included;")
        print(f"in all that its gradient steps do, XLA counts {human(flops)}")
    return figures


def peer_name(env: str) -> str | None:
    """jaxmarl's name of an MPE task; None for other families."""
    family, _, task = env.partition("/")
    if family != "mpe":
        return None
    envs.make(f"jaxmarl_{env}")  # imports jaxmarl without its greetings
    import jaxmarl  # not above: it looks for devices when imported

    return next(name for name in jaxmarl.registered_envs if name.rpartition("_v")[0] == f"MPE_{task}")


def verdict(figures: list[Figures]) -> list[str]:
    """What the table of trainings comes to: the share of the products' speed, then the ratio to the reference."""
    shares, ratios = [], []
    for runs in dict.fromkeys(f["runs"] for f in figures):
        speed = {f["name"]: f["speed"] for f in figures if f["runs"] == runs}
        bound = max((s for name, s in speed.items() if name.startswith("products")), default=None)
        who = f"{runs} run{'s' * (runs > 1)}"
        if "shoal" in speed and bound:
            shares.append(f"{100 * speed['shoal'] / bound:.0f} % for {who} ({human(bound)} steps/s)")
        if "shoal" in speed and "reference" in speed:
            ratios.append(f"{who} {speed['shoal'] / speed['reference']:.2f}x as fast as the reference")
    lines = [f"training's share of what its matrix products alone allow: {', '.join(shares)}"] if shares else []
    return lines + ([f"verdict: shoal trains {', '.join(ratios)}"] if ratios else [])


def foreign_seconds() -> float | None:
    """Core seconds that all other processes have used since the machine started; None where it does not tell."""
    try:
        user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK") - time.process_time()


def numbers(text: str) -> list[int]:
    """``1,10`` as numbers."""
    return [int(number) for number in text.split(",")]


def main() -> None:
    """Measure what the command line asks for."""
    parser = Parser(__doc__)
    parser.add_argument("--env", default="mpe/simple_spread")
    parser.add_argument("--runs", type=numbers, default="1,10", help="numbers of runs, comma-separated")
    parser.add_argument("--updates", type=int, help="in one timed call, 20 by default; fewer for more than 10 runs")
    parser.add_argument("--only", type=some_of((*PARTS, *MORE)), default=",".join(PARTS), help=f"of {PARTS + MORE}")
    parser.add_argument("--quick", action="store_true", help="few repetitions of short calls: rough figures")
    parser.add_argument("--repetitions", type=number(int, 1, 1000), help="of a timed call; the best one counts")
    parser.add_argument("--json", type=Path, help="store the figures here")
    options = parser.parse_args()
    only = options.only.split(",")
    repetitions, updates = (1, options.updates or 2) if options.quick else (5, options.updates or 20)
    repetitions = options.repetitions or repetitions

    jax.config.update("jax_enable_compilation_cache", False)
    cores_as_devices()
    begin, others = time.perf_counter(), foreign_seconds()
    config, env = ippo.Config(), envs.make(options.env)
    peer = peer_name(options.env) if {"env", "reference"} & set(only) else None
    devices = [str(device) for device in jax.devices()]
    figures: Figures = {"env": options.env, "devices": devices, "jax": jax.__version__}
    if "env" in only:
        sizes = ENV_SIZES[: 1 if options.quick else None]
        figures["random_play"] = measure_env(options.env, peer, sizes, config.rollout_length, repetitions)
    trainings: list[Figures] = []
    if "costs" in only:
        figures["costs"] = measure_costs(config, env, updates, repetitions)
    if set(only) - {"env", *MORE}:
        for runs in options.runs:
            count = max(1, updates * 10 // max(10, runs))
            trainings += measure_training(config, env, peer, runs, count, repetitions, only)
        show_training(trainings)
    if "train" in only:
        figures["breakdown_ms"] = measure_breakdown(config, env, 2 if options.quick else 50)
    lines = verdict(trainings)
    if others is not None:
        figures["foreign_cores"] = busy = (foreign_seconds() - others) / (time.perf_counter() - begin)
        if busy > BUSY:
            print(f"other processes kept {busy:.1f} cores busy meanwhile: all speeds are too low")
    figures |= {"trainings": trainings, "product_flops_per_update": product_flops(config, env), "verdict": lines}
    print(*lines, sep="\n")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
