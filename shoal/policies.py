"""Trained policies as safetensors: numbers and names, nothing that could run.

``policies.safetensors`` holds the best and the last policy of every run, stacked on the run axis: ``best/...`` and
``last/...`` are ``[R, ...]``. The folder's ``config.yaml`` says what they belong to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.base import UserError
from shoal import writing

FILE = "policies.safetensors"


def flatten(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """A tree as ``{"prefix/a/b": array}``."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {prefix + "".join(f"/{_name(k)}" for k in path): np.ascontiguousarray(leaf) for path, leaf in leaves}


def _name(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))


def save(folder: Path, best: Any, last: Any) -> None:
    """Write the policies of all runs, ``[R, ...]``."""
    from safetensors.numpy import save as to_bytes

    writing.write(folder / FILE, to_bytes(flatten(best, "best") | flatten(last, "last")))


def load(folder: Path, like: Any, run: int, which: str = "best") -> Any:
    """The ``best`` or ``last`` policy of one run, shaped ``like`` the algorithm's; only that run is read."""
    from safetensors import SafetensorError, safe_open

    path = folder / FILE
    try:
        with safe_open(path, framework="numpy") as file:
            names = flatten(like, which)
            arrays = [file.get_slice(name)[run] for name in names]
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from error
    # Not numpy's: JAX refuses those as constants of a program that maps over agents.
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(array) for array in arrays])
