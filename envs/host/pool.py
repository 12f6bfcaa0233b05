"""Worker processes that step environments on the host, and what happens when one of them dies.

A :class:`Pool` belongs to one task and is shared by everything in this process that plays it. Its environments stand in
banks: one for each training, whose environments begin their next episode by themselves, and one for each number of
episodes that are evaluated at once, whose environments stand still when they have ended. Environment ``i`` of a bank of
``B`` always lives in the same worker, so that a request to a worker is a range of numbers and arrays.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shoal.envs.host.worker import receive, send
from shoal.errors import UserError

SCRIPT = Path(__file__).with_name("worker.py")
# No window, no greeting, and no threads beside the workers themselves.
QUIET = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
RESTARTS = 1  # of each worker; after that its death ends the training
Seen = dict[str, np.ndarray]  # by name, see Worker.arrays

_pools: dict[str, Pool] = {}
_lock = threading.Lock()


class Known(logging.Filter):
    """Drops JAX's stack traces of UserErrors in a callback, which the user reads in one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], UserError))


KNOWN = Known()


class Process:
    """One worker and the pipes to it."""

    def __init__(self) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | QUIET | ONE_THREAD,
        )

    def send(self, message: Any) -> None:
        """A request. That the worker is gone shows when the answer is waited for."""
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):
            send(self.popen.stdin, message)

    def receive(self) -> Any:
        """The answer; ``EOFError`` if the worker has died."""
        assert self.popen.stdout is not None
        return receive(self.popen.stdout)

    def end(self, patience: float = 2.0) -> int:
        """Close the pipes, at which a worker ends; its exit code."""
        for stream in (self.popen.stdin, self.popen.stdout):
            with suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]
        try:
            return self.popen.wait(patience)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            return self.popen.wait()


class Pool:
    """The workers of one task. Requests are answered one at a time, whichever thread asks."""

    def __init__(self, name: str, begin: tuple[Any, ...], workers: int):
        self.name, self.begin, self.size = name, begin, workers
        self.failure: UserError | None = None  # why it cannot go on
        self.processes: list[Process] = []
        self.restarts = [0] * workers
        self.trainings = 0  # banks of trainings so far
        self.lock = threading.RLock()
        logging.getLogger("jax._src.callback").addFilter(KNOWN)  # more than once is once
        self.facts: dict[str, Any] = self._start(1)[0]

    def _new(self) -> Process:
        process = Process()
        process.send(("begin", sys.path, *self.begin))
        return process

    def _start(self, count: int) -> list[dict[str, Any]]:
        """Have ``count`` workers up; what the new ones say of the task."""
        old = len(self.processes)
        self.processes += [self._new() for _ in range(count - old)]
        return [self._answer(worker) for worker in range(old, len(self.processes))]

    def _answer(self, worker: int, request: tuple[Any, ...] | None = None) -> Any:
        """What a worker says to ``request`` (None: to its beginning); one that has died begins anew, asked again."""
        try:
            kind, result = self.processes[worker].receive()
        except EOFError:
            code = self.processes[worker].end()
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            if self.restarts[worker] == RESTARTS:
                self._fail(f"a worker process died for the second time ({how})")
            self.restarts[worker] += 1
            print(
                f"warning: a worker process of {self.name} died ({how}) and was started again; "
                "its episodes count as truncated",
                file=sys.stderr,
            )
            self.processes[worker] = self._new()
            facts = self._answer(worker)
            if request is None:
                return facts
            self.processes[worker].send(request)
            return self._answer(worker, request)
        if kind == "problem":
            self._fail(result)
        return result

    def _fail(self, text: str) -> None:
        self.failure = UserError(f"env={self.name}: {text}")
        self.close()
        raise self.failure

    def _ask(self, count: int, requests: list[tuple[Any, ...]]) -> list[Any]:
        if self.failure is not None:
            raise self.failure
        try:
            self._start(count)
            for worker, request in enumerate(requests):
                self.processes[worker].send(request)
            return [self._answer(worker, request) for worker, request in enumerate(requests)]
        except KeyboardInterrupt:  # between question and answer: nobody knows any more which is whose
            self.failure = UserError(f"env={self.name}: interrupted")
            self.close()
            raise

    def _ranges(self, count: int) -> list[slice]:
        """Which of a bank's environments live in which worker."""
        workers = min(self.size, count)
        edges = [count * worker // workers for worker in range(workers + 1)]
        return [slice(*pair) for pair in pairwise(edges)]

    def reset(self, seeds: np.ndarray, training: bool) -> tuple[int, np.ndarray, Seen]:
        """Begin ``[B]`` episodes: their bank, clocks ``[B]`` and what they show."""
        with self.lock:
            bank = self.trainings if training else -len(seeds)
            self.trainings += training
            ranges = self._ranges(len(seeds))
            answers = self._ask(len(ranges), [("reset", bank, part.start, seeds[part]) for part in ranges])
        clocks, seen = zip(*answers, strict=True)
        return bank, np.concatenate(clocks), _join(seen)

    def step(
        self,
        bank: int,
        numbers: np.ndarray,
        clocks: np.ndarray,
        seeds: np.ndarray,
        actions: np.ndarray,
        horizon: int,
    ) -> tuple[np.ndarray, Seen, Seen]:
        """Step ``[B]`` environments: clocks, what the step showed, and what the next episode shows where one began."""
        with self.lock:
            self.trainings = max(self.trainings, bank + 1)  # of a resumed training, which this process never began
            ranges = self._ranges(len(numbers))
            arrays = [[array[part] for array in (numbers, clocks, seeds, actions)] for part in ranges]
            requests = [("step", bank, p.start, horizon, rows) for p, rows in zip(ranges, arrays, strict=True)]
            answers = self._ask(len(ranges), requests)
        new_clocks, last, first = zip(*answers, strict=True)
        blank = [
            {name: np.zeros_like(seen[name]) for name in ("obs", "alive", "mask", "state") if name in seen}
            for seen in last
        ]
        begun = [seen if seen is not None else empty for seen, empty in zip(first, blank, strict=True)]
        return np.concatenate(new_clocks), _join(last), _join(begun)

    def release(self) -> None:
        """Close all environments; the workers stay for the next."""
        with self.lock:
            if self.failure is None:
                self._ask(0, [("drop",)] * len(self.processes))

    def close(self) -> None:
        """End the workers."""
        for process in self.processes:
            process.end()
        self.processes.clear()


def _join(parts: tuple[Seen, ...] | list[Seen]) -> Seen:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def shared(name: str, path: str, kwargs: dict[str, Any], continuous: bool | None, workers: int | None) -> Pool:
    """The pool of a task, made when first asked for."""
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    key = json.dumps([path, kwargs, continuous, workers], sort_keys=True, default=str)
    with _lock:
        if key not in _pools or _pools[key].failure is not None:
            _pools[key] = Pool(name, (path, kwargs, continuous), workers)
        return _pools[key]


@atexit.register
def close_all() -> None:
    """End every worker of this process."""
    for pool in _pools.values():
        pool.close()
    _pools.clear()
