"""Random command lines for the algorithm files and `shoal`: every mistake must be one line that names what is wrong.

    python tools/fuzz_words.py                                        # 10,000 lines, drawn from seed 0
    python tools/fuzz_words.py --cases 100000 --seed 1
    python tools/fuzz_words.py --first 1234 --cases 1 --show          # one of them again
    python tools/fuzz_words.py --record results/fuzz_words.json

A line has names and values of the schema, near misses, unicode, huge and negative numbers, nested brackets and the
grammar of Hydra. It goes through the real command line, in this process, until the training is planned: nothing is
compiled and no folder is made. A fault is an exception, an exit code other than 0, 1 and 2, more than one line, a line
that names no word that was given, or one that takes longer than ``--patience`` seconds; the exit code is 1 then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import jax
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from shoal import __main__ as named
from shoal import cli, envs
from shoal.algorithm import algorithm_in
from shoal.benchmark import command
from shoal.config import compose
from shoal.config.fields import INT32
from shoal.config.named import CONFIG_DIR, algorithms, module_of
from shoal.config.words import Parser, number
from shoal.folder import lock
from shoal.report import render

COMMANDS = named.COMMANDS
OF_COMMANDS = """
    --out --title --animations --run --file --episodes --seed --size --fps run which out jax import folder
    algorithms tasks seeds total_steps dir benchmark plan run.dir by_task hypers.lr envs vmas --from --force
"""
OTHERS = """
    evolve env logger algorithm launcher resume callbacks env.kwargs env.kwargs.num_agents env.kwargs.x a.b
    env.kwargs.continuous evolve.rounds evolve.size evolve.hypers.lr evolve.hypers hydra.mode hydra.run.dir
    hydra.sweep.dir hydra.verbose hydra.job.name hydra hydra.x
"""
FLAGS = "-m --cfg --cfg=job -c --help --info --resolve --config-name --config-dir --versoin -x -"
PLAIN = """
    0 1 -1 2 8 1e30 -1e400 0x1f 1_000 .5 1. -0.0 1e999 nan inf -inf 2147483648 4294967296 ??? null true auto all none
    abc = a=b , ,, 1,2 0.1,0.2 ~ !!python @x ' '' \\ $ %(a)s
    [] [1,2 [a] [[[1]]] [1,2] [0.1,1] {} {a:1} {a:{b:${c}}} {min:1,max:2} {min:a,max:2} {min:0.1,max:1e400}
    ${seed} ${oc.env:HOME} ${nope:1} ${ ${total_steps} choice(1,2) range(1,5) range(a,b) range(1) glob(*) int(3)
    float(1) bool(3) str([1]) interval(0,1) sort(1,2) shuffle(1,2) tag(a,1) extend_list(1) choice()
    pbt tournament mf_pbt halving mpe/simple mpe/Simple smax/3m vmas/balance matrix/climbing pettingzoo/x pettingzoo/os
    nope/x adam gru mlp ippo vdn wandb_offline /dev/null . quick
"""
LETTERS = ("", " ", "a b", "{a: 1}", "é鱼", "\u2028", "\x00", "\n", "1\n2", '"x', "9" * 400, "x" * 3000)
VALUES = (*PLAIN.split(), *LETTERS)
FILES = tuple(sorted(set(algorithms().values())))


class Planned(BaseException):
    """The line is right: the training would begin here."""


@dataclasses.dataclass
class Found:
    """What a number of lines came to."""

    cases: int = 0
    planned: int = 0
    refused: int = 0
    printed: int = 0  # help, or a configuration
    longest: float = 0.0  # seconds of one line
    of: Counter = dataclasses.field(default_factory=Counter)  # files and commands
    faults: list[str] = dataclasses.field(default_factory=list)


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every setting of a configuration, those that have settings too, with its value as a word has it."""
    for name, inner in tree.items():
        text = "null" if inner is None else str(inner).replace(" ", "").replace("'", "")
        yield prefix + name, text.lower() if isinstance(inner, bool) else text
        if isinstance(inner, dict):
            yield from leaves(inner, f"{prefix}{name}.")


@cache
def schema(file: str) -> dict[str, str]:
    """The settings of an algorithm file with their defaults, as words."""
    module = module_of(file)
    name = Path(file).name
    compose.register(module.Config, module.Hypers, name=name)
    return dict(leaves(OmegaConf.to_container(compose.compose(name, [], CONFIG_DIR))))


def nested(rng: random.Random, depth: int) -> str:
    """Brackets in brackets, now and then not closed."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(("1", "a", "-1e9", "é", "", "${seed}", "null"))
    inner = ",".join(nested(rng, depth - 1) for _ in range(rng.randrange(4)))
    left, right = rng.choice(("[]", "[]", "{}", "()"))
    inner = f"a:{inner}" if left == "{" and inner else inner
    return left + inner + ("" if rng.random() < 0.05 else right)


def letters(rng: random.Random) -> str:
    """Unicode of all planes, without the halves of surrogate pairs, which no terminal can type."""
    codes = (rng.choice((rng.randrange(128), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000))) for _ in range(8))
    return "".join(map(chr, codes))


def misspelt(word: str, rng: random.Random) -> str:
    """One letter other, more, less, or of another case."""
    at = rng.randrange(len(word) + 1)
    new = rng.choice((word[at : at + 1].swapcase(), "", rng.choice("xe.@/:_- é0") + word[at : at + 1], "x"))
    return word[:at] + new + word[at + 1 :]


def any_number(rng: random.Random) -> str:
    """Of any size, with a sign."""
    if rng.random() < 0.5:
        return repr(rng.uniform(-1, 1) * 10.0 ** rng.randrange(-320, 308))
    return rng.choice(("", "-")) + str(rng.randrange(10 ** rng.choice((1, 3, 9, 12, 40, 400))))


def value(default: str, rng: random.Random) -> str:
    """A value for a setting that has this default."""
    kinds: tuple[Callable[[], str], ...] = (
        lambda: default,
        lambda: misspelt(default, rng),
        lambda: rng.choice(VALUES),
        lambda: rng.choice(VALUES),
        lambda: nested(rng, rng.choice((1, 2, 4, 8))),
        lambda: rng.choice(("[", "{", "(", "[{", "\\", "'")) * rng.choice((3, 30, 200)),
        lambda: letters(rng),
        lambda: any_number(rng),
        lambda: any_number(rng),
        lambda: f"[{any_number(rng)},{any_number(rng)}]",
        lambda: f"{{min:{any_number(rng)},max:{any_number(rng)}{rng.choice((',log:true', ''))}}}",
        lambda: ",".join(value(default, rng) for _ in range(2)),
    )
    return rng.choice(kinds)()


def word(file: str, rng: random.Random) -> str:
    """One word of the command line of an algorithm file."""
    known = schema(file)
    if rng.random() < 0.03:
        return rng.choice(FLAGS.split())
    key = rng.choice((*known, *OTHERS.split())) if rng.random() < 0.8 else rng.choice(OTHERS.split())
    text = value(rng.choice(envs.list()) if key == "env" else known.get(key, "1"), rng)
    if rng.random() < 0.1:
        key = misspelt(key, rng)
    prefix = rng.choice((*[""] * 14, "+", "++", "~", "-", "--"))
    return prefix + key if rng.random() < 0.03 else f"{prefix}{key}={text}"


def command_word(rng: random.Random) -> str:
    """One word of a command that does not train: its options, near misses, paths."""
    name = rng.choice(OF_COMMANDS.split())
    name = misspelt(name, rng) if rng.random() < 0.3 else name
    return rng.choice((f"{name}={value('1', rng)}", name, value("nowhere", rng), "nowhere"))


def line(rng: random.Random) -> list[str]:
    """The name of a command or an algorithm file, and its words."""
    if rng.random() < 0.1:
        return [rng.choice(tuple(COMMANDS)), *(command_word(rng) for _ in range(rng.randrange(1, 4)))]
    file = rng.choice(FILES)
    words = [word(file, rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    name = file
    if rng.random() < 0.1:
        algorithm = rng.choice([name for name, other in algorithms().items() if other == file])
        name = misspelt(algorithm, rng) if rng.random() < 0.2 else algorithm
    if {"-m", "--multirun"} & set(words):  # a launcher's processes would train
        words = [each for each in words if "launcher" not in each]
    return [name, *words]


def planned(*_: Any, **__: Any) -> None:
    raise Planned


def call(name: str, words: list[str]) -> int | None:
    """The command line as a function, up to where a training or a report would begin; the exit code."""
    if name not in FILES:
        return named.run([name, *words])
    module = module_of(name)
    sys.argv = [f"{Path(name).name}.py", *words]
    cli.main(algorithm_in(module))
    return 0


@contextlib.contextmanager
def as_it_was() -> Iterator[None]:
    """Put back what Hydra changes in a process."""
    argv, environment, root = sys.argv, dict(os.environ), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
        GlobalHydra.instance().clear()
        logging.disable(logging.NOTSET)
        root.handlers[:], root.level = handlers, level


def answer(name: str, words: list[str]) -> tuple[int | None, str]:
    """The exit code, None for a planned training, and what stands on standard error."""
    err = io.StringIO()
    ends = ((lock, "held"), (jax.distributed, "initialize"), (command, "plan_cell"), (render, "play"))
    with contextlib.ExitStack() as stack:
        for context in (as_it_was(), contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO())):
            stack.enter_context(context)
        for holder, function in ends:
            stack.enter_context(mock.patch.object(holder, function, planned))
        try:
            code = call(name, words)
        except Planned:
            code = None
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return code, err.getvalue()


def mistaken(code: int | None, err: str, name: str, words: list[str]) -> str:
    """What is wrong with an answer; empty if nothing."""
    lines = err.splitlines()
    words = words if name in FILES else [name, *words]
    if code not in (None, 0, 1, 2):
        return f"exit code {code}: {err}"
    if name == "report" and lines and all(lines):  # a line for each thing that cannot be read
        lines = lines[-1:]
    if code in (None, 0):
        return "" if all(text.startswith("warning: ") for text in lines) else f"exit code {code} and said: {err}"
    if len(lines) != 1 or not lines[0].startswith("error: "):
        return f"not one line: {err}"
    keys = {each.lstrip("+~-").partition("=")[0] for each in words}
    keys |= {"--config-name"} if {"--config-dir", "-cd"} & keys else set()  # the recipe is looked for there
    names = {*words, *keys, *(key.rpartition(".")[0] for key in keys), *(each.partition("=")[2] for each in words)}
    shown = {repr(part)[1:-1] for part in names} | names
    if not any(part.strip() and part[:40] in lines[0] for part in shown) and all(words):
        return f"names no word: {err}"
    return ""


def run(cases: int, seed: int, patience: float, first: int = 0, show: bool = False) -> Found:
    """Draw lines and judge what is answered."""
    found, before = Found(), Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            for case in range(first, first + cases):
                name, *words = line(random.Random(f"{seed} {case}"))
                found.cases += 1
                found.of[name if name in (*COMMANDS, *FILES) else "shoal"] += 1
                begin = time.perf_counter()
                try:
                    code, err = answer(name, words)
                    wrong = mistaken(code, err, name, words)
                except BaseException as error:  # whatever it is, it is what is looked for
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    code, err, wrong = 3, "", traceback.format_exc()
                took = time.perf_counter() - begin
                found.planned += code is None
                found.refused += code in (1, 2)
                found.printed += code == 0
                found.longest = max(found.longest, took)
                wrong = wrong or (f"took {took:.0f} s" if took > patience else "")
                if wrong:
                    found.faults.append(f"case {case}: {[name, *words]!r:.1000}: {wrong}")
                    print(found.faults[-1], file=sys.stderr, flush=True)
                if show:
                    print(case, [name, *words], code, err, sep="\n")
        finally:
            os.chdir(before)
    return found


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--cases", type=number(int, 1, 10**7), default=10_000)
    parser.add_argument("--seed", type=number(int, 0, INT32), default=0)
    parser.add_argument("--first", type=number(int, 0, 10**7), default=0, help="the number of the first case")
    parser.add_argument("--patience", type=number(float, 0.1, 3600), default=10.0, help="seconds that one may take")
    parser.add_argument("--show", action="store_true", help="print every line and its answer")
    parser.add_argument("--record", type=Path, help="a JSON file for what was found")
    options = parser.parse_args()
    found = run(options.cases, options.seed, options.patience, options.first, options.show)
    facts = dataclasses.asdict(found) | {"seed": options.seed, "faults": len(found.faults)}
    facts |= {"of": dict(sorted(found.of.items())), "longest": round(found.longest, 2)}
    if options.record:
        options.record.write_text(json.dumps(facts, indent=2) + "\n")
    print(", ".join(f"{name} {value}" for name, value in facts.items() if name != "of"))
    sys.exit(1 if found.faults else 0)


if __name__ == "__main__":
    main()
