"""Standard streams that may be closed or full. Nothing here needs more than Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shoal.errors import Fault


class Guarded:
    """A standard stream that raises nothing: when its pipe is closed or its disk full, it falls silent."""

    def __init__(self, stream: Any):
        self.stream = stream
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        self._attempt(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._attempt(self.stream.flush)

    def _attempt(self, act: Any, *arguments: str) -> None:
        try:
            act(*arguments)
        except OSError as error:
            self.failure = self.failure or error
            with suppress(OSError):  # Python flushes once more when it ends
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.stream.fileno())
                os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def guarded() -> Iterator[None]:
    """No closed pipe or full disk behind a standard stream ends what is inside. A standard output that is cut off is a
    :class:`Fault` in the end.
    """
    before = sys.stdout, sys.stderr
    streams = [stream and Guarded(stream) for stream in before]
    sys.stdout, sys.stderr = streams  # type: ignore[assignment]
    try:
        yield
    finally:
        for stream in filter(None, streams):
            stream.flush()
        sys.stdout, sys.stderr = before
    if streams[0] and streams[0].failure:
        raise Fault(f"standard output: cannot be written ({streams[0].failure.strerror}); all files are whole")
