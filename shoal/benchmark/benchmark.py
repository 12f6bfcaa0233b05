"""Algorithms times tasks: a plan, then every cell as a training of its own, and what became of each.

A cell is one compiled program with all its seeds on the run axis, trained by a process of its own, so that what kills
one leaves the others alone. Cells have fixed folders: the same benchmark goes on where it was stopped or killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from shoal import envs
from shoal.config import config
from shoal.config.config import CONFIG_DIR, setting
from shoal.config.words import as_text, nearest, readable, unknown
from shoal.errors import UserError
from shoal.folder import reading, writing
from shoal.folder.records import EVALUATIONS, METRICS, diverged_runs, objective_of, short_name, whole_lines
from shoal.run import cost, runner, sharding
from shoal.run.progress import human

SHIPPED = Path(CONFIG_DIR) / "benchmark"
# A begun cell keeps its own.
MAY_DIFFER = (*runner.FREE_TO_CHANGE, "updates_per_chunk", "rounds_per_chunk", "runs_per_batch")
LOG, STATUS, RECIPE, LOCK = "log.txt", "status.json", "benchmark.yaml", ".lock"
SHARE = 0.8  # of the free memory that a cell may take before its runs are trained in batches
POLL = 0.5  # seconds between two looks at a training


@dataclasses.dataclass
class Benchmark:
    """What is compared with what. Everything else on the command line goes to every cell."""

    algorithms: list[str] = dataclasses.field(default_factory=list)  # names, or paths of algorithm files
    tasks: list[str] = dataclasses.field(default_factory=list)  # family/task
    name: str = setting("benchmark")
    dir: str = setting("runs/benchmark/${name}")  # the folder; the same one goes on
    seeds: int = setting(10, low=1)
    seed: int = setting(0, low=0)  # the first one
    total_steps: float | None = setting(None, low=1)  # of a run; none for each recipe's own
    chunks: int = setting(20, low=1)  # evaluations
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # of every cell, over its recipe
    by_algorithm: dict[str, Any] = dataclasses.field(default_factory=dict)  # of an algorithm's cells, over those
    by_task: dict[str, Any] = dataclasses.field(default_factory=dict)  # of a task's cells, over those
    plan: bool = setting(False)  # print the plan and end
    report: bool = setting(True)  # write the report at the end
    cell: int | None = setting(None, low=0)  # only this one, for launchers


DECIDED = {  # what the words of a cell do not say
    "env": "tasks=[a,b] names them",
    "env.name": "tasks=[a,b] names them",
    "algorithm": "algorithms=[a,b] names them",
    "file": "algorithms=[a,b] names them",
    "recipe": "algorithms=[a,b] names them",
    "run.dir": "dir=<folder> is that of all",
    "run": "dir=<folder> is that of all",
    "resume": "the same command goes on",
}
FIELDS = tuple(field.name for field in dataclasses.fields(Benchmark))


class Cell(NamedTuple):
    """One algorithm on one task."""

    algorithm: str
    task: str
    words: tuple[str, ...]  # of its command line
    folder: Path

    @property
    def label(self) -> str:
        return f"{name_of(self.algorithm)} on {self.task}"


class Planned(NamedTuple):
    """A cell, and what is known of it before it trains."""

    cell: Cell
    state: str  # new, begun, finished or impossible
    reason: str = ""  # of the impossible
    runs: int = 0
    batches: int = 0
    steps: int = 0  # of a run
    done: float = 0.0  # share that is trained already
    seconds: float = 0.0  # estimated: all of it
    memory: float = 0.0  # estimated bytes


class Outcome(NamedTuple):
    """What became of a cell."""

    state: str  # finished, stopped or failed
    seconds: float
    error: str = ""


def name_of(algorithm: str) -> str:
    """What an algorithm is called: its name, or that of its file."""
    return Path(algorithm).stem if algorithm.endswith(".py") else algorithm


def read(words: Sequence[str]) -> tuple[Benchmark, list[str]]:
    """The benchmark that a command line describes, and the words that go to every cell.

    ``benchmark=quick`` takes ``config/benchmark/quick.yaml``, ``benchmark=my.yaml`` that file; other words go over it.
    """
    schema = OmegaConf.structured(Benchmark)
    own: list[tuple[str, Any]] = []
    others: list[str] = []
    readable(words)
    for word in words:
        name = word.partition("=")[0]
        if word.startswith("-"):
            raise unknown(word, ("benchmark", *FIELDS))
        override = config.parsed(as_text(word) if name in ("dir", "benchmark") else word)
        key = override.key_or_group
        if override.is_sweep_override():
            raise UserError(f"{word}: several values of one setting are a list here: {key}=[a,b]")
        if key == "benchmark":
            schema = OmegaConf.merge(schema, _file(str(override.value())))
        elif key.split(".")[0] in FIELDS:
            own.append((key, override.value()))
        else:
            _check_word(word, key)
            others.append(word)
    try:
        for key, value in own:
            OmegaConf.update(schema, key, value, merge=False)
        benchmark = OmegaConf.to_object(schema)
    except Exception as error:  # OmegaConf answers some values with errors of any kind
        raise UserError(config.one_line(error, list(words))) from error
    assert isinstance(benchmark, Benchmark)
    check(benchmark)
    return benchmark, others


def _check_word(word: str, key: str) -> None:
    """Refuse what is no setting of a training, and what a benchmark sets for each of its cells."""
    if key in DECIDED:
        raise UserError(f"{word}: a benchmark sets this for each of its trainings; {DECIDED[key]}")
    settings = [field.name for field in dataclasses.fields(config.Settings)]
    if key.split(".")[0] not in (*settings, *config.GROUPS):
        raise unknown(word, ("benchmark", *FIELDS, *settings))


def _file(name: str) -> DictConfig:
    path = Path(name) if name.endswith((".yaml", ".yml")) else SHIPPED / f"{name}.yaml"
    if not os.path.exists(path):
        known = ", ".join(sorted(p.stem for p in SHIPPED.glob("*.yaml")))
        raise UserError(f"benchmark={name}: no such file; a path of a YAML file, or one of {known}")
    try:
        tree = OmegaConf.create(reading.yaml_file(path, aliases=True))
        if not isinstance(tree, DictConfig):
            raise UserError(f"{path}: not a benchmark; it must have algorithms and tasks")
        tree.setdefault("name", path.stem)
        return OmegaConf.merge(OmegaConf.structured(Benchmark), tree)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from error


def check(benchmark: Benchmark) -> None:
    """Names that exist, values that are allowed."""
    for field in dataclasses.fields(Benchmark):
        config.validate("", getattr(benchmark, field.name), field)
    known = config.algorithms()
    files = [name for name in benchmark.algorithms if name.endswith(".py")]
    for name in files:
        if not Path(name).exists():
            raise UserError(f"algorithms: {name}: no such file")
    for name in (*benchmark.algorithms, *benchmark.by_algorithm):
        if name not in (*known, *files, *map(name_of, files)):
            hint = nearest(name, known)
            raise UserError(f"algorithms: {name}: no such algorithm; {hint}there are {', '.join(known)}, or a .py file")
    for task in (*benchmark.tasks, *benchmark.by_task):
        if task not in envs.list():
            envs.make(task)  # raises, with the nearest names
    for what in ("algorithms", "tasks"):
        names = list(map(name_of, getattr(benchmark, what)))
        if not names:
            raise UserError(f"{what}=[]: name some, such as algorithms=[mappo,qmix] tasks=[vmas/balance]")
        if len(set(names)) < len(names):
            raise UserError(f"{what}={names}: each only once")


def words_of(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """A tree of settings as words of the command line: ``{hypers: {lr: 1e-3}}`` is ``hypers.lr=0.001``."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from words_of(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={_text(value)}"


def _text(value: Any) -> str:
    """A value as Hydra's grammar reads it."""
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def cells(benchmark: Benchmark, words: Sequence[str]) -> list[Cell]:
    """The cross product; later settings win: all cells', the algorithm's, the task's, the command line's."""
    product = []
    for algorithm in benchmark.algorithms:
        for task in benchmark.tasks:
            tree: Any = OmegaConf.merge(
                {"seeds": benchmark.seeds, "seed": benchmark.seed, "chunks": benchmark.chunks},
                {} if benchmark.total_steps is None else {"total_steps": benchmark.total_steps},
                benchmark.settings,
                benchmark.by_algorithm.get(name_of(algorithm), {}),
                benchmark.by_task.get(task, {}),
            )
            settings = list(words_of(OmegaConf.to_container(tree)))  # type: ignore[arg-type]
            for word in settings:
                _check_word(word, word.partition("=")[0])
            own = (f"env={task}", *settings, *words)
            folder = Path(benchmark.dir) / name_of(algorithm) / task.replace("/", ".")
            product.append(Cell(algorithm, task, own, folder))
    return product


def composed(cell: Cell) -> tuple[ModuleType, DictConfig]:
    """The cell's algorithm file and its configuration, checked as its own command line would."""
    if not cell.algorithm.endswith(".py"):
        return config.composed(cell.algorithm, list(cell.words))
    path = Path(cell.algorithm)
    command = [sys.executable, str(path), *cell.words, "--cfg", "job", "--resolve"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode:
        raise UserError(f"{cell.algorithm}: {_last_line(told.stderr)}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module, OmegaConf.create(told.stdout)  # type: ignore[return-value]


def plan(cell: Cell) -> Planned:
    """What a cell will take and how far it is; impossible pairs with their reason.

    A setting that is wrong raises a :class:`UserError`: it is a mistake, not a pair that cannot be.
    """
    module, cfg = composed(cell)
    try:
        made = runner.make_plan(module.make, module.Config, module.Hypers, cfg, cell.folder)
    except UserError as error:
        return Planned(cell, "impossible", str(error))
    except Exception as error:  # a file of the user's: its own training will say more
        return Planned(cell, "new", f"cannot be planned: {type(error).__name__}: {error}")
    steps = made.steps_per_chunk * made.chunks
    done = _done(cell, cfg, made, module)
    state = "finished" if ended(cell.folder, steps, made.batches) else "begun" if done else "new"
    seconds, memory = (0.0, 0.0) if state == "finished" else estimate(made)
    available = runner.available_memory()
    if state == "new" and cfg.runs_per_batch is None and available is not None and memory > SHARE * available:
        fit = max(1, int(len(made.runs) * SHARE * available / memory))
        cfg.runs_per_batch = fit
        cell = cell._replace(words=(*cell.words, f"runs_per_batch={fit}"))
        seconds, memory = estimate(made)
    return Planned(cell, state, "", len(made.runs), made.batches, steps, done, seconds, memory)


def _done(cell: Cell, cfg: DictConfig, made: runner.Plan, module: ModuleType) -> float:
    """The share of a cell that its folder holds, after checking that it holds the same training."""
    if not os.path.exists(cell.folder / "config.yaml"):
        return 0.0
    saved = config.complete(cell.folder, config.saved_settings(cell.folder), module.Config, module.Hypers)
    before: Any = OmegaConf.to_container(saved)
    now: Any = OmegaConf.to_container(cfg, resolve=True)
    for key in sorted(_leaves(before) | _leaves(now)):
        old, new = OmegaConf.select(OmegaConf.create(before), key), OmegaConf.select(OmegaConf.create(now), key)
        if old != new and not any(key == free or key.startswith(f"{free}.") for free in MAY_DIFFER):
            raise UserError(f"{cell.folder}: was begun with {key}={old}, not {new}; dir=<folder> starts anew")
    size = before.get("updates_per_chunk") or made.updates_per_chunk  # a begun training keeps their size
    return checkpointed(cell.folder) / math.ceil(made.algorithm.num_updates / size) / made.batches


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for name, value in tree.items():
        inner = isinstance(value, Mapping) and value
        found |= _leaves(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}"}
    return found


def checkpointed(folder: Path) -> int:
    """Chunks of all batches that checkpoints vouch for."""
    from shoal.folder import checkpoint

    return sum(max(checkpoint.chunks(batch), default=0) for batch in (folder / "checkpoints").glob("batch_*"))


def ended(folder: Path, steps: int, batches: int) -> bool:
    """Whether every batch has had its last evaluation after ``steps`` steps, and the folder is whole."""
    last = {entry["batch"] for entry in evaluations(folder) if "absolute" in entry and entry["env_steps"] >= steps}
    return len(last) == batches and (folder / "provenance.json").exists()


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """What a training has evaluated so far; a line that a killed process left half is passed over."""
    entries = []
    with contextlib.suppress(UserError):
        for line in whole_lines(folder / EVALUATIONS):
            with contextlib.suppress(ValueError):
                entries.append(reading.evaluation(line))
    return entries


def estimate(made: runner.Plan) -> tuple[float, float]:
    """Seconds and bytes that a training will take, from the trace of one run's chunk."""
    with runner.in_precision(made.settings.precision):
        return _estimate(made)


def _estimate(made: runner.Plan) -> tuple[float, float]:
    evaluation = made.settings.evaluation
    state, hypers = made.shapes_of_one()

    def chunk(state, hypers):
        updates = made.updates_per_chunk
        return runner.train_chunk(made.algorithm, state, hypers, updates, evaluation.episodes, evaluation.greedy)

    jaxpr = jax.make_jaxpr(chunk)(state, hypers).jaxpr
    taken, rates = cost.walk(jaxpr), cost.Rates()
    devices = sharding.run_mesh(made.width).size
    batches = made.batches * made.chunks * made.width / devices
    seconds = rates.compile * cost.equations(jaxpr) + batches * rates.seconds(taken)
    state_size = float(sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(state)))
    at_once = devices if jax.default_backend() == "cpu" else made.width
    return seconds, made.width * state_size + at_once * max(0.0, taken.peak - state_size)


def plan_table(planned: Sequence[Planned]) -> list[list[str]]:
    """What will be trained, and how long it will take: rows under a header, a sum at the end."""
    rows = [["algorithm", "task", "runs", "steps each", "time, about", "memory, about", ""]]
    for one in planned:
        if one.state != "impossible":
            state = {"new": one.reason, "begun": f"begun ({one.done:.0%})", "finished": "finished"}[one.state]
            about = [duration(one.seconds), _size(one.memory)] if one.seconds else ["", ""]
            runs = f"{one.runs}" + (f" in {one.batches} batches" if one.batches > 1 else "")
            figures = [runs, human(one.steps), *about, state]
            rows.append([name_of(one.cell.algorithm), one.cell.task, *figures])
    left = sum(remaining(one) for one in planned)
    rows.append([f"{len(rows) - 1} cells", "", "", "", duration(left), "", "to go"])
    return rows


def remaining(one: Planned) -> float:
    """Estimated seconds that a cell still needs."""
    return 0.0 if one.state in ("finished", "impossible") else one.seconds * (1 - min(one.done, 1.0))


def duration(seconds: float) -> str:
    """``45 s``, ``3 min``, ``2.5 h``, ``4 d``."""
    for size, unit, shown in ((86400.0, "d", ".1f"), (3600.0, "h", ".1f"), (60.0, "min", ".0f")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:{shown}} {unit}"
    return f"{seconds:.0f} s"


def _size(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


class Tick(NamedTuple):
    """How far a training is: what its folder shows."""

    steps: int  # of a run
    episode_return: float  # the last one, of its newest run


def look(folder: Path) -> Tick | None:
    """The last whole row of a training's ``metrics.csv``; None before the first."""
    try:
        with reading.opened(folder / METRICS, reading.RECORDS) as file:
            header = file.readline().decode().rstrip("\n").split(",")
            start = file.tell()
            file.seek(0, os.SEEK_END)
            file.seek(max(start, file.tell() - 4096))
            rows = file.read().decode().rpartition("\n")[0].splitlines()
        cells = dict(zip(header, rows[-1].split(","), strict=True))
        return Tick(int(cells["env_steps"]), float(cells["evaluation/episode_return"] or "nan"))
    except (OSError, IndexError, KeyError, ValueError):
        return None


def train(one: Planned, watch: Callable[[Tick], None] | None = None, stop: Any = None) -> Outcome:
    """Train a cell to its end, from wherever its folder stands, in a process of its own."""
    cell = one.cell
    cell.folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    with (cell.folder / LOCK).open("w") as lock:
        _wait_for(lock, cell)
        begun = (cell.folder / "config.yaml").exists()
        # A training that was killed before its first checkpoint starts again from the beginning of the same folder.
        place = [f"resume={cell.folder}"] if begun else [f"run.dir={cell.folder}"]
        again = ("total_steps", "logger", "callbacks", "env")  # code is named again (docs/guide.md)
        free = [w for w in cell.words if w.split("=")[0] in again] if begun else list(cell.words)
        target = [cell.algorithm] if cell.algorithm.endswith(".py") else ["-m", "shoal", cell.algorithm]
        command = [sys.executable, *target, *free, *place]
        with (cell.folder / LOG).open("a") as log:
            # The lock goes along: whoever comes next waits until the training has ended, not only this process.
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                pass_fds=(lock.fileno(),),
                start_new_session=True,
                env={**os.environ, runner.PARENT: str(os.getpid())},
            )
            told = False
            while process.poll() is None:
                if stop is not None and stop.asked and not told:
                    process.send_signal(signal.SIGTERM)
                    told = True
                tick = look(cell.folder)
                if tick is not None and watch is not None:
                    watch(tick)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
    seconds = time.perf_counter() - begin
    if process.returncode not in (0, runner.GO_ON):
        return Outcome("failed", seconds, _why(process.returncode, cell.folder / LOG))
    return Outcome("finished" if ended(cell.folder, one.steps, one.batches) else "stopped", seconds)


def _wait_for(lock: Any, cell: Cell) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{cell.label}: another process is training it; waiting for that one to end", file=sys.stderr)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _why(code: int, log: Path) -> str:
    """One line on why a training failed."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = "; out of memory? runs_per_batch=<n> trains fewer at once" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"
    return f"{_last_line(log.read_text(errors='replace'))} (all of it in {log})"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "it said nothing"


class Reached(NamedTuple):
    """The objective in the last evaluation of a cell: IQM and 95 % interval over the runs that live."""

    objective: str
    iqm: float
    low: float
    high: float
    diverged: int  # runs left out

    @property
    def text(self) -> str:
        figures = (
            f"{short_name(self.objective)} {self.iqm:.2f} ({self.low:.2f} .. {self.high:.2f})"
            if np.isfinite(self.iqm)
            else "no score"
        )
        return figures + (f", {self.diverged} diverged" if self.diverged else "")


def reached(folder: Path) -> Reached | None:
    """What a training has come to; None if it has not been evaluated."""
    from shoal.report.report import bootstrap, iqm

    objective, lost = objective_of(OmegaConf.load(folder / "config.yaml")), diverged_runs(folder)  # type: ignore[arg-type]
    last: dict[int, float] = {}
    for entry in evaluations(folder):
        if "absolute" not in entry:
            values = np.asarray(entry["metrics"][objective], float).mean(axis=-1)
            last |= dict(zip(entry["runs"], values, strict=True))
    values = np.array([value for run, value in last.items() if np.isfinite(value) and run not in lost])
    if not last:
        return None
    middle, low, high = (iqm(values), *bootstrap(values)) if len(values) else (np.nan,) * 3
    return Reached(objective, float(middle), float(low), float(high), len(lost))


def note(folder: Path, cell: Cell, outcome: Outcome) -> None:
    """Add what became of a cell to ``status.json``."""
    path = folder / STATUS
    with (folder / f"{STATUS}{LOCK}").open("w") as lock:  # launchers write side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = {label: past._asdict() for label, past in status(folder).items()}
        writing.write(path, json.dumps(known | {cell.label: outcome._asdict()}, indent=2) + "\n")


def status(folder: Path) -> dict[str, Outcome]:
    """What became of the cells that have been trained."""
    try:
        return {label: Outcome(**fields) for label, fields in reading.json_file(folder / STATUS).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def save(benchmark: Benchmark, words: Sequence[str]) -> None:
    """``benchmark.yaml``: what is run here, ready to be run again."""
    folder = Path(benchmark.dir)
    tree = OmegaConf.to_container(OmegaConf.structured(benchmark), resolve=True)
    assert isinstance(tree, dict)
    for name in ("plan", "cell", "report"):
        tree.pop(name)
    text = OmegaConf.to_yaml(OmegaConf.create(tree))
    if words:
        text = f"# with {' '.join(words)}\n{text}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writing.write(folder / RECIPE, text)
    except OSError as error:
        raise UserError(f"dir={folder}: cannot be written ({error.strerror})") from error
