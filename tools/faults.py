"""What many devices, several processes and kills do to a training: nothing. Each promise tried, and recorded.

    python tools/faults.py                # all; results/faults.json
    python tools/faults.py --only kill    # one of them; trials that were recorded before count

Every trial is the command line in processes of its own. A training on one device, never stopped, says what is right.
"""

from __future__ import annotations

import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shoal.config.words import Parser

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "baselines" / "ippo" / "ippo_ff_mpe.py"
RECORD = ROOT / "results" / "faults.json"
FLAG = "--xla_force_host_platform_device_count"
GO_ON = 75  # the exit code of a training that a signal has stopped
PATIENCE = 900  # seconds that a training may take
SMALL = [
    "env=matrix/climbing",
    "total_steps=2048",
    "chunks=16",
    "algo.num_envs=8",
    "algo.rollout_length=8",
    "algo.actor.widths=[16]",
    "algo.critic.widths=[16]",
    "evaluation.episodes=2",
    "hypers.lr_end=1.0",  # nothing that depends on the length: a training can be cut in two
    "hypers.ent_coef_end=1.0",
]
KILLED = [*SMALL, "total_steps=5120", "chunks=40", "seeds=4"]


def begin(*words: str, devices: int = 1) -> subprocess.Popen:
    """A training in a process with so many CPU devices."""
    environment = os.environ | {"XLA_FLAGS": f"{FLAG}={devices}", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen, *codes: int) -> str:
    """What it said, after it has ended with one of the ``codes``; any, if there are none."""
    _, said = process.communicate(timeout=PATIENCE)
    if codes and process.returncode not in codes:
        raise SystemExit(f"{' '.join(map(str, process.args))} ended with {process.returncode}:\n{said}")  # type: ignore
    return said


def pair(folder: Path, *words: str, timeout: int = 300) -> list[subprocess.Popen]:
    """Two processes of one training, that meet on a free port; ``timeout`` is when a silent one is missed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    where = [f"distributed.coordinator=localhost:{port}", "distributed.processes=2", f"distributed.timeout={timeout}"]
    words = (*words, *where, f"run.dir={folder}", "resume=auto")
    return [begin(*words, f"distributed.process={process}") for process in range(2)]


def table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "metrics.csv").sort_values(["run", "env_steps"])


def compare(one: Path, other: Path) -> dict[str, Any]:
    """How far two trainings are apart: whether their records are the same bytes, and the largest difference."""
    first, second = table(one), table(other)
    if list(first) != list(second) or len(first) != len(second):
        raise SystemExit(f"{one} and {other} have other rows")
    names = ("metrics.csv", "evaluations.json")
    same = all((one / name).read_bytes() == (other / name).read_bytes() for name in names)
    apart = np.nanmax(np.abs(first.to_numpy(float) - second.to_numpy(float)))
    return {"rows": len(first), "same_bytes": same, "largest_difference": float(apart)}


def chunk_of(folder: Path) -> int:
    """The newest checkpoint."""
    names = [path.name for path in (folder / "checkpoints" / "batch_0").glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def eight(place: Path, times: int, trials: list[Any]) -> Iterator[dict[str, Any]]:
    """64 runs on eight devices and on one."""
    for devices in (1, 8):
        end(begin(*SMALL, "seeds=64", f"run.dir={place / str(devices)}", devices=devices), 0)
    yield compare(place / "1", place / "8")


def processes(place: Path, times: int, trials: list[Any]) -> Iterator[dict[str, Any]]:
    """64 runs by two processes and by one."""
    end(begin(*SMALL, "seeds=64", f"run.dir={place / 'one'}"), 0)
    for process in pair(place / "two", *SMALL, "seeds=64"):
        end(process, 0)
    yield compare(place / "one", place / "two")


def moved(place: Path, times: int, trials: list[Any]) -> Iterator[dict[str, Any]]:
    """Half on eight devices and half on one, and the reverse; 9 runs, which eight devices must pad."""
    end(begin(*SMALL, "seeds=9", f"run.dir={place / 'whole'}"), 0)
    apart = {}
    for first, second in ((8, 1), (1, 8)):
        folder = place / f"{first}_to_{second}"
        end(begin(*SMALL, "seeds=9", "total_steps=1024", "chunks=8", f"run.dir={folder}", devices=first), 0)
        end(begin(f"resume={folder}", "total_steps=2048", devices=second), 0)
        whole, moved = table(place / "whole"), table(folder)
        apart[folder.name] = {
            "rows": len(moved),
            "largest_difference": float(np.nanmax(np.abs(whole.to_numpy(float) - moved.to_numpy(float)))),
        }
    yield apart


def kill(place: Path, times: int, trials: list[Any]) -> Iterator[dict[str, Any]]:
    """One of two processes is killed at a random moment; both are started again. So often, each time a new training."""
    end(begin(*KILLED, f"run.dir={place / 'whole'}"), 0)
    for trial in range(len(trials), times):
        draw = random.Random(trial)
        folder = place / str(trial)
        both, which = pair(folder, *KILLED, timeout=8), draw.randrange(2)
        start, delay = time.monotonic(), draw.uniform(0.0, 3.0)
        while chunk_of(folder) < 1 and both[0].poll() is None and time.monotonic() - start < PATIENCE:
            time.sleep(0.01)
        time.sleep(delay)
        both[which].kill()
        tick = time.monotonic()
        end(both[1 - which])
        end(both[which])
        noticed, left = time.monotonic() - tick, chunk_of(folder)
        recorded = len((folder / "metrics.csv").read_text().splitlines()) - 1
        for process in pair(folder, *KILLED):
            end(process, 0)
        trials.append(
            {
                "killed_process": which,
                "other_code": both[1 - which].returncode,
                "other_ended_after_seconds": round(noticed, 1),
                "checkpoint_left": left,
                "chunks_lost": max(0, recorded // 4 - left),
                **compare(place / "whole", folder),
            }
        )
        yield {"trials": trials, "equal": sum(trial["same_bytes"] for trial in trials), "of": len(trials)}


def sigterm(place: Path, times: int, trials: list[Any]) -> Iterator[dict[str, Any]]:
    """SIGTERM at a random moment within a chunk: the seconds to a whole checkpoint, and that it is used."""
    words = [*SMALL, "seeds=8", "algo.num_envs=64", "algo.rollout_length=128", "total_steps=4194304", "chunks=64"]
    for trial in range(len(trials), times):
        draw = random.Random(trial)
        folder = place / str(trial)
        process = begin(*words, f"run.dir={folder}", "resume=auto")
        while chunk_of(folder) < 1 and process.poll() is None:
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 3.0))
        before, tick = chunk_of(folder), time.monotonic()
        process.send_signal(signal.SIGTERM)
        while chunk_of(folder) == before and process.poll() is None:
            time.sleep(0.005)
        written = time.monotonic() - tick
        end(process, GO_ON)
        ended, left = time.monotonic() - tick, chunk_of(folder)
        again = begin(*words, f"run.dir={folder}", "resume=auto")
        while chunk_of(folder) == left and again.poll() is None:
            time.sleep(0.01)
        again.send_signal(signal.SIGTERM)
        end(again, GO_ON)
        steps = table(folder).groupby("run").env_steps.apply(list)
        whole = all(one == [65536 * (i + 1) for i in range(len(one))] for one in steps)
        trials.append(
            {
                "seconds_to_checkpoint": round(written, 2),
                "seconds_to_end": round(ended, 2),
                "checkpoint": left,
                "went_on_to": chunk_of(folder),
                "no_gap_in_the_records": whole,
            }
        )
        yield {"trials": trials, "most_seconds_to_checkpoint": max(one["seconds_to_checkpoint"] for one in trials)}


def shared(place: Path, times: int, trials: list[Any]) -> Iterator[dict[str, Any]]:
    """A single run of ``mpe/simple_spread`` on one core, and its environments shared by two: steps per second."""
    found = {}
    for num_envs in (16, 512):
        for cores in (1, 2):
            folder = place / f"{num_envs}_environments_{cores}_cores"
            words = [f"algo.num_envs={num_envs}", f"devices={cores}", "seeds=1", "total_steps=400000", "chunks=4"]
            end(begin(*words, f"run.dir={folder}", devices=2), 0)
            session = json.loads((folder / "provenance.json").read_text())["session"]
            found[folder.name] = session["steps_per_second"]
    yield found


PROMISES: dict[str, Callable[[Path, int, list[Any]], Iterator[dict[str, Any]]]] = {
    "eight": eight,
    "processes": processes,
    "moved": moved,
    "kill": kill,
    "sigterm": sigterm,
    "shared": shared,
}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "--only", choices=list(PROMISES), action="append", help="try these; the record keeps the others"
    )
    parser.add_argument("--times", type=int, default=10, help="how often to kill and to stop")
    options = parser.parse_args()
    from importlib import metadata

    RECORD.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for name in options.only or PROMISES:
            before = json.loads(RECORD.read_text()).get(name, {}) if options.only and RECORD.exists() else {}
            for found in PROMISES[name](Path(place) / name, options.times, before.get("trials", [])):
                found |= {"jax": metadata.version("jax"), "cores": os.cpu_count(), "machine": platform.machine()}
                print(name, json.dumps(found), flush=True)
                record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
                RECORD.write_text(json.dumps(record | {name: found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
