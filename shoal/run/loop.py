"""The loop over chunks: what the host does between two calls of the compiled program.

After every chunk the records are written, the progress bar is drawn, callbacks are called and a checkpoint is saved.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shoal.algorithm import Metrics
from shoal.errors import UserError
from shoal.evolve.population import Kind
from shoal.evolve.rounds import Round, lineage_rows
from shoal.folder import checkpoint
from shoal.folder.layout import DIVERGED, EVALUATION, short_name
from shoal.folder.records import Records, Row, evaluation_entry
from shoal.rl.metrics import Table
from shoal.run import callbacks as user_callbacks
from shoal.run import hosts, loggers
from shoal.run.callbacks import Hooks
from shoal.run.compile import Programs, compile_programs, in_precision
from shoal.run.evaluate import absolute_metric
from shoal.run.plan import Plan
from shoal.run.progress import Display, human
from shoal.run.resume import standing, write_config
from shoal.run.signals import Stop
from shoal.run.state import RunState

LONG = 30.0  # seconds: what schedulers leave a process to end in


@dataclasses.dataclass
class Speed:
    """Steps of all runs and the time that they took in this session."""

    steps: int = 0
    seconds: float = 0.0


@dataclasses.dataclass
class Session:
    """What training the batches of a plan needs from the beginning to the end of this process."""

    plan: Plan
    programs: Programs
    records: Records
    logger: loggers.Logger
    hooks: Hooks
    display: Display
    stop: Stop
    speed: Speed = dataclasses.field(default_factory=Speed)


@dataclasses.dataclass
class Trained:
    """The result of a session, from which the report is made."""

    programs: Programs
    records: Records
    hooks: Hooks
    speed: Speed
    begin: float  # of the session, by `time.perf_counter`
    diverged: np.ndarray  # [R] bool
    policies: list[Any]  # of each batch the best and the last policies, as numpy
    stopped: bool = False  # there is more to do
    scheduled: bool = False  # by a signal of a scheduler, which may start the same command again


def train(plan: Plan, logger: loggers.Logger, callbacks: Sequence[Any] = ()) -> Trained:
    """Train all batches of a plan, from wherever its folder stands."""
    settings, runs = plan.settings, plan.runs
    records = Records(plan.folder)
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
        if settings.resume is None:  # only now: a plan that does not fit leaves the folder free
            hosts.all_or_none(lambda: write_config(plan))
        session = Session(plan, programs, records, logger, hooks, display, stop)
        trained = Trained(session.programs, records, hooks, session.speed, begin, np.zeros(len(runs), bool), [])
        for batch in range(plan.batches):
            state = train_batch(session, batch, done[batch])
            count = len(plan.batch_runs(batch))
            policy = (state.best_policy, plan.algorithm.policy(state.train.learnt))
            policy, batch_diverged = hosts.fetch((policy, state.diverged))
            trained.diverged[plan.batch_runs(batch)] = batch_diverged[:count]
            trained.policies.append(jax.tree.map(lambda x: x[:count], policy))  # noqa: B023
            trained.stopped, trained.scheduled = hosts.any_of(stop.asked, stop.scheduled)
            if trained.stopped:
                break
            episodes = absolute_metric(plan, batch, state, records, display)
            if episodes is not None:
                hooks.after_absolute(episodes)
    return trained


def train_batch(session: Session, batch: int, done: int) -> RunState:
    """One batch of runs from its checkpoint after ``done`` chunks, or from the start, to its end."""
    work = Batch(session, batch)
    state = work.begin(done)
    for chunk in range(done + 1, session.plan.chunks + 1):
        state, told = work.train_chunk(chunk, state)
        if chunk == done + 1:
            work.warn_of_long_chunks()
        rows, evaluation = work.write(chunk, told, state)
        stopping = work.call_back(chunk, rows, evaluation, state)
        work.save(chunk, state, stopping)
        if stopping:
            break
    return state


class Batch:
    """One batch of runs, chunk after chunk."""

    def __init__(self, session: Session, number: int):
        self.session, self.number = session, number
        plan = session.plan
        self.runs = plan.batch_runs(number)
        self.folder = checkpoint.batch_folder(plan.folder, number)
        self.steps_before = plan.steps_per_chunk * plan.chunks * int(self.runs[0])  # of the batches before
        self.hypers: Any = None  # [R], of the next chunk
        self.diverged = np.zeros(0, bool)  # [R], known so far
        self.seconds = 0.0  # of the last chunk
        self.unsaved: Any = None  # the last chunk, if it was not saved: its state is gone when the next one fails

    def begin(self, done: int) -> RunState:
        """The first state, or that of the checkpoint after ``done`` chunks."""
        plan, display = self.session.plan, self.session.display
        host = plan.algorithm.env.host
        if host:
            plan.algorithm.env.pool.release()  # what the batch before has left standing
        if done == 0:
            # A smaller last batch trains some runs twice and drops the copies.
            words, hypers = plan.placement.put(plan.runs.select(np.resize(self.runs, plan.width)), plan.width)
            state, changes = self.session.programs.start(words, hypers), None
        else:
            restored, changes = checkpoint.restore(self.folder, done, self.session.programs.state, len(self.runs))
            state = plan.placement.put(restored, plan.width)
            if host and done < plan.chunks:
                name = plan.settings.env.name
                display.line(f"{name}: no checkpoint holds an environment on the host; episodes start anew")
        self.session.hooks.begin(self.runs, changes)
        self.take_hypers()
        display.skip_to(self.steps_before + plan.steps_per_chunk * done * len(self.runs))
        self.diverged = hosts.fetch(state.diverged)
        return state

    def take_hypers(self) -> None:
        """The hyperparameters of the next chunk, which callbacks may have changed."""
        plan = self.session.plan
        self.hypers = plan.placement.put(hosts.agree(self.session.hooks.padded(plan.width)), plan.width)

    def train_chunk(self, chunk: int, state: RunState) -> tuple[RunState, list[Any]]:
        """Call the program: the new state and the other outputs. The old state is gone."""
        plan, speed = self.session.plan, self.session.speed
        tick = time.perf_counter()
        try:
            state, *told = self.session.programs.chunk(state, self.hypers)
            jax.block_until_ready(told)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                if self.unsaved is not None:
                    checkpoint.save(self.folder, chunk - 1, *self.unsaved)
                raise
            raise UserError(f"out of memory with {len(self.runs)} runs at once; set runs_per_batch lower") from error
        self.seconds = time.perf_counter() - tick
        speed.steps += plan.steps_per_chunk * len(self.runs)
        speed.seconds += self.seconds
        return state, told

    def warn_of_long_chunks(self) -> None:
        """Tell the user if a killed process can lose much."""
        if self.seconds > LONG:
            line = f"a chunk takes {self.seconds:.0f} s, the most that a kill can cost; chunks=<more> cuts it smaller"
            self.session.display.line(line)

    def write(self, chunk: int, told: list[Any], state: RunState) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Write and show the rounds of a chunk; the rows and the evaluation of the last one."""
        plan, speed = self.session.plan, self.session.speed
        first = (chunk - 1) * plan.rounds_per_chunk
        for number, (metrics, episodes, shown) in enumerate(rounds_of(plan, told, state), first):
            env_steps = (number + 1) * plan.steps_per_round
            rows, evaluation = self.write_round(number, metrics, episodes, shown)
            self.session.logger.log(rows, env_steps)
            self.warn_of_diverged(shown, env_steps)
        values = np.array([row[EVALUATION + plan.objective] for row in rows])
        steps = self.steps_before + env_steps * len(self.runs)
        self.session.display.advance(steps, speed.steps / speed.seconds, values, self.diverged[: len(self.runs)])
        return rows, evaluation

    def write_round(
        self, number: int, metrics: Table, episodes: Metrics, shown: Any
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The rows and the evaluation of a round (a chunk, without evolution), after they have been written."""
        plan, records, hooks = self.session.plan, self.session.records, self.session.hooks
        env_steps = (number + 1) * plan.steps_per_round
        rows, evaluation = chunk_records(plan, self.number, env_steps, metrics, episodes, shown)
        if isinstance(shown, Round):
            assert plan.rules is not None
            hooks.hypers |= {name: values[: len(self.runs)] for name, values in shown.hypers.items()}
            if hosts.leads():
                records.append_lineage(lineage_rows(shown, self.runs, plan.rules, number, env_steps), self.number)
        else:
            rows = [row | hooks.columns(position) for position, row in enumerate(rows)]
        if hosts.leads():
            records.append(rows, evaluation)
        return rows, evaluation

    def warn_of_diverged(self, shown: RunState | Round, env_steps: int) -> None:
        """Name the runs that have diverged since the last round."""
        newly, self.diverged = newly_diverged(shown, self.runs, self.diverged)
        if len(newly):
            names = ", ".join(map(str, newly[:8])) + (f", ... ({len(newly)})" if len(newly) > 8 else "")
            fate = "frozen, the others go on" if self.session.plan.rules is None else "selection will replace it"
            self.session.display.line(f"warning: run {names} diverged (NaN) before step {human(env_steps)}; {fate}")

    def call_back(self, chunk: int, rows: list[dict[str, Any]], evaluation: dict[str, Any], state: RunState) -> bool:
        """Call the callbacks of a chunk; whether the training is to stop."""
        hooks, stop = self.session.hooks, self.session.stop
        failure, changed = None, False
        try:
            changed = hooks.after_chunk(chunk, list(map(user_callbacks.plain, rows)), evaluation["metrics"])
        except Exception as error:  # of the user's: it must not cost the chunk
            failure = error
        stopping, changed, failed = hosts.any_of(stop.asked, changed, failure is not None)
        stop.told = stop.told or stopping
        if failed:
            keep = self.session.plan.settings.checkpoint.keep
            checkpoint.save(self.folder, chunk, state, keep, hooks.missed(), self.session.records.seal(self.number))
            raise failure or UserError("a callback has failed in the first process")
        if changed:
            self.take_hypers()
        return stopping

    def save(self, chunk: int, state: RunState, stopping: bool) -> None:
        """Save a checkpoint if one is due."""
        plan = self.session.plan
        due = chunk % plan.settings.checkpoint.every == 0 or chunk == plan.chunks or stopping
        if not due and not plan.algorithm.env.host:
            return
        seal = self.session.records.seal(self.number)
        extras = (plan.settings.checkpoint.keep, self.session.hooks.state(), seal)
        if due:
            checkpoint.save(self.folder, chunk, state, *extras)
        self.unsaved = None if due else (jax.device_get(state), *extras)


def newly_diverged(shown: RunState | Round, runs: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The runs that diverged since the ``known [R]`` ones did, and all that have now ``[R]``."""
    diverged, fresh = hosts.fetch(shown.diverged), ~known
    if isinstance(shown, Round):
        fresh = fresh | (hosts.fetch(shown.kind) != Kind.KEPT)  # a selected or mutated member has begun anew
    return runs[(diverged & fresh)[: len(runs)]], diverged


def rounds_of(plan: Plan, told: list[Any], state: Any) -> list[tuple[Table, Metrics, Any]]:
    """A chunk's outputs by its rounds: metrics, episodes, and the state or what an evolution tells of the round."""
    if plan.rules is None:
        return [(*told, state)]
    (rounds,) = hosts.fetch(told)
    singles = [jax.tree.map(lambda x: x[number], rounds) for number in range(plan.rounds_per_chunk)]  # noqa: B023
    return [(one.metrics, one.episodes, one) for one in singles]


def chunk_records(
    plan: Plan, batch: int, env_steps: int, table: Table, episodes: Metrics, shown: RunState | Round
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of ``metrics.csv`` and the entry of the evaluations for one chunk."""
    runs = plan.batch_runs(batch)
    table, episodes, best, diverged = hosts.fetch((table, episodes, shown.best_return, shown.diverged))
    metrics, hypers = table.columns(), shown.hypers if isinstance(shown, Round) else {}
    rows = [
        Row(
            run=int(run),
            seed=int(plan.runs.seed[run]),
            env_steps=env_steps,
            swept=plan.runs.points[plan.runs.point[run]],
            metrics={name: value[position] for name, value in metrics.items()},
            means={name: value[position].mean() for name, value in episodes.items()},
            best_return=best[position],
            diverged=diverged[position],
            hypers={name: values[position] for name, values in hypers.items()},
        ).columns()
        for position, run in enumerate(runs)
    ]
    entry = evaluation_entry(batch, runs, env_steps, episodes)
    if isinstance(shown, Round) and diverged[: len(runs)].any():
        entry[DIVERGED] = runs[diverged[: len(runs)]].tolist()  # what these play counts for nothing
    return rows, entry
