"""Checkpoints of the whole state: written whole or not at all, read back, and checked before they are trusted.

A checkpoint is a folder ``<chunk>`` with a ``state.<process>.safetensors`` of each process, ``callbacks.json`` where
there are callbacks, and ``manifest.json``: size and SHA-256 of each file, and of the records up to this chunk. It is
written under another name and renamed when it is complete. So a killed process or a full disk leaves either a whole
checkpoint or none. Nothing in it is code.

Of several processes each writes what its devices hold, and the first the rest. Any number of processes and devices can
restore it. An array of the file is a part of an array of the state: ``train/params/actor/kernel[0:4,0:8]``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import struct
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.errors import UserError
from shoal.folder import reading, writing
from shoal.run import hosts

MANIFEST, CALLBACKS = "manifest.json", "callbacks.json"
STATE = re.compile(r"state\.\d+\.safetensors")
PARTIAL = ".partial"
# What safetensors calls numpy's types; any other is written as bits of its size.
TYPES = {f"{kind}{8 * size}": f"{kind[0].upper()}{8 * size}" for kind in ("int", "uint") for size in (1, 2, 4, 8)}
TYPES |= {"float16": "F16", "float32": "F32", "float64": "F64", "bool": "BOOL"}


def batch_folder(folder: Path, batch: int) -> Path:
    """The checkpoints of a batch of runs, in the folder of a training."""
    return folder / "checkpoints" / f"batch_{batch}"


def save(
    folder: Path,
    chunk: int,
    state: Any,
    keep: int,
    callbacks: dict[str, Any] | None = None,
    records: dict[str, Any] | None = None,
) -> None:
    """Write ``state`` as the checkpoint after ``chunk`` chunks and drop all but the newest ``keep``.

    ``callbacks`` is what these have changed, as JSON can hold it; ``records`` what :meth:`Records.seal` gives.
    """
    place, words = folder / f"{chunk}{PARTIAL}", jax.tree.map(_data, state)
    try:
        hosts.all_or_none(lambda: _begin(folder, place) if hosts.leads() else None)
        digest = hosts.all_or_none(lambda: write_state(place, words))
        hosts.all_or_none(lambda: _complete(place, folder / str(chunk), callbacks, records, digest, keep))
    except BaseException:
        if hosts.leads():
            shutil.rmtree(place, ignore_errors=True)  # a full disk has room again
        raise


def _begin(folder: Path, partial: Path) -> None:
    writing.make_folder(folder.parent)
    writing.make_folder(folder)
    with writing.faults(partial):
        for stale in folder.iterdir():
            if stale.name.endswith(PARTIAL):
                stale.unlink() if stale.is_symlink() else shutil.rmtree(stale)
        partial.mkdir()


def _complete(partial: Path, final: Path, callbacks: Any, records: Any, digest: tuple[str, str], keep: int) -> None:
    """Vouch for what has been written, give it its name, and drop old checkpoints."""
    if not hosts.leads():
        return
    with writing.faults(final):
        if callbacks is not None:
            writing.write(partial / CALLBACKS, json.dumps(callbacks))
        known = dict([digest])
        files = {p.name: [p.stat().st_size, known.get(p.name) or reading.digest(p)] for p in sorted(partial.iterdir())}
        writing.write(partial / MANIFEST, json.dumps({"files": files, "records": records or {}}))
        _sync_folder(partial)
        if final.exists():
            shutil.rmtree(final)
        os.rename(partial, final)
        _sync_folder(final.parent)
        for old in chunks(final.parent)[:-keep]:
            shutil.rmtree(final.parent / str(old))


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
    if not _is_key(like):
        return x
    return jax.random.wrap_key_data(jnp.asarray(x), impl=jax.random.key_impl(jnp.empty((), like.dtype)))


def leaves_of(state: Any) -> dict[str, Any]:
    """The arrays of a state by their names: ``{"train/params/actor/kernel": array}``."""
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}


def _parts(state: Any) -> Iterator[tuple[str, tuple[int, ...], np.dtype, Any]]:
    """Name, shape, type and array of each part that this process has to write."""
    for name, leaf in leaves_of(state).items():
        if not isinstance(leaf, jax.Array):
            shards: list[tuple[Any, Any]] = [([slice(None)] * np.ndim(leaf), leaf)] if hosts.leads() else []
        else:
            shards = [(shard.index, shard.data) for shard in leaf.addressable_shards if shard.replica_id == 0]
        for index, part in shards:
            starts = [span.start or 0 for span in index]
            where = ",".join(f"{start}:{start + size}" for start, size in zip(starts, np.shape(part), strict=True))
            yield f"{name}[{where}]", np.shape(part), np.dtype(part.dtype), part


def write_state(folder: Path, state: Any) -> tuple[str, str]:
    """Write this process's part of a state, one array after the other, and read it back: ``(file's name, SHA-256)``."""
    path = folder / f"state.{jax.process_index()}.safetensors"
    parts = list(_parts(state))
    header, offset = {}, 0
    for name, shape, dtype, _ in parts:
        end = offset + math.prod(shape) * dtype.itemsize
        kind = TYPES.get(dtype.name, f"U{8 * dtype.itemsize}")
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with writing.faults(path), writing.new_file(path) as file:
        for content in (struct.pack("<Q", len(text)), text, *(part for *_, part in parts)):
            if not isinstance(content, bytes):
                content = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
            digest.update(content)
            file.write(content)
    with writing.faults(path):
        if reading.digest(path) != digest.hexdigest():
            raise OSError(0, "what was read back is not what was written")
    return path.name, digest.hexdigest()


def chunks(folder: Path) -> list[int]:
    """The complete checkpoints, oldest first."""
    if not folder.exists():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.is_dir() and re.fullmatch(r"[0-9]{1,9}", p.name))


def manifest(folder: Path) -> dict[str, Any]:
    """What a checkpoint vouches for: ``{"files": {name: [size, SHA-256]}, "records": {...}}``."""
    found = reading.json_file(folder / MANIFEST)
    if not isinstance(found, dict) or not isinstance(found.get("files"), dict):
        raise UserError(f"{folder / MANIFEST}: names no files")
    seals = found.setdefault("records", {})
    if not isinstance(seals, dict) or any(list(map(type, seal)) != [int, str] for seal in seals.values()):
        raise UserError(f"{folder / MANIFEST}: knows no records")
    return found


def damage(folder: Path, most: float = math.inf) -> str | None:
    """What is wrong with the checkpoint in ``folder``; None if its manifest vouches for every file in it.

    A file of more than ``most`` bytes is not read.
    """
    if (folder / "state").is_dir():
        raise UserError(f"{folder}: was written by an older version, with orbax; only that version goes on with it")
    try:
        files = manifest(folder)["files"]
        there = {path.name for path in folder.iterdir()} - {MANIFEST}
        for name in sorted({*files, *there}):
            if name not in files:
                return f"{name} is not in {MANIFEST}"
            if name not in there:  # nor is a path that leads out of the folder
                return f"{name} is missing"
            size, digest = files[name]
            path = folder / name
            if size > most:
                return f"{name} has {size} bytes, more than {most:.0f}"
            if path.is_symlink() or path.stat().st_size != size or reading.digest(path) != digest:
                return f"{name} has changed since it was written"
        if not any(map(STATE.fullmatch, files)):
            return f"{MANIFEST} names no files"
    except (OSError, ValueError, TypeError) as error:
        return f"{MANIFEST} cannot be read ({type(error).__name__})"
    return None


def newest(folder: Path, most: float = math.inf) -> int | None:
    """The newest whole checkpoint, with files of at most ``most`` bytes.

    A damaged one is passed over with a warning, and the one before it is taken.
    """
    for chunk in reversed(chunks(folder)):
        reason = damage(folder / str(chunk), most)
        if reason is None:
            return chunk
        print(
            f"warning: checkpoint {folder / str(chunk)} is damaged ({reason}); trying the one before", file=sys.stderr
        )
    return None


def read(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of a whole checkpoint by their names, those of several processes put together."""
    from safetensors import safe_open

    parts: dict[str, list[tuple[tuple[slice, ...], np.ndarray]]] = {}
    for path in sorted(p for p in folder.iterdir() if STATE.fullmatch(p.name)):
        with safe_open(path, framework="numpy") as file:
            for key in file.keys():  # noqa: SIM118
                name, _, where = key[:-1].rpartition("[")
                spans = [tuple(map(int, span.split(":"))) for span in where.split(",") if span]
                parts.setdefault(name, []).append((tuple(slice(*span) for span in spans), file.get_tensor(key)))
    arrays = {}
    for name, found in parts.items():
        if len(found) == 1:
            arrays[name] = found[0][1]
            continue
        shape = [max(index[axis].stop for index, _ in found) for axis in range(len(found[0][0]))]
        arrays[name] = np.empty(shape, found[0][1].dtype)
        for index, part in found:
            arrays[name][index] = part
    return arrays


def restore(folder: Path, chunk: int, like: Any, runs: int) -> tuple[Any, dict[str, Any] | None]:
    """The checkpoint after ``chunk`` chunks as ``(state, callbacks)``, shaped ``like`` a state.

    Beyond the first ``runs`` of the run axis are copies of them, as many as the devices needed: more or fewer now.
    """
    place = folder / str(chunk)
    try:
        arrays = read(place)
        path = place / CALLBACKS
        callbacks = reading.json_file(path) if path.exists() else None
    except Exception as error:  # of a file that somebody else has made: its digests are right, its content is not
        raise UserError(f"{place}: cannot be read ({type(error).__name__})") from error
    leaves = []
    for name, now in leaves_of(jax.eval_shape(partial(jax.tree.map, _data), like)).items():
        leaf, bits = arrays.pop(name, None), np.dtype(now.dtype)
        if leaf is not None and leaf.dtype != bits and leaf.dtype.kind == "u" and bits.name not in TYPES:
            leaf = leaf.view(bits)
        if leaf is None or leaf.dtype != bits or leaf.shape[1:] != now.shape[1:] or len(leaf) < runs:
            raise UserError(f"{place}: holds another state than this version has ({name}); go on with the one before")
        leaves.append(leaf if len(leaf) == len(now) else leaf[np.arange(len(now)) % runs])
    return jax.tree.map(_key_like, jax.tree.unflatten(jax.tree.structure(like), leaves), like), callbacks
