"""Files that are written whole or not at all, through no symbolic link; a full disk is one line."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from shoal.errors import Fault

PARTIAL = ".partial-"  # begins the name of a file that is being written
BLOCKS = 2**16  # bytes
LINK = "is a symbolic link, and nothing is written through one"


@contextmanager
def faults(path: str | Path, verb: str = "written") -> Iterator[None]:
    """Turn an ``OSError`` into an :class:`shoal.envs.base.Fault` that names ``path``."""
    try:
        yield
    except OSError as error:
        raise Fault(f"{path}: cannot be {verb} ({LINK if error.errno == errno.ELOOP else reason(error)})") from error


def reason(error: OSError) -> str:
    """What the system says, without numbers and paths."""
    return error.strerror or str(error).partition("\n")[0] or type(error).__name__


@contextmanager
def new_file(path: str | Path) -> Iterator[IO[bytes]]:
    """A file to write that must not exist yet; on the disk at the end, and gone again after an error."""
    with open(path, "xb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise


def write(path: str | Path, content: str | bytes) -> None:
    """Put ``content`` in the place of a file, whole or not at all. A symbolic link there is replaced, not followed."""
    path = Path(path)
    partial = path.with_name(f"{PARTIAL}{os.urandom(6).hex()}")
    with faults(path):
        with new_file(partial) as file:
            file.write(content.encode() if isinstance(content, str) else content)
        try:
            os.replace(partial, path)
        except OSError:
            os.unlink(partial)
            raise


def opened(path: str | Path, flags: int) -> int:
    """The descriptor of a regular file, opened by ``flags`` (``os.O_RDWR``) and made if it is not there.

    A symbolic link is not followed.
    """
    with faults(path):
        descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)  # a FIFO must not block
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def append(path: str | Path, text: str) -> None:
    """Add ``text`` to a regular file, all of it or nothing; on the disk when this returns."""
    descriptor = opened(path, os.O_WRONLY | os.O_APPEND)
    with faults(path):
        try:
            before, rest = os.fstat(descriptor), memoryview(text.encode())
            try:
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before.st_size)
                raise
        finally:
            os.close(descriptor)


def check_room(folder: Path) -> None:
    """Raise an ``OSError`` if a folder cannot take some more blocks."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(BLOCKS))
        file.flush()
        os.fsync(file.fileno())


def make_folder(path: str | Path) -> Path:
    """Make a folder and its parents, if they are not there; the last one is no symbolic link."""
    path = Path(path)
    with faults(path):
        if path.is_symlink():
            raise OSError(errno.ELOOP, LINK)
        path.mkdir(parents=True, exist_ok=True)
    return path


def remove_partial(folder: Path) -> None:
    """Remove what killed processes were writing; nobody else writes to the folder now."""
    with faults(folder):
        for path in folder.iterdir():
            if path.name.startswith(PARTIAL):
                path.unlink(missing_ok=True)
