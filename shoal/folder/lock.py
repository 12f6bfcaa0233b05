"""One folder has one writer: a lock that the death of its holder frees.

The file ``.writer`` is locked (``flock``) while a training writes to its folder, and names host and process. The kernel
frees the lock with the process, however that ends, so a killed process or a rebooted machine leaves no obstacle.

On a network file system a lock of another host may not be visible (NFS with ``local_lock``, some Lustre and FUSE
mounts). So the holder also touches the file every ``BEAT`` seconds. A file that another host has left is watched for
``WATCH`` seconds: if it is touched, that host is alive. Hosts are expected to have different names.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.folder import writing

NAME = ".writer"
BEAT, WATCH = 10.0, 35.0  # seconds
BUSY = (errno.EAGAIN, errno.EACCES)


@contextmanager
def held(folder: Path, leads: bool = True) -> Iterator[None]:
    """Be the only writer of a folder; a :class:`UserError` that names host and process if another one is.

    Of the processes of one training only the one that ``leads`` writes.
    """
    if not leads:
        yield
        return
    writing.make_folder(folder)
    path, done = folder / NAME, threading.Event()
    descriptor = writing.opened(path, os.O_RDWR)
    try:
        with writing.faults(path):
            _take(descriptor, folder)
        beat = threading.Thread(target=_beat, args=(descriptor, done), daemon=True)
        beat.start()
        try:
            yield
        finally:
            done.set()
            beat.join()
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path) -> None:
    """Lock the file and write this process's name into it."""
    before, visible = _text(descriptor), True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in BUSY:
            raise UserError(_refusal(folder, before)) from error
        visible = False  # a file system without locks: the touches alone decide
    me = facts(descriptor)
    here = visible and (before.get("host") == me["host"] or before.get("boot") == me["boot"])
    rebooted = before.get("host") == me["host"] and before.get("boot") != me["boot"]
    if before.get("inode") == me["inode"] and not here and not rebooted:
        print(f"{_refusal(folder, before)}, if it lives: watching for {WATCH:.0f} s", file=sys.stderr)
        if _alive(folder / NAME):
            raise UserError(_refusal(folder, before))
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(me).encode(), 0)
    os.fsync(descriptor)


def facts(descriptor: int) -> dict[str, Any]:
    """What the file says of its holder; a copy of the file is another inode."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "boot": boot.read_text().strip() if boot.exists() else "",
        "inode": os.fstat(descriptor).st_ino,
    }


def _text(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _refusal(folder: Path, holder: dict[str, Any]) -> str:
    return f"{folder}: process {holder.get('pid', '?')} on {holder.get('host', 'another host')} writes there"


def _beat(descriptor: int, done: threading.Event) -> None:
    while not done.wait(BEAT):
        with suppress(OSError):
            os.utime(descriptor)


def _alive(path: Path) -> bool:
    """Whether the file is touched while it is watched; opened anew each time, as NFS then looks at the server."""
    first, end = _touched(path), time.monotonic() + WATCH
    while time.monotonic() < end:
        time.sleep(min(1.0, WATCH / 10))
        if _touched(path) != first:
            return True
    return False


def _touched(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)
