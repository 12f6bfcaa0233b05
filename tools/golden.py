"""Golden trainings: does a change of the code's structure leave every bit as it was?

    python tools/golden.py record <folder>               # before the change
    python tools/golden.py check <folder>                # after it: a line for every difference, exit code 1
    python tools/golden.py check <folder> --only qmix    # the trainings whose name holds this word

Each training is a process started from the command line, so that modules, classes and fields may be renamed. Tables
are compared column by column and arrays by their bytes, without their names. Golden folders belong to one machine and
are not committed.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
ON_POLICY = ["total_steps=384", "algo.num_envs=4", "algo.rollout_length=32"]  # three updates
OFF_POLICY = ["total_steps=1200", "algo.num_envs=4", "algo.learning_starts=200"]
FEW = ["seeds=2", "chunks=2", "evaluation.episodes=3"]
FILES = {
    "ippo/ippo_ff_mpe": (ON_POLICY, ["mpe/simple_spread", "vmas/navigation"]),
    "ippo/ippo_rnn_smax": (ON_POLICY, ["smax/3m", "mpe/simple_reference"]),
    "mappo/mappo_ff_vmas": (ON_POLICY, ["vmas/balance", "mpe/simple_tag"]),
    "mappo/mappo_rnn_smax": (ON_POLICY, ["smax/3m", "vmas/navigation"]),
    "qmix/pqn_rnn_smax": (ON_POLICY, ["smax/3m", "mpe/simple_spread"]),
    "qmix/qmix_rnn_mpe": (OFF_POLICY, ["mpe/simple_spread", "smax/3m"]),
    "maddpg/maddpg_ff_mpe": (OFF_POLICY, ["mpe/simple_spread", "vmas/navigation"]),
    "masac/masac_ff_vmas": (OFF_POLICY, ["vmas/balance", "mpe/simple_spread"]),
}
IPPO = ["baselines/ippo/ippo_ff_mpe.py", *ON_POLICY, *FEW]
# Commands of each training, one after the other in one folder, which stands for {}.
TRAININGS: dict[str, list[list[str]]] = {
    f"{file.split('/')[1]}.{env.replace('/', '.')}": [
        [f"baselines/{file}.py", f"env={env}", *sizes, *FEW, "run.dir={}"]
    ]
    for file, (sizes, tasks) in FILES.items()
    for env in tasks
} | {
    "readme": [["baselines/ippo/ippo_ff_mpe.py", "run.dir={}"]],
    "mad4pg": [["-m", "shoal", "mad4pg", *OFF_POLICY, *FEW, "run.dir={}"]],
    "sweep": [[*IPPO, "sweep.lr=[1e-4,1e-3]", "run.dir={}"]],
    "learners": [[*IPPO, "learners=2", "run.dir={}"]],
    "evolution": [[*IPPO, "evolve=pbt", "population=4", "evolve.rounds=3", "run.dir={}"]],
    "resume": [[*IPPO, "run.dir={}"], [*IPPO[:1], "resume={}", "total_steps=768"]],
    "export": [[*IPPO, "run.dir={}"], ["scripts/export.py", "{}", "run=best"]],
}
LINE = re.compile(rb"[\w./-]*golden_[\w./-]*")  # the temporary folder, which some files name


def train(name: str, folder: Path) -> None:
    for words in TRAININGS[name]:
        command = [sys.executable, *(word.format(folder) for word in words)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: {' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def arrays(path: Path) -> Counter[str]:
    """The arrays of a safetensors file, each as type, shape and a hash of its bytes."""
    from safetensors.numpy import load_file

    return Counter(
        f"{array.dtype}{list(array.shape)} {hashlib.sha256(array.tobytes()).hexdigest()[:12]}"
        for array in load_file(path).values()
    )


def columns(path: Path) -> dict[str, list[str]]:
    rows = list(csv.DictReader(path.open()))
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else {})}


def differences(old: Path, new: Path) -> list[str]:
    """What two files do not have in common."""
    if not old.exists() or not new.exists():
        return [f"{'there' if new.exists() else 'missing'} now"]
    if old.suffix == ".safetensors":
        before, after = arrays(old), arrays(new)
        return [f"gone: {x}" for x in before - after] + [f"new: {x}" for x in after - before]
    if old.suffix == ".csv":
        one, two = columns(old), columns(new)
        return [
            f"column {name}: {'other values' if name in one and name in two else 'gone' if name in one else 'new'}"
            for name in one | two
            if one.get(name) != two.get(name)
        ]
    same = LINE.sub(b"", old.read_bytes()) == LINE.sub(b"", new.read_bytes())
    return [] if same else ["other text"]


def compare(old: Path, new: Path) -> list[str]:
    """The differences of two trainings in what is computed: records, policies, the newest checkpoint, exports."""
    patterns = ("metrics.csv", "lineage.csv", "evaluations.jsonl", "**/*.safetensors", "**/*.npz")
    names = sorted({path.relative_to(top) for top in (old, new) for p in patterns for path in top.glob(p)})
    return [f"{name}: {line}" for name in names for line in differences(old / name, new / name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("record", "check"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="trainings whose name holds this word")
    words = parser.parse_args()
    names = [name for name in TRAININGS if words.only in name]
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(words.folder / "cache"))
    wrong = 0
    for name in names:
        golden = words.folder / name
        with tempfile.TemporaryDirectory(prefix="golden_") as place:
            train(name, Path(place) / "run")
            if words.do == "record":
                shutil.rmtree(golden, ignore_errors=True)
                shutil.copytree(Path(place) / "run", golden)
                print(f"{name}: recorded", flush=True)
                continue
            found = compare(golden, Path(place) / "run")
            wrong += bool(found)
            print("\n".join(f"{name}: {line}" for line in found or ["equal"]), flush=True)
    if wrong:
        sys.exit(f"{wrong} of {len(names)} trainings differ")


if __name__ == "__main__":
    main()
