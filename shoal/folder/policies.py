"""Trained policies as safetensors: numbers and names, nothing that could run.

``policies.safetensors`` holds the best and the last policy of every run, stacked on the run axis: ``best/...`` and
``last/...`` are ``[R, ...]``, and its metadata a checksum of each run's. The folder's ``config.yaml`` says what they
belong to.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.errors import UserError
from shoal.folder import reading, writing

FILE = "policies.safetensors"
WHICH = ("best", "last")


def flatten(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """A tree as ``{"prefix/a/b": array}``."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {prefix + "".join(f"/{_name(k)}" for k in path): np.ascontiguousarray(leaf) for path, leaf in leaves}


def _name(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))


def save(folder: Path, best: Any, last: Any) -> None:
    """Write the policies of all runs, ``[R, ...]``."""
    from safetensors.numpy import save as to_bytes

    arrays = {which: flatten(tree, which) for which, tree in zip(WHICH, (best, last), strict=True)}
    sums = {which: [_checksum(one) for one in _each_run(stacked)] for which, stacked in arrays.items()}
    writing.write(folder / FILE, to_bytes(arrays["best"] | arrays["last"], {"sha256": json.dumps(sums)}))


def _each_run(stacked: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    runs = min(map(len, stacked.values()), default=0)
    return [{name: array[run] for name, array in stacked.items()} for run in range(runs)]


def _checksum(arrays: Mapping[str, np.ndarray]) -> str:
    """Of one run's arrays, their names, shapes and types."""
    made = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        made.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()


def load(folder: Path, like: Any, run: int, which: str = "best") -> Any:
    """The ``best`` or ``last`` policy of one run, shaped ``like`` the algorithm's; only that run is read."""
    from safetensors import safe_open

    path = folder / FILE
    expected = dict(zip(flatten(like, which), jax.tree.leaves(like), strict=True))
    with reading.opened(path, 2**63):  # it is a regular file
        pass
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
            sums = json.loads(metadata["sha256"])[which] if metadata is not None else None
            arrays = {}
            for name, leaf in expected.items():
                part = file.get_slice(name)
                if part.get_shape()[1:] != list(leaf.shape):
                    raise UserError(f"{path}: {name} has shape {part.get_shape()[1:]}, not {list(leaf.shape)}")
                arrays[name] = np.asarray(part[run])
        whole = sums is None or sums[run] == _checksum(arrays)
    except UserError:
        raise
    except Exception as error:  # safetensors and its header, of which any byte may have changed
        line = (str(error).splitlines() or [""])[0]
        raise UserError(f"{path}: cannot be read ({type(error).__name__}: {line})") from error
    if not whole:
        raise UserError(f"{path}: the {which} policy of run {run} has changed since it was written (checksum)")
    if sums is None:
        _tell_of_no_checksum(path)
    for name, leaf in expected.items():
        if arrays[name].dtype != leaf.dtype:
            raise UserError(f"{path}: {name} is {arrays[name].dtype}, not {leaf.dtype}")
    # Not numpy's: JAX refuses those as constants of a program that maps over agents.
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(array) for array in arrays.values()])


@functools.cache
def _tell_of_no_checksum(path: Path) -> None:
    """Once for each file."""
    print(f"warning: {path}: has no checksum, as files of earlier versions", file=sys.stderr)


def is_finite(policy: Any) -> bool:
    """Whether no number of a policy is NaN or infinite: a run that diverged may leave such a one."""
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(policy))
