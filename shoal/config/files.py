"""A user's own Python files, imported by their path."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType


def import_named(word: str | Path, where: str = "") -> ModuleType:
    """The module that a user names: ``path/to/file.py``, or ``package.module``."""
    if str(word).endswith(".py") or not all(part.isidentifier() for part in str(word).split(".")):
        return import_file(word, where)
    try:
        return importlib.import_module(str(word))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{word}.".startswith(f"{error.name}."):
            raise
        from shoal.errors import UserError

        raise UserError(f"{where}{word}: no module {error.name}") from error


def import_file(path: str | Path, where: str = "") -> ModuleType:
    """The module that a file makes, once: what it registers can be registered once.

    ``where`` says who has named it, should it not be there.
    """
    given, path = path, Path(path).absolute()
    for module in list(sys.modules.values()):  # shoal/baselines is a link
        if os.path.realpath(getattr(module, "__file__", None) or "") == os.path.realpath(path):
            return module
    name = str(path) if path.stem in sys.modules else path.stem  # a file may be called as some package is
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        from shoal.errors import UserError

        raise UserError(f"{where}{given}: no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
