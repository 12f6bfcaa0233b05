"""Names that a command line may have.

shoal list algorithms
shoal list envs             # all environments; of one family: shoal list envs vmas
shoal list commands         # complete -W "$(shoal list commands)" shoal lets bash complete them
"""

from __future__ import annotations

from shoal.config.files import after_imports
from shoal.config.named import algorithms
from shoal.config.words import fail, nearest
from shoal.errors import UserError

KINDS = ("algorithms", "envs", "commands")


def main(words: list[str]) -> int:
    """``shoal list <kind>``: a name per line."""
    if {"-h", "--help"} & {*words}:
        print((__doc__ or "").strip())
        return 0
    try:
        print("\n".join(names(after_imports(words))))
    except UserError as error:
        fail(error)
    return 0


def names(words: list[str]) -> list[str]:
    """The names of a kind; of environments only one family's if it is given."""
    kind, *rest = words or [""]
    if kind not in KINDS:
        raise UserError(f"list {kind}: {nearest(kind, KINDS)}must be one of {', '.join(KINDS)}")
    if len(rest) > (kind == "envs"):
        raise UserError(f"list {' '.join(words)}: {rest[-1]} is one word too many")
    if kind == "algorithms":
        return list(algorithms())
    if kind == "commands":
        from shoal.__main__ import COMMANDS

        return [*COMMANDS, *algorithms()]
    from shoal import envs

    known = envs.list()
    families = sorted({name.partition("/")[0] for name in known})
    for family in rest:
        if family not in families:
            raise UserError(f"{family}: no such family; {nearest(family, families)}there are {', '.join(families)}")
    return envs.list(*rest)
