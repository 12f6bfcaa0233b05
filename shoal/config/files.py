"""A user's own Python files, imported by their path."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from shoal.config.words import in_quotes
from shoal.errors import UserError

IMPORT = ("import", "imports")  # the word, and what a configuration calls it: `import` is no name in Python


def import_named(word: str | Path, where: str = "") -> ModuleType:
    """The module that a user names: ``path/to/file.py``, or ``package.module``."""
    if str(word).endswith(".py") or not all(part.isidentifier() for part in str(word).split(".")):
        return import_file(word, where)
    try:
        return importlib.import_module(str(word))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{word}.".startswith(f"{error.name}."):
            raise
        raise UserError(f"{where}{word}: no module {error.name}") from error


def imported(words: Sequence[str]) -> list[str]:
    """Import the modules that ``import=`` names: what they register is then known.

    The words of a command line come back with ``imports=[...]``, absolute paths, in the place of these.
    """
    names, others = [], []
    for word in words:
        name, equals, value = word.lstrip("+").partition("=")
        if name in IMPORT and equals:
            names += _listed(value)
        else:
            others.append(word)
    for name in names:
        import_named(name, "import=")
    if len(others) == len(words):
        return others
    paths = [str(Path(name).absolute()) if name.endswith(".py") else name for name in names]
    return [*others, f"imports=[{','.join(map(in_quotes, paths))}]"]


def after_imports(words: Sequence[str]) -> list[str]:
    """:func:`imported`, and the words without those."""
    return [word for word in imported(words) if not word.startswith("imports=")]


def _listed(value: str) -> list[str]:
    """``[a,b]`` as ``["a", "b"]``; other text as one name."""
    inside = value[1:-1] if value.startswith("[") and value.endswith("]") else None
    names = [value] if inside is None else inside.split(",")
    return [name for name in (name.strip(" '\"") for name in names) if name]


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
        raise UserError(f"{where}{given}: no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
