"""Training from a configuration to a folder: chunks of one compiled scan, and between them everything that is no maths.

A chunk is ``K`` updates and one evaluation of all runs of a batch, compiled once, its state donated. Between chunks
the host draws the progress bar, appends to the records and writes checkpoints. ``chunks=1`` is the pure one-program
form. Runs that do not fit in memory together train in batches of ``runs_per_batch``, one batch after the other.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from omegaconf import DictConfig, OmegaConf

from shoal import envs
from shoal.algorithm import Algorithm, Hypers, Metrics, Params, TrainState
from shoal.config.fields import INT32
from shoal.config.schemes import Halving
from shoal.config.settings import SHARES, build, check_settings, complete, saved_settings
from shoal.config.words import pasted
from shoal.envs.check import check
from shoal.envs.host import pettingzoo
from shoal.errors import Fault, UserError
from shoal.evolve import rounds as generations
from shoal.evolve import winner
from shoal.evolve.population import Kind
from shoal.evolve.rules import Rules, first_values, make_rules, parse
from shoal.folder import checkpoint, lineage, lock, marl_eval, policies, writing
from shoal.folder.records import EVALUATIONS, RETURN, SWEEP_FIELDS, Begun, Records, objective_of, short_name
from shoal.hashing import key_of, replace_stream
from shoal.nn import elastic, networks
from shoal.report import closing
from shoal.report import lineage as families
from shoal.rl import learners
from shoal.rl.metrics import Table, chosen_objective, mean_over_updates
from shoal.run import budget, hosts, loggers, sharding, sweep
from shoal.run import callbacks as user_callbacks
from shoal.run.callbacks import Hooks
from shoal.run.evaluate import ABSOLUTE, evaluate
from shoal.run.progress import Display, human, show_table

# The first word of an evaluation's key: evaluation never shares random numbers with training. The second is the seed,
# so that the members of a population, like the points of a sweep, play the same episodes: what differs is what they do.
EVALUATION_STREAM = 0x65766C
# When resuming; callbacks may be mended, or left out to go on after one that has stopped the training.
FREE_TO_CHANGE = (
    "total_steps",
    "logger",
    "checkpoint",
    "resume",
    "run",
    "callbacks",
    "devices",
    "distributed",
    "algo.total_steps",
)
# The first states are computed once: there is nothing to gain from optimising that program.
RUN_ONCE: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
# Level 3, the default, took longer to compile here and the result was no faster.
RUN_LONG: dict[str, Any] = {
    "xla_backend_optimization_level": 2,
    "xla_cpu_prefer_vector_width": 512,  # where a CPU has such registers; LLVM would take half of them
}
PARENT = "SHOAL_PARENT"  # the process that a training ends with, if it says so
WORTH_SAYING = 2**28  # bytes: what a training takes is told from here on, to a terminal always
GO_ON = 75  # exit code of a training that a signal has stopped: the same command with resume=auto goes on (EX_TEMPFAIL)
ADDRESS_SPACE = 1.9e9  # bytes that a small training takes up on two cores
NO_THREAD = "can't start new thread"
LONG = 30.0  # seconds: what schedulers leave a process to end in
PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "distrax",
    "flashbax",
    "jaxmarl",
    "brax",
    "numpy",
    "shoal",
)


class RunState(struct.PyTreeNode):
    """One run between two chunks."""

    train: TrainState
    best_policy: Params  # of the best evaluation so far
    best_return: chex.Array  # [] float32, of the objective
    diverged: chex.Array  # [] bool: a parameter became NaN or infinite; frozen since
    evaluation_key: chex.PRNGKey


def start(algorithm: Algorithm, key: chex.PRNGKey, hypers: Hypers) -> RunState:
    """The state of one run before its first update."""
    train = algorithm.init(key, hypers)
    evaluation_key = replace_stream(key, EVALUATION_STREAM)
    return RunState(train, algorithm.policy(train), jnp.float32(-jnp.inf), jnp.bool_(False), evaluation_key)


def all_finite(tree: Any) -> chex.Array:
    """Whether no number of a tree is NaN or infinite."""
    # Side by side: a reduction for every leaf takes four times as long to compile.
    return jnp.isfinite(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])).all()


def either(condition: chex.Array, yes: Any, no: Any) -> Any:
    """One of two trees. Unlike a select of every leaf, a branch has nothing to compile (under ``vmap`` it is one)."""
    return jax.lax.cond(condition, lambda: yes, lambda: no)


def train_chunk(
    algorithm: Algorithm,
    state: RunState,
    hypers: Hypers,
    updates: int,
    episodes: int,
    greedy: bool,
    objective: str = RETURN,
) -> tuple[RunState, Table, Metrics]:
    """``updates`` updates of one run and an evaluation; metrics are means over the chunk, evaluation per episode.

    The policy with the highest mean of ``objective`` is the best one.
    """

    def update(carry, _):
        train, diverged = carry
        new, metrics = algorithm.update(train, hypers)
        diverged = diverged | ~all_finite(new.params)
        learnt = either(diverged, algorithm.learnt(train), algorithm.learnt(new))
        return (new.replace(**learnt), diverged), Table.of(metrics)

    (train, diverged), metrics = jax.lax.scan(update, (state.train, state.diverged), length=updates)
    policy = algorithm.policy(train)
    evaluation_key, episodes_played = evaluate(algorithm, policy, state.evaluation_key, episodes, greedy)
    mean = episodes_played[objective].mean()
    better = ~diverged & (mean > state.best_return)
    state = state.replace(
        train=train,
        diverged=diverged,
        best_policy=either(better, policy, state.best_policy),
        best_return=jnp.where(better, mean, state.best_return),
        evaluation_key=evaluation_key,
    )
    return state, mean_over_updates(learners.everyones(metrics)), episodes_played


@dataclasses.dataclass
class Plan:
    """A validated training: what to run and where."""

    algorithm: Algorithm
    runs: sweep.Runs
    settings: DictConfig
    folder: Path
    updates_per_chunk: int
    chunks: int
    rules: Rules | None = None  # of evolution
    rounds_per_chunk: int = 1

    @property
    def batch_size(self) -> int:
        """Runs that train at once."""
        given = self.settings.runs_per_batch
        return min(given, len(self.runs)) if isinstance(given, int) else len(self.runs)

    @property
    def width(self) -> int:
        """The batch on the devices: a few runs more where they do not divide evenly, dropped from all results."""
        return sharding.padded(self.batch_size)

    @property
    def batches(self) -> int:
        return math.ceil(len(self.runs) / self.batch_size)

    @property
    def objective(self) -> str:
        """The metric that selects policies and ranks runs."""
        return objective_of(self.settings)

    @property
    def steps_per_chunk(self) -> int:
        """Environment steps of one run."""
        return self.updates_per_chunk * self.algorithm.steps_per_update

    @property
    def steps_per_round(self) -> int:
        """Environment steps of one run."""
        return self.updates_per_round * self.algorithm.steps_per_update

    @property
    def updates_per_round(self) -> int:
        """Updates between two evaluations; without evolution a chunk is one round."""
        return self.updates_per_chunk // self.rounds_per_chunk

    def key(self, words: chex.Array) -> chex.PRNGKey:
        """The key of a run, from two words of :meth:`sweep.Runs.select`."""
        return key_of(words, self.settings.prng)

    def shapes_of_one(self) -> tuple[RunState, Hypers]:
        """The shapes of a run's first state, and the hyperparameters of one."""
        words, hypers = jax.tree.map(lambda leaf: leaf[0], self.runs.select(np.array([0])))
        return jax.eval_shape(lambda w, h: start(self.algorithm, self.key(w), h), words, hypers), hypers

    def batch_runs(self, batch: int) -> np.ndarray:
        """The runs of a batch."""
        return np.arange(batch * self.batch_size, min((batch + 1) * self.batch_size, len(self.runs)))


def make_plan(make: Callable, config_type: type, hypers_type: type, cfg: DictConfig, folder: Path) -> Plan:
    """:func:`open_plan` for a training that begins or goes on: on the devices that it asks for, in batches that fit."""
    plan = open_plan(make, config_type, hypers_type, cfg, folder)
    env, rules = plan.algorithm.env, plan.rules
    if rules is not None and rules.scheme.every >= plan.chunks * plan.rounds_per_chunk and hosts.leads():
        rounds = plan.chunks * plan.rounds_per_chunk
        print(f"warning: evolve.every={rules.scheme.every}: nobody is selected in {rounds} rounds", file=sys.stderr)
    sharding.choose(cfg.devices, cfg.algo.get("num_envs", 1), together=env.host, learners=cfg.learners)
    if cfg.runs_per_batch == "auto":
        members = rules.population if rules else 1
        with in_precision(cfg.precision):
            cfg.runs_per_batch = max(1, fitting(plan) // members) * members  # whole populations
    return plan


def open_plan(make: Callable, config_type: type, hypers_type: type, cfg: DictConfig, folder: Path) -> Plan:
    """Check a configuration against its environment and split its training into chunks.

    It changes nothing in this process: a folder from a machine with more devices can be opened here.
    """
    check_settings(cfg, config_type, hypers_type)
    kwargs = OmegaConf.to_container(cfg.env.kwargs, resolve=True)
    assert isinstance(kwargs, dict)
    try:
        env = envs.make(cfg.env.name, **{str(name): value for name, value in kwargs.items()})
    except TypeError as error:
        raise UserError(f"env.kwargs={kwargs}: {error}") from error
    check(env)
    cfg.evaluation.objective = chosen_objective(cfg.evaluation.objective, env)
    algorithm = learners.split(make, build(cfg.algo, "algo.", config_type), env, cfg.learners)
    if algorithm.num_updates > INT32:
        raise UserError(f"total_steps={cfg.algo.total_steps:g}: makes {algorithm.num_updates} updates; {INT32} at most")
    values = OmegaConf.to_container(cfg.sweep, resolve=True)
    assert isinstance(values, dict)
    hypers = build(cfg.hypers, "hypers.", hypers_type)
    if cfg.evolve.scheme != "none":
        if cfg.learners > 1:
            raise UserError(f"learners={cfg.learners}: not with evolution, whose members keep the devices busy")
        return evolving_plan(algorithm, hypers, values, cfg, folder)
    runs = sweep.expand(hypers, values, cfg.seeds, cfg.seed)  # type: ignore[arg-type]
    updates_per_chunk = cfg.get("updates_per_chunk") or math.ceil(algorithm.num_updates / cfg.chunks)
    return Plan(algorithm, runs, cfg, folder, updates_per_chunk, math.ceil(algorithm.num_updates / updates_per_chunk))


def fitting(plan: Plan) -> int:
    """``runs_per_batch=auto``: how many runs to train at once, said where it is not all of them."""
    need, available, count = one_run(plan), hosts.least(available_memory()), len(plan.runs)
    size = budget.fit(count, available, need.of)
    if size < count and hosts.leads():
        batches = math.ceil(count / size)
        print(f"runs_per_batch={size}: {batches} batches, as {need.text(count, available)}", file=sys.stderr)
    return size


def one_run(plan: Plan) -> budget.Need:
    """What one run needs, from traces alone."""
    state, hypers = plan.shapes_of_one()
    traced = jax.make_jaxpr(chunk_of(plan))(state, hypers)
    return budget.state_need(state, 1, budget.beside_state(traced.jaxpr))


def chunk_of(plan: Plan) -> Callable:
    """The chunk, or the round, of one run: ``(state, hypers) -> state, metrics, episodes``."""
    evaluation = plan.settings.evaluation

    def chunk(state: RunState, hypers: Hypers):
        return train_chunk(
            plan.algorithm,
            state,
            hypers,
            plan.updates_per_round,
            evaluation.episodes,
            evaluation.greedy,
            plan.objective,
        )

    return chunk


def evolving_plan(algorithm: Algorithm, hypers: Hypers, swept: dict, cfg: DictConfig, folder: Path) -> Plan:
    """A training of ``seeds`` populations: rounds instead of chunks, of which several make a chunk."""
    for name, value in swept.items():
        if name not in SWEEP_FIELDS and value is not None:
            raise UserError(
                f"sweep.{name}: evolution chooses the values itself; evolve.hypers.{name}={{min: a, max: b}}"
            )
    params = jax.eval_shape(lambda: algorithm.init(jax.random.PRNGKey(0), hypers)).params
    flags = (elastic.has(params), elastic.has_activation(params))
    if cfg.algo.get("elastic_batches"):
        shares = tuple(name for name in SHARES if hasattr(hypers, name))
        algorithm = dataclasses.replace(algorithm, evolving=algorithm.evolving + shares)
    rules = make_rules(parse(cfg.evolve), cfg.population, algorithm, hypers, *flags)
    if algorithm.env.host and isinstance(rules.scheme, Halving):
        raise UserError("evolve=halving: begins trainings amid others, which environments on the host cannot")
    members = rules.population
    sweep.limit_runs(cfg.seeds * members, f"seeds={cfg.seeds}, population={members}")
    if isinstance(cfg.runs_per_batch, int) and cfg.runs_per_batch % members:
        raise UserError(f"runs_per_batch={cfg.runs_per_batch}: must be a multiple of population={members}")
    seeds = np.arange(cfg.seed, cfg.seed + cfg.seeds)
    runs = sweep.Runs(
        seed=np.repeat(seeds, members),
        point=np.zeros(len(seeds) * members, int),
        points=[{}],
        hypers=first_values(rules, hypers, seeds.tolist()),
        member=np.tile(np.arange(members), len(seeds)),
    )
    updates, rounds = chunk_of_rounds(algorithm.num_updates, rules.scheme.rounds, cfg)
    return Plan(algorithm, runs, cfg, folder, updates, math.ceil(algorithm.num_updates / updates), rules, rounds)


def chunk_of_rounds(num_updates: int, rounds: int, cfg: DictConfig) -> tuple[int, int]:
    """The updates and the rounds of a chunk; a round's updates, and how many rounds there are, do not depend on chunks.

    A chunk is a whole share of the rounds, so that no round follows the last one to fill it up; there may be more
    chunks than were asked for.
    """
    if cfg.get("updates_per_chunk"):  # a training that goes on; folders of before say no rounds
        return cfg.updates_per_chunk, cfg.get("rounds_per_chunk") or math.ceil(rounds / cfg.chunks)
    per_round = math.ceil(num_updates / rounds)
    total = math.ceil(num_updates / per_round)
    rounds_per_chunk = next(n for n in range(math.ceil(total / cfg.chunks), 0, -1) if total % n == 0)
    return rounds_per_chunk * per_round, rounds_per_chunk


def run(
    make: Callable,
    config_type: type,
    hypers_type: type,
    cfg: DictConfig,
    folder: Path | None,
    overrides: list[str],
    callbacks: Sequence[Any] = (),
) -> Path:
    """Train what ``cfg`` says; the folder that it leaves behind is returned.

    ``folder`` replaces ``run.dir`` (Hydra's multirun names its own); ``overrides`` are the command line's words,
    which a resumed training lays over the configuration that it was started with; ``callbacks`` are called before those
    that the configuration names.
    """
    check_address_space()
    enable_compilation_cache()
    hosts.join(cfg.distributed)
    given = [user_callbacks.made(callback) for callback in callbacks]
    if cfg.resume == "auto":
        with writing.faults(folder or cfg.run.dir, "read"):
            cfg.resume = found_training(cfg, folder, overrides)
    new = cfg.resume is None
    folder = Path(hosts.agree_on(str(folder or cfg.run.dir))) if new else Path(cfg.resume)
    if new:
        hosts.all_or_none(lambda: refuse_taken(folder))
    else:
        with writing.faults(folder, "read"):
            cfg = resumed_config(folder, cfg, overrides, config_type, hypers_type)
    plan = make_plan(make, config_type, hypers_type, cfg, folder)
    named = [user_callbacks.find(word) for word in cfg.callbacks]
    with ExitStack() as stack:
        hosts.all_or_none(lambda: stack.enter_context(lock.held(folder, hosts.leads())))
        if new:
            hosts.all_or_none(lambda: refuse_taken(folder))  # by a training that has begun meanwhile
        logger = hosts.all_or_none(lambda: make_logger(plan))
        try:
            if new:
                hosts.all_or_none(lambda: write_config(plan))
            # Callbacks are called once, by the first process, which tells the others what has changed.
            train(plan, logger, [*given, *named] if hosts.leads() else [])
        except jax.errors.JaxRuntimeError as error:
            raise stopped_on_host(plan) or error from None
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and NO_THREAD not in str(error):
                raise
            raise Fault(f"{error or 'no memory'}: too little memory or too few threads (ulimit -v, -u)") from error
        except Fault as error:
            begun = (folder / "config.yaml").is_file()
            raise Fault(f"{error}{f'; with that mended resume={folder} goes on' * begun}") from error
    return folder


def check_address_space() -> None:
    """Refuse a limit under which XLA's threads would end the process without a word."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE:
        raise Fault(f"the address space is limited to {limit / 1e9:.1f} GB (ulimit -v); JAX needs 2 GB at least")


def refuse_taken(folder: Path) -> None:
    """A :class:`UserError` if there is a training in a folder that a new one is meant for."""
    with writing.faults(folder):
        taken = [name for name in ("config.yaml", "metrics.csv", "checkpoints") if os.path.lexists(folder / name)]
    if taken and hosts.leads():
        with lock.held(folder):  # or another process is at work there: that is the answer then
            raise UserError(f"run.dir={folder}: holds a training already; {pasted('resume', folder)} goes on with it")


def write_config(plan: Plan) -> None:
    """``config.yaml``: what a resumed training goes by. From here on the folder holds a training."""
    if not hosts.leads():
        return
    saved = OmegaConf.create(OmegaConf.to_container(plan.settings, resolve=True))
    saved.callbacks = list(map(user_callbacks.absolute, plan.settings.callbacks))
    saved.updates_per_chunk, saved.rounds_per_chunk = plan.updates_per_chunk, plan.rounds_per_chunk
    saved.population = plan.rules and plan.rules.population
    saved.run.dir = str(plan.folder)
    writing.write(plan.folder / "config.yaml", OmegaConf.to_yaml(saved))


def found_training(cfg: DictConfig, folder: Path | None, overrides: list[str]) -> str | None:
    """``resume=auto``: the folder of this command's training if that has begun; None if it has not."""
    if folder is None and not any(word.lstrip("+").startswith("run.dir=") for word in overrides):
        raise UserError(
            "resume=auto: needs run.dir=<folder>, the same every time; the default has the time in its name"
        )
    folder = Path(hosts.agree_on(str(folder or cfg.run.dir)))
    begun = bool(hosts.agree(np.int32((folder / "config.yaml").exists())))
    return str(folder) if begun else None


@contextmanager
def in_precision(precision: DictConfig) -> Iterator[None]:
    """What networks compute in, and how exactly matrices are multiplied, while a training is planned and runs."""
    before = networks.compute_in(precision.activations)
    try:
        with jax.default_matmul_precision(None if precision.matmul == "default" else precision.matmul):
            yield
    finally:
        networks.compute_in(before)


def resumed_config(
    folder: Path, cfg: DictConfig, overrides: list[str], config_type: type, hypers_type: type
) -> DictConfig:
    """The configuration of the training in ``folder``, with those overrides that may change on the way."""
    saved = saved_settings(folder)
    if saved.file != cfg.file and saved.file and cfg.file:
        raise UserError(f"resume={folder}: is a training of baselines/{saved.file}.py, not of this file")
    saved = complete(folder, saved, config_type, hypers_type)
    for word in overrides:
        key = word.lstrip("+").split("=", 1)[0]
        if key.startswith(("hydra", "launcher")):
            continue
        value = OmegaConf.select(cfg, key)
        before = OmegaConf.select(saved, key)
        if key in ("runs_per_batch", "evaluation.objective") and value == "auto":
            continue  # stays as it was chosen
        if key in ("evolve", "env"):  # a name; words of their own change the settings under it
            name = "scheme" if key == "evolve" else "name"
            value, before = value[name], before[name]
            if value == before:
                continue
        if value != before and key.split(".")[0] not in FREE_TO_CHANGE:
            raise UserError(f"{word}: a resumed training cannot change this (it was {before}); start a new one instead")
        OmegaConf.update(saved, key, value)
    check_code(folder, saved, cfg, overrides)
    saved.algo.total_steps = saved.total_steps
    OmegaConf.update(saved, "resume", str(folder))
    return saved


def check_code(folder: Path, saved: DictConfig, cfg: DictConfig, overrides: list[str]) -> None:
    """Refuse code that only the folder names: a stranger may have written its configuration."""
    named = {word.lstrip("+").split("=", 1)[0] for word in overrides}
    words = list(saved.callbacks)
    if words and "callbacks" not in named and words != list(map(user_callbacks.absolute, cfg.callbacks)):
        listed = f"callbacks=[{','.join(words)}]"
        raise UserError(
            f"resume={folder}: was trained with {listed}, and a folder runs no code by itself; "
            "the same word names them again, callbacks=[] goes on without"
        )
    module = None if "env" in named else pettingzoo.own_module(saved.env.name)
    if module is not None:
        raise UserError(
            f"resume={folder}: its environment is your own module {module}, and a folder runs no code by itself; "
            f"env={saved.env.name} names it again"
        )


def enable_compilation_cache() -> None:
    """Keep compiled programs between processes, unless the environment says where itself."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "shoal" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def stopped_on_host(plan: Plan) -> UserError | None:
    """What to tell the user if it was the environments on the host that ended a training."""
    failure = plan.algorithm.env.pool.failure if plan.algorithm.env.host else None
    if failure is None:
        return None
    saved = any((plan.folder / "checkpoints").glob("batch_*/*"))
    hint = f"{pasted('resume', plan.folder)} goes on from the last chunk" if saved else "no chunk was finished"
    return UserError(f"{failure}; {hint}")


class Stopped(Exception):
    """SIGTERM or SIGUSR1 has ended the training, with a checkpoint; there is more to do."""


class Stop:
    """Ctrl-C, SIGTERM and SIGUSR1 end the training after the chunk under way, with a checkpoint; a second one at once.

    So does the death of a parent that has named itself in ``SHOAL_PARENT``: a killed benchmark leaves nothing running.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder  # of the one training that is stopped
        self.told = False
        self.scheduled = False  # a scheduler's signal: it may start the same command again
        self.parent = os.environ.get(PARENT)

    @property
    def asked(self) -> bool:
        return self.told or (self.parent is not None and os.getppid() != int(self.parent))

    def __enter__(self) -> Stop:
        self.before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: Any) -> None:
        if self.told and number != signal.SIGUSR1:  # a warning, which may come twice
            if self.folder is None:
                raise KeyboardInterrupt
            self._say(f"stopped at once; resume={self.folder} goes on from the last checkpoint, if there is one")
            os._exit(128 + number)  # an exception could be dropped, and an ordinary end waits for the chunk under way
        self.told = True
        self.scheduled = self.scheduled or number != signal.SIGINT
        self._say("stopping after this chunk (again to stop at once)")

    @staticmethod
    def _say(line: str) -> None:
        with suppress(OSError, RuntimeError):  # a closed pipe, or a signal amid another line
            print(line, file=sys.stderr, flush=True)


@dataclasses.dataclass
class Programs:
    """The compiled functions of a batch; calling them can never compile again."""

    start: Callable
    chunk: Callable
    state: Any  # the shapes of a batch's state
    seconds: float  # what compiling took
    memory: int  # bytes that a batch takes


@contextmanager
def no_collection() -> Iterator[None]:
    """Without Python's garbage collector, which takes a fifth of the time that tracing does and finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@no_collection()
def compile_programs(plan: Plan, display: Display) -> Programs:
    """Compile the start and the chunk for one batch of runs, and refuse what will not fit in memory."""
    begin = time.perf_counter()
    words, hypers = sharding.put(plan.runs.select(np.zeros(plan.width, int)), plan.width)

    def first(words: chex.Array, hypers: Hypers):
        key = plan.key(words)
        state = start(plan.algorithm, key, hypers)
        return state if plan.rules is None else generations.start(state, key, hypers, plan.rules)

    def evolving(state: generations.Evolving, _: Hypers):
        assert plan.rules is not None
        return generations.train_rounds(
            state, chunk_of(plan), plan.rules, plan.batch_size, plan.rounds_per_chunk, plan.objective
        )

    if plan.width > plan.batch_size:
        devices, more = sharding.run_mesh(plan.batch_size).size, plan.width - plan.batch_size
        display.line(f"{plan.batch_size} runs on {devices} devices: {more} more train along, and are dropped")
    display.compiling("the training")
    traced = jax.jit(sharding.over_runs(first, plan.width)).trace(words, hypers)
    shapes = sharding.shapes(traced.out_info, plan.width)
    available = hosts.least(available_memory())
    # The least that it can be, known before anything is compiled.
    check_memory(budget.state_need(shapes, plan.width).of(plan.width), available, plan)
    chunk = sharding.over_runs(chunk_of(plan), plan.width, in_place=True) if plan.rules is None else evolving
    chunk_traced = jax.jit(chunk, donate_argnums=0).trace(shapes, hypers)
    chunk_lowered = chunk_traced.lower()
    with ThreadPoolExecutor() as pool:  # XLA leaves the interpreter alone: the small program hides behind the large
        chunk_compiling = pool.submit(chunk_lowered.compile, RUN_LONG)
        need = budget.state_need(shapes, plan.width, budget.beside_state(chunk_traced.jaxpr.jaxpr))
        if display.console.is_terminal or need.of(plan.width) > WORTH_SAYING:
            display.line(need.text(plan.width, available))
        start_compiled = traced.lower().compile(RUN_ONCE)
        chunk_compiled = chunk_compiling.result()
    memory = memory_of(chunk_compiled, plan.width)
    check_memory(memory, available, plan)
    if memory > WORTH_SAYING:
        display.line(f"{plan.width} runs at once take {budget.size_text(memory)}")
    return Programs(start_compiled, chunk_compiled, shapes, time.perf_counter() - begin, memory)


def memory_of(program: Any, runs: int) -> int:
    """Bytes that a compiled program will have in use at once, of all devices that share a memory."""
    sizes = program.memory_analysis()
    if sizes is None:
        return 0
    taken = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    return budget.holders(runs) * (taken - sizes.alias_size_in_bytes)


def check_memory(needed: int, available: int | None, plan: Plan) -> None:
    """A :class:`UserError` that names ``runs_per_batch`` (and ``buffer_size``) if more is needed than there is."""
    if available is None or needed <= available:
        return
    advice, runs, algo = [], plan.width, plan.settings.algo
    members = plan.rules.population if plan.rules else 1
    fit = max(1, int(runs * available / needed * 0.9))
    if members > fit:
        advice.append(f"population={fit} makes a population that fits")
    elif runs > 1:
        advice.append(f"runs_per_batch={fit // members * members} (or auto) trains them in batches that fit")
    if "buffer_size" in algo:
        advice.append(f"a smaller algo.buffer_size (it is {algo.buffer_size}) makes each run smaller")
    advice = advice or ["make the networks, algo.num_envs or algo.rollout_length smaller"]
    raise UserError(
        f"{runs} run{'s' * (runs > 1)} need {budget.size_text(needed)} and {budget.size_text(available)} are free; "
        f"{'; '.join(advice)}"
    )


def available_memory() -> int | None:
    """Bytes that the device can still give; None if it does not tell."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    try:
        meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(meminfo["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None


def make_logger(plan: Plan) -> loggers.Logger:
    """The logger of the first process; the others have none."""
    if not hosts.leads():
        return loggers.Silent()
    settings, container = plan.settings, OmegaConf.to_container(plan.settings, resolve=True)
    return loggers.make(settings.logger, plan.folder, container, plan.runs, algorithm_name(settings))  # type: ignore[arg-type]


def train(plan: Plan, logger: loggers.Logger, callbacks: Sequence[Any] = ()) -> None:
    """All batches of a plan, from wherever its folder stands, then the report."""
    settings, runs = plan.settings, plan.runs
    records = Records(plan.folder)
    diverged = np.zeros(len(runs), bool)
    begin = time.perf_counter()
    total = plan.steps_per_chunk * plan.chunks * len(runs)
    with (
        in_precision(settings.precision),
        Stop(plan.folder) as stop,
        Display(total, len(runs), hosts.leads(), short_name(plan.objective)) as display,
    ):

        def stopped_by(name: str) -> None:
            stop.told = True
            display.line(f"callback {name} asked to stop")

        hooks = Hooks(callbacks, plan, stopped_by)
        done = hosts.agree(np.array(hosts.all_or_none(lambda: standing(plan, records)), np.int32)).tolist()
        if settings.resume and not any(done):
            display.line(f"{plan.folder}: no chunk was finished; the training begins again")
        programs = compile_programs(plan, display)
        speed, trained, stopped, scheduled = Speed(), [], False, False
        for batch in range(plan.batches):
            state = train_batch(plan, programs, batch, done[batch], records, logger, hooks, display, speed, stop)
            count = len(plan.batch_runs(batch))
            policy = (state.best_policy, plan.algorithm.policy(state.train))
            policy, batch_diverged = hosts.fetch((policy, state.diverged))
            diverged[plan.batch_runs(batch)] = batch_diverged[:count]
            trained.append(jax.tree.map(lambda x: x[:count], policy))  # noqa: B023
            stopped, scheduled = hosts.any_of(stop.asked, stop.scheduled)
            if stopped:
                break
            episodes = absolute_metric(plan, batch, state, records, display)
            if episodes is not None:
                hooks.after_absolute(episodes)
    logger.close()
    if hosts.leads():
        write_results(plan, records, trained, diverged, programs, speed, begin)
        if stopped:
            print(f"stopped; {pasted('resume', plan.folder)} goes on")
    hooks.end(not stopped)
    if stopped and scheduled:
        raise Stopped


def standing(plan: Plan, records: Records) -> list[int]:
    """The chunks that each batch has behind it, by its newest whole checkpoint; the records are mended to fit.

    A training that has never come to a checkpoint begins. One that has lost its checkpoints is refused.
    """
    if not hosts.leads():
        return [0] * plan.batches
    writing.remove_partial(plan.folder)
    places = [checkpoint_folder(plan.folder, batch) for batch in range(plan.batches)]
    found = [checkpoint.newest(place) for place in places]
    batches = []
    for batch, chunk in enumerate(found):
        runs, sealed = plan.batch_runs(batch), checkpoint.manifest(places[batch] / str(chunk)) if chunk else {}
        steps = (chunk or 0) * plan.steps_per_chunk
        batches.append(Begun(int(runs[0]), int(runs[-1]) + 1, steps, sealed.get("records", {})))
    unsaved = plan.settings.checkpoint.every * plan.steps_per_chunk
    for place, chunk, reach in zip(places, found, records.reach(batches), strict=True):
        finished = place == places[0] and (plan.folder / policies.FILE).exists()
        if chunk is None and (reach > unsaved or finished or checkpoint.chunks(place)):
            raise UserError(
                f"{plan.folder}: no checkpoint in {place} can be used, and records reach step {reach}; nothing is "
                "changed here; run.dir=<another folder> starts anew"
            )
    records.mend(batches)
    return [chunk or 0 for chunk in found]


def write_results(
    plan: Plan,
    records: Records,
    trained: list[Any],
    diverged: np.ndarray,
    programs: Programs,
    speed: Speed,
    begin: float,
) -> None:
    """The files that a training leaves behind, and its closing table."""
    settings, runs, algorithm = plan.settings, plan.runs, algorithm_name(plan.settings)
    evaluations = records.evaluations()
    title = f"{algorithm} on {settings.env.name}"
    if plan.rules is None:
        marl_eval.write_evaluations(plan.folder / "evaluations.json", evaluations, runs, settings.env.name, algorithm)
        closing.draw(plan.folder / "curves.png", evaluations, runs, diverged, title, plan.objective)
    else:
        config = OmegaConf.to_container(settings, resolve=True)
        families.report(plan, config, evaluations, algorithm)  # type: ignore[arg-type]
    policies.save(plan.folder, *jax.tree.map(lambda *parts: np.concatenate(parts), *trained))
    provenance(plan, programs, speed, time.perf_counter() - begin)
    lost = missing(plan, evaluations)
    title += f": {short_name(plan.objective)} of {settings.evaluation.episodes} greedy episodes{lost}, IQM over "
    if plan.rules is None:
        show_table(closing.closing_table(evaluations, runs, diverged, plan.objective), f"{title}seeds")
    else:
        show_table(families.closing_table(evaluations, plan.rules.population, plan.objective), f"{title}populations")
        print(winner.said(plan.folder))
    speed_text = f", {human(speed.steps / speed.seconds)} steps/s" if speed.seconds else ""
    print(f"{plan.folder}  ({time.perf_counter() - begin:.0f} s, {programs.seconds:.1f} s of it compiling{speed_text})")


def missing(plan: Plan, evaluations: Sequence[dict[str, Any]]) -> str:
    """A remark for the closing table if evaluations have been lost: its ``first`` may be of another step."""
    seen = {(entry["batch"], entry["env_steps"]) for entry in evaluations if "absolute" not in entry}
    last: dict[int, int] = {}
    for batch, env_steps in seen:
        last[batch] = max(last.get(batch, 0), env_steps)
    lost = sum(env_steps // plan.steps_per_round for env_steps in last.values()) - len(seen)
    first = min((env_steps for _, env_steps in seen), default=0)
    return f" ({lost} evaluations are missing in {EVALUATIONS}; the first is of step {first})" if lost > 0 else ""


def algorithm_name(settings: DictConfig) -> str:
    """What reports call it: the named algorithm, or a file of one's own."""
    return settings.algorithm if Path(settings.file).name == settings.recipe else settings.recipe


@dataclasses.dataclass
class Speed:
    """Steps of all runs and the time that they took in this session."""

    steps: int = 0
    seconds: float = 0.0


def train_batch(
    plan: Plan,
    programs: Programs,
    batch: int,
    done: int,
    records: Records,
    logger: Any,
    hooks: Hooks,
    display: Display,
    speed: Speed,
    stop: Stop,
) -> RunState:
    """One batch of runs from its checkpoint after ``done`` chunks, or from the start, to its end."""
    runs = plan.batch_runs(batch)
    host = plan.algorithm.env.host
    if host:
        plan.algorithm.env.pool.release()  # what the batch before has left standing
    padded = np.resize(runs, plan.width)  # a smaller last batch trains some runs twice and drops the copies
    words, hypers = sharding.put(plan.runs.select(padded), plan.width)
    folder = checkpoint_folder(plan.folder, batch)
    if done == 0:
        state, changes = programs.start(words, hypers), None
    else:
        restored, changes = checkpoint.restore(folder, done, programs.state, len(runs))
        state = sharding.put(restored, plan.width)
        if host and done < plan.chunks:
            display.line(
                f"{plan.settings.env.name}: no checkpoint holds an environment on the host; episodes start anew"
            )
    hooks.begin(runs, changes)
    hypers = sharding.put(hosts.agree(hooks.padded(plan.width)), plan.width)
    before = plan.steps_per_chunk * plan.chunks * int(runs[0])
    display.skip_to(before + plan.steps_per_chunk * done * len(runs))
    if done >= plan.chunks:
        return state
    known_diverged = hosts.fetch(state.diverged)
    unsaved = None  # the last chunk, if it was not saved: its state is gone when the next one fails
    for chunk in range(done + 1, plan.chunks + 1):
        tick = time.perf_counter()
        try:
            state, *told = programs.chunk(state, hypers)
            jax.block_until_ready(told)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                if unsaved is not None:
                    checkpoint.save(folder, chunk - 1, *unsaved)
                raise
            raise UserError(f"out of memory with {len(runs)} runs at once; set runs_per_batch lower") from error
        speed.steps += plan.steps_per_chunk * len(runs)
        seconds = time.perf_counter() - tick
        speed.seconds += seconds
        if seconds > LONG and chunk == done + 1:
            display.line(f"a chunk takes {seconds:.0f} s, the most that a kill can cost; chunks=<more> cuts it smaller")
        first = (chunk - 1) * plan.rounds_per_chunk
        for number, (metrics, episodes, shown) in enumerate(rounds_of(plan, told, state), first):
            env_steps = (number + 1) * plan.steps_per_round
            rows, evaluation = write_round(plan, batch, number, metrics, episodes, shown, records, hooks)
            logger.log(rows, env_steps)
            newly, known_diverged = newly_diverged(shown, runs, known_diverged)
            if len(newly):
                names = ", ".join(map(str, newly[:8])) + (f", ... ({len(newly)})" if len(newly) > 8 else "")
                fate = "frozen, the others go on" if plan.rules is None else "selection will replace it"
                display.line(f"warning: run {names} diverged (NaN) before step {human(env_steps)}; {fate}")
        values = np.array([row[f"evaluation/{plan.objective}"] for row in rows])
        steps = before + env_steps * len(runs)
        display.advance(steps, speed.steps / speed.seconds, values, known_diverged[: len(runs)])
        failure, changed = None, False
        try:
            changed = hooks.after_chunk(chunk, list(map(user_callbacks.plain, rows)), evaluation["metrics"])
        except Exception as error:  # of the user's: it must not cost the chunk
            failure = error
        stopping, changed, failed = hosts.any_of(stop.asked, changed, failure is not None)
        stop.told = stop.told or stopping
        if failed:
            checkpoint.save(folder, chunk, state, plan.settings.checkpoint.keep, hooks.missed(), records.seal(batch))
            raise failure or UserError("a callback has failed in the first process")
        if changed:
            hypers = sharding.put(hosts.agree(hooks.padded(plan.width)), plan.width)
        if chunk % plan.settings.checkpoint.every == 0 or chunk == plan.chunks or stopping:
            checkpoint.save(folder, chunk, state, plan.settings.checkpoint.keep, hooks.state(), records.seal(batch))
            unsaved = None
        elif host:
            unsaved = (jax.device_get(state), plan.settings.checkpoint.keep, hooks.state(), records.seal(batch))
        if stopping:
            break
    return state


def newly_diverged(
    shown: RunState | generations.Round, runs: np.ndarray, known: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The runs that diverged since the ``known [R]`` ones did, and all that have now ``[R]``."""
    diverged, fresh = hosts.fetch(shown.diverged), ~known
    if isinstance(shown, generations.Round):
        fresh = fresh | (hosts.fetch(shown.kind) != Kind.KEPT)  # who was selected or mutated has begun anew
    return runs[(diverged & fresh)[: len(runs)]], diverged


def rounds_of(plan: Plan, told: list[Any], state: Any) -> list[tuple[Table, Metrics, Any]]:
    """What a chunk said, by its rounds, each with the state or what an evolution told of it: metrics, episodes, it."""
    if plan.rules is None:
        return [(*told, state)]
    (rounds,) = hosts.fetch(told)
    singles = [jax.tree.map(lambda x: x[number], rounds) for number in range(plan.rounds_per_chunk)]  # noqa: B023
    return [(one.metrics, one.episodes, one) for one in singles]


def write_round(
    plan: Plan, batch: int, number: int, metrics: Table, episodes: Metrics, shown: Any, records: Records, hooks: Hooks
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows and the evaluation of a round (a chunk, without evolution), after they have been written."""
    runs, env_steps = plan.batch_runs(batch), (number + 1) * plan.steps_per_round
    rows, evaluation = chunk_records(plan, batch, env_steps, metrics, episodes, shown)
    if isinstance(shown, generations.Round):
        assert plan.rules is not None
        hooks.hypers |= {name: values[: len(runs)] for name, values in shown.hypers.items()}
        if hosts.leads():
            records.append_lineage(lineage.rows(shown, runs, plan.rules, number, env_steps), batch)
    else:
        rows = [row | hooks.columns(position) for position, row in enumerate(rows)]
    if hosts.leads():
        records.append(rows, evaluation)
    return rows, evaluation


def checkpoint_folder(folder: Path, batch: int) -> Path:
    """Where a batch's checkpoints are."""
    return folder / "checkpoints" / f"batch_{batch}"


def chunk_records(
    plan: Plan, batch: int, env_steps: int, table: Table, episodes: Metrics, state: RunState | generations.Round
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of ``metrics.csv`` and the entry of the evaluations for one chunk."""
    runs = plan.batch_runs(batch)
    table, episodes, best, diverged = hosts.fetch((table, episodes, state.best_return, state.diverged))
    metrics = table.columns()
    rows = []
    for position, run in enumerate(runs):
        row = {"run": int(run), "seed": int(plan.runs.seed[run]), "env_steps": env_steps}
        row |= {"episode_return": metrics["episode_return"][position]}
        row |= {name: np.float32(value) for name, value in plan.runs.points[plan.runs.point[run]].items()}
        row |= {name: value[position] for name, value in metrics.items() if name != "episode_return"}
        row |= {f"evaluation/{name}": value[position].mean() for name, value in episodes.items()}
        row |= {"best_return": best[position], "diverged": diverged[position]}
        if isinstance(state, generations.Round):
            row |= {f"hypers/{name}": values[position] for name, values in state.hypers.items()}
        rows.append(row)
    entry = evaluation_entry(batch, runs, env_steps, episodes)
    if isinstance(state, generations.Round) and diverged[: len(runs)].any():
        entry["diverged"] = runs[diverged[: len(runs)]].tolist()  # what these play counts for nothing
    return rows, entry


def evaluation_entry(batch: int, runs: np.ndarray, env_steps: int, episodes: Metrics) -> dict[str, Any]:
    """The episodes of one evaluation as plain numbers, ``[runs][episodes]`` per metric."""
    values = {
        name: np.asarray(value)[: len(runs)].astype(np.float64).round(5).tolist() for name, value in episodes.items()
    }
    return {"batch": batch, "env_steps": env_steps, "runs": runs.tolist(), "metrics": values}


def absolute_metric(
    plan: Plan, batch: int, state: RunState, records: Records, display: Display
) -> dict[str, Any] | None:
    """Ten times the episodes with each run's best parameters, once per batch; None if they have been played before."""
    env_steps = plan.steps_per_chunk * plan.chunks
    past = [entry for entry in records.evaluations() if "absolute" in entry and entry["batch"] == batch]
    played = any(entry["env_steps"] == env_steps for entry in past)  # not that of a shorter training, gone on with
    if hosts.agree(np.int32(played)):
        return None
    display.compiling("the last evaluation")
    settings = plan.settings.evaluation

    def play(policy: Params, key: chex.PRNGKey) -> Metrics:
        if not plan.algorithm.env.host:
            return evaluate(plan.algorithm, policy, key, ABSOLUTE * settings.episodes, settings.greedy)[1]
        # One after the other: the host holds no more environments than the evaluations before needed.
        one = partial(evaluate, plan.algorithm, policy, episodes=settings.episodes, greedy=settings.greedy)
        _, episodes = jax.lax.scan(lambda key, _: one(key), key, length=ABSOLUTE)
        return jax.tree.map(lambda x: x.reshape(-1), episodes)

    program = jax.jit(sharding.over_runs(play, plan.width))
    episodes = hosts.fetch(program(state.best_policy, state.evaluation_key))
    entry = evaluation_entry(batch, plan.batch_runs(batch), env_steps, episodes)
    if hosts.leads():
        records.append_evaluation({"absolute": True, **entry})
    return entry["metrics"]


def provenance(plan: Plan, programs: Programs, speed: Speed, seconds: float) -> None:
    """``provenance.json``: with what, on what and how fast the training in the folder was made."""
    facts = {
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "devices": [str(device) for device in jax.devices()],
        "cores": os.cpu_count(),
        "runs": len(plan.runs),
        "env_steps_per_run": plan.steps_per_chunk * plan.chunks,
        "session": {
            "seconds": round(seconds, 2),
            "compile_seconds": round(programs.seconds, 2),
            "memory_bytes": programs.memory,
            "steps_per_second": round(speed.steps / speed.seconds) if speed.seconds else None,
        },
    }
    writing.write(plan.folder / "provenance.json", json.dumps(facts, indent=2))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
