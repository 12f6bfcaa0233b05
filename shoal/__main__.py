"""The command ``shoal``, which ``python -m shoal`` is as well.

    shoal ippo env=mpe/simple_tag seeds=2     # train a named algorithm; all words of its file's command line
    shoal list envs vmas                      # names of environments, of one family or of all
    shoal list algorithms
    shoal new my_idea --from ippo             # an algorithm file and its recipe, copied here to be edited
    shoal report runs/mine                    # a page, pictures and merged evaluations
    shoal export runs/mine                    # a policy that plays with numpy alone
    shoal render runs/mine                    # the best policy as a moving picture
    shoal benchmark benchmark=quick           # algorithms times tasks

``shoal <command> --help`` says more. An algorithm is a small YAML over an algorithm file, ``algorithm/<name>.yaml``
among the recipes. Only what a command needs is imported, so that this text comes at once.
"""

from __future__ import annotations

import importlib
import sys

from shoal.config.named import algorithms, module_of
from shoal.config.words import fail, nearest
from shoal.errors import Fault, UserError
from shoal.streams import guarded

COMMANDS = {  # each a module with a `main(words)`
    "list": "shoal.listing",
    "new": "shoal.new",
    "report": "shoal.report.command",
    "export": "shoal.export.command",
    "render": "shoal.report.render",
    "benchmark": "shoal.benchmark.command",
}


def usage() -> str:
    """What ``shoal --help`` prints: the commands, and the algorithms with their files."""
    known = algorithms()
    width = max(map(len, known))
    files = "\n".join(f"  {name:{width}}  baselines/{file}.py" for name, file in known.items())
    return f"{__doc__.strip()}\n\nAlgorithms:\n{files}"


def run(words: list[str]) -> int:
    """Do what a command line says; the exit code."""
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, *rest = words
    known = algorithms()
    if name in COMMANDS:
        if name == "benchmark":
            from shoal.cli import cores_as_devices

            cores_as_devices()
        return importlib.import_module(COMMANDS[name]).main(rest)
    if name not in known:
        hint = nearest(name, [*COMMANDS, *known])
        fail(UserError(f"{name}: no such command; {hint}there are {', '.join(COMMANDS)} and {', '.join(known)}"))
    from shoal.algorithm import algorithm_in
    from shoal.cli import main as train

    module = module_of(known[name])
    sys.argv = [str(module.__file__), f"algorithm={name}", *rest]
    train(algorithm_in(module))
    return 0


def main(*words: str) -> None:
    """The command line of this process, after ``words``."""
    import shoal.early  # noqa: F401  Ctrl-C from the first moment

    try:
        with guarded():
            code = run([*words, *sys.argv[1:]])
    except Fault as error:
        fail(error)
    sys.exit(code)


if __name__ == "__main__":
    main()
