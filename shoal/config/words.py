"""Words of command lines: unknown ones are refused by name, and paths are quoted so that a hint can be pasted."""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from shoal.errors import UserError

DIGITS = re.compile(r"\d{300}")  # more than a float holds
LONGEST = 4000  # letters of an answer: a word may be as long as the system allows


def nearest(name: str, known: Iterable[str], n: int = 1) -> str:
    """``did you mean x? ``, or nothing where no known word is near."""
    close = difflib.get_close_matches(name, list(known), n=n)
    return f"did you mean {', '.join(close)}? " if close else ""


def unknown(word: str, known: Sequence[str]) -> UserError:
    """The answer to a word, ``name`` or ``name=value``, that is none of the known names."""
    name = word.partition("=")[0]
    return UserError(f"{word}: no such word; {nearest(name, known)}these are {', '.join(known)}")


def fail(error: Exception | str) -> NoReturn:
    """Tell the user in one line, whatever letters a word has, and end: 2 for a mistake, 1 for a fault."""
    said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in said)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    print(f"error: {text}", file=sys.stderr)
    sys.exit(getattr(error, "code", 1 if isinstance(error, OSError) else 2))


def readable(words: Iterable[str]) -> None:
    """Refuse bytes that are no text in this locale: they could not be written to a file or a terminal."""
    for word in words:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            shown = word.encode("utf-8", "backslashreplace").decode()
            raise UserError(
                f"{shown}: is no text in this locale ({sys.getfilesystemencoding()}); PYTHONUTF8=1 may help"
            )


def as_text(word: str) -> str:
    """``name=value`` such that Hydra reads the value letter by letter: in quotes, where its grammar needs them.

    An interpolation, ``${...}``, stays one, and what is in quotes already stays as it is.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    name, _, text = word.partition("=")
    try:
        override = OverridesParser.create().parse_overrides([word])[0]
        if not override.is_sweep_override() and isinstance(override.value(), str | None):
            return word
    except HydraException:
        pass
    return f"{name}={in_quotes(text)}"


def in_quotes(text: str) -> str:
    """Text as Hydra's grammar reads it letter by letter."""
    return "'" + re.sub(r"(\\+)(?='|$)", r"\1\1", text).replace("'", "\\'") + "'"  # `\` counts only before a quote


def one_line(error: Exception, words: list[str] | None = None) -> str:
    """Hydra's and OmegaConf's messages as ``field=value: what is wrong``."""
    cause: BaseException = error
    key = getattr(cause, "full_key", None) or ""
    while cause.__cause__ is not None:
        cause = cause.__cause__
        key = getattr(cause, "full_key", None) or key
    said = [w.split("=", 1)[1] for w in words or [] if w.lstrip("+").startswith(f"{key}=")]
    value = said[-1] if said else None  # of a name that is given twice the last counts
    text = (str(cause).splitlines() or [type(cause).__name__])[0]
    if isinstance(cause, OverflowError):  # which tells nothing of the setting
        long = [word for word in words or [] if DIGITS.search(word)]
        return f"{long[0] if long else key}: is too large a number"
    if "is not a ListConfig" in text:
        text = "must be a list, [a,b]"
    kinds = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
    for kind, allowed in kinds.items():
        if f"converted to {kind}" in text or (kind == "Boolean" and "valid bool" in text):
            text = f"must be {allowed}"
    if key and value is not None:
        return f"{key}={value}: {text}"
    return f"{key}: {text}" if key else text


def pasted(name: str, folder: Path | str) -> str:
    """``name=folder`` to be pasted into a shell, whatever letters the folder has."""
    text = str(folder)
    if set(text) & set("'\"\\$") or text != text.strip() or text in ("", "null"):
        text = in_quotes(re.sub(r"(\\*)\$\{", r"\1\1\\${", text))  # no interpolation
    return shlex.quote(f"{name}={text}")


def some_of(known: Iterable[str]) -> Callable[[str], str]:
    """The ``type`` of an option that takes known names, comma-separated."""
    names = list(known)

    def checked(text: str) -> str:
        for name in text.split(","):
            if name not in names:
                raise argparse.ArgumentTypeError(
                    f"{name}: no such name; {nearest(name, names)}one of {', '.join(names)}"
                )
        return text

    return checked


def number(kind: type[int] | type[float], low: float, high: float) -> Callable[[str], float]:
    """The ``type`` of an option that takes a number between ``low`` and ``high``."""

    def checked(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text}: must be {what} in [{low:g}, {high:g}]")
        return value

    return checked


class Parser(argparse.ArgumentParser):
    """The words of a command: a mistake is one line, which names the word and the nearest known one."""

    def __init__(self, description: str | None = None, prog: str | None = None):
        super().__init__(prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:  # type: ignore[override]
        args = list(sys.argv[1:] if args is None else args)
        flags = sorted(self._option_string_actions)
        try:
            readable(args)
            for word in args[: args.index("--")] if "--" in args else args:
                name = word.partition("=")[0]
                flag = f"--{name}"
                if word.startswith("--") and not any(known.startswith(name) for known in flags):
                    raise unknown(word, flags)
                if flag in flags and "=" in word and not os.path.exists(word):
                    raise UserError(f"{word}: no such word; did you mean {flag}={word.partition('=')[2]}?")
            options, rest = self.parse_known_args(args)
            if rest:
                raise unknown(rest[0], flags)
        except UserError as error:
            self.error(str(error))
        return options

    def error(self, message: str) -> NoReturn:
        fail(message)
