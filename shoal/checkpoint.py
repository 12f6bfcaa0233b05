"""Checkpoints of the whole state: written by orbax, whole or not at all, and checked before they are trusted.

A checkpoint is a folder ``<chunk>`` with orbax's files, ``callbacks.json`` where there are callbacks, and
``manifest.json`` (each file's size and SHA-256). It is written under another name and renamed when it is complete, so a
killed process leaves either a whole checkpoint or none. Nothing in it is code: loading executes nothing.

Of several processes each writes what its devices hold, and the first the rest. Any number of processes and devices can
restore it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import hosts, reading

MANIFEST, CALLBACKS = "manifest.json", "callbacks.json"
PARTIAL = ".partial"
LARGE = 2**28  # bytes


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)


def save(folder: Path, chunk: int, state: Any, keep: int, callbacks: dict[str, Any] | None = None) -> None:
    """Write ``state`` as the checkpoint after ``chunk`` chunks and drop all but the newest ``keep``.

    ``callbacks`` is what these have changed, as JSON can hold it.
    """
    import orbax.checkpoint as ocp

    partial, final = folder / f"{chunk}{PARTIAL}", folder / str(chunk)
    if hosts.leads():
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob(f"*{PARTIAL}"):
            shutil.rmtree(stale)
        partial.mkdir()
    hosts.meet("a place for the checkpoint")
    state = jax.tree.map(_data, state)
    # As numpy arrays it is written sooner, but copied twice on the way.
    small = hosts.count() == 1 and sum(leaf.nbytes for leaf in jax.tree.leaves(state)) < LARGE
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save((partial / "state").absolute(), jax.tree.map(np.asarray, state) if small else state)
    if hosts.leads():
        _complete(partial, final, callbacks)
        for old in chunks(folder)[:-keep]:
            shutil.rmtree(folder / str(old))
    hosts.meet("the checkpoint is written")


def _complete(partial: Path, final: Path, callbacks: dict[str, Any] | None) -> None:
    """Vouch for what has been written, and give it its name."""
    if callbacks is not None:
        (partial / CALLBACKS).write_text(json.dumps(callbacks))
    manifest = {str(p.relative_to(partial)): [p.stat().st_size, reading.digest(p)] for p in _files(partial)}
    (partial / MANIFEST).write_text(json.dumps(manifest))
    _sync(partial)
    if final.exists():
        shutil.rmtree(final)
    os.rename(partial, final)
    _sync_folder(final.parent)


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _data(x: Any) -> Any:
    """The words of a typed key, which no file format knows; other arrays as they are."""
    return jax.random.key_data(x) if _is_key(x) else x


def _key_like(x: np.ndarray, like: Any) -> Any:
    """Words as the typed key that ``like`` is; other arrays as they are."""
    return jax.random.wrap_key_data(jnp.asarray(x), impl="threefry2x32") if _is_key(like) else x


def chunks(folder: Path) -> list[int]:
    """The complete checkpoints, oldest first."""
    if not folder.exists():
        return []
    names = (p.name for p in folder.iterdir() if p.is_dir())
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 10)


def damage(folder: Path) -> str | None:
    """What is wrong with the checkpoint in ``folder``; None if its manifest vouches for every file in it."""
    try:
        manifest = reading.json_file(folder / MANIFEST)
        there = {str(path.relative_to(folder)) for path in _files(folder)}
        strange = [path.name for path in folder.rglob("*") if not (path.is_file() or path.is_dir())]
        if strange:
            return f"{strange[0]} is no regular file"
        if not isinstance(manifest, dict) or not manifest:
            return f"{MANIFEST} names no files"
        for name in sorted({*manifest, *there}):
            if name not in manifest:
                return f"{name} is not in {MANIFEST}"
            if name not in there:  # nor is a path that leads out of the folder
                return f"{name} is missing"
            size, digest = manifest[name]
            path = folder / name
            if path.stat().st_size != size or reading.digest(path) != digest:
                return f"{name} has changed since it was written"
    except (OSError, ValueError, TypeError) as error:
        return f"{MANIFEST} cannot be read ({type(error).__name__})"
    return None


def newest(folder: Path) -> int | None:
    """The newest whole checkpoint. A damaged one is passed over with a warning, and the one before it is taken."""
    for chunk in reversed(chunks(folder)):
        reason = damage(folder / str(chunk))
        if reason is None:
            return chunk
        print(
            f"warning: checkpoint {folder / str(chunk)} is damaged ({reason}); trying the one before", file=sys.stderr
        )
    return None


def restore(folder: Path, like: Any, runs: int) -> tuple[int, Any, dict[str, Any] | None] | None:
    """The newest whole checkpoint as ``(chunk, state, callbacks)``, shaped ``like`` a state; None if there is none.

    Beyond the first ``runs`` of the run axis are copies of them, as many as the devices needed: more or fewer now.
    """
    import orbax.checkpoint as ocp

    found = newest(folder) if hosts.leads() else None
    chunk = int(hosts.agree(np.int32(-1 if found is None else found)))
    if chunk < 0:
        return None
    template = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(partial(jax.tree.map, _data), like))
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), template)
    with ocp.PyTreeCheckpointer() as checkpointer:
        path = (folder / str(chunk) / "state").absolute()
        state = checkpointer.restore(path, item=template, restore_args=as_numpy)
    state = jax.tree.map(lambda x, now: x if len(x) == len(now) else x[np.arange(len(now)) % runs], state, template)
    state = jax.tree.map(_key_like, state, like)
    path = folder / str(chunk) / CALLBACKS
    return chunk, state, json.loads(path.read_text()) if path.exists() else None
