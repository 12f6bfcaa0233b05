"""Signals that end a training after the chunk under way."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

PARENT = "SHOAL_PARENT"  # the process that a training ends with, if it says so
GO_ON = 75  # exit code of a training that a signal has stopped: the same command with resume=auto goes on (EX_TEMPFAIL)


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
