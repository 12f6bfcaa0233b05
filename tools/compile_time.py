"""How long the default job compiles: from an empty cache and from a full one, as the runner itself reports it.

python tools/compile_time.py                    # four starts each; the machine to itself
python tools/compile_time.py --starts 1 qmix    # another algorithm
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from shoal.config.words import Parser

ROOT = Path(__file__).parent.parent
SIZE = ("total_steps=1e5", "chunks=2")  # how long it trains does not change what is compiled


def compile_seconds(algorithm: str, cache: Path, words: list[str]) -> float:
    """One training in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shoal", algorithm, *SIZE, *words, f"run.dir={folder}/run"]
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        return json.loads((Path(folder) / "run" / "provenance.json").read_text())["session"]["compile_seconds"]


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("algorithm", nargs="?", default="ippo")
    parser.add_argument("words", nargs="*", help="for the training, such as env=mpe/simple_tag")
    parser.add_argument("--starts", type=int, default=4)
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {"cold": [], "cached": []}
    for _ in range(args.starts):
        with tempfile.TemporaryDirectory() as cache:
            for name in seconds:
                seconds[name].append(compile_seconds(args.algorithm, Path(cache), args.words))
    for name, values in seconds.items():
        print(f"{name:6}  {min(values):.1f} to {max(values):.1f} s:  {'  '.join(f'{value:.1f}' for value in values)}")


if __name__ == "__main__":
    main()
