"""Named algorithms: ``python -m shoal vdn env=mpe/simple_spread seeds=4``; without a name, a list of them.

A name is a small YAML over an algorithm file, ``config/algorithm/<name>.yaml``; all else is that file's command line.
"""

from __future__ import annotations

if __name__ == "__main__":
    import shoal.early  # noqa: F401  Ctrl-C from the first moment

import importlib
import sys
from pathlib import Path

from shoal.cli import main
from shoal.config.compose import algorithms
from shoal.config.words import fail, nearest
from shoal.errors import UserError


def run(arguments: list[str]) -> None:
    """Train the algorithm that the first argument names."""
    known = algorithms()
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, known))
        print("usage: python -m shoal <algorithm> [name=value ...]\n")
        print("\n".join(f"  {name:{width}}  baselines/{file}.py" for name, file in known.items()))
        return
    name, *words = arguments
    if name not in known:
        fail(UserError(f"{name}: no such algorithm; {nearest(name, known)}there are {', '.join(known)}"))
    module = importlib.import_module(f"shoal.baselines.{known[name].replace('/', '.')}")
    sys.argv = [str(module.__file__), f"algorithm={name}", *words]
    main(module.make, module.Config, module.Hypers, recipe=Path(known[name]).name)


if __name__ == "__main__":
    run(sys.argv[1:])
