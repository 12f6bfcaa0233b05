"""Sweeps by a launcher and the batch scripts, with stand-ins for SLURM's commands."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from shoal.folder import checkpoint
from tests.conftest import ROOT, SCRIPT, SMALL

SCRIPTS = sorted((ROOT / "scripts" / "slurm").glob("*.sh"))


@pytest.fixture
def cluster(tmp_path):
    """``cluster(name, body)`` puts a command on the path; its value is the environment to run in."""
    (tmp_path / "bin").mkdir()
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def add(name: str, body: str) -> dict[str, str]:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IEXEC)
        return environment

    return add


def run(words: list[str], environment: dict[str, str], **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=False, **kwargs)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_are_bash(script):
    assert run(["bash", "-n", str(script)], dict(os.environ)).returncode == 0
    assert script.stat().st_mode & stat.S_IXUSR


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.stem != "chain"], ids=lambda path: path.stem)
@pytest.mark.parametrize(
    ("code", "requeue", "queued"),
    [(0, "1", False), (75, "1", True), (75, "0", False), (2, "1", False)],
)
def test_a_stopped_job_is_queued_again_and_no_other(script, code, requeue, queued, cluster, tmp_path):
    training = tmp_path / "training.py"
    training.write_text(f"import sys; print(sys.argv[1:]); sys.exit({code})")
    cluster("srun", 'while [[ "$1" == --* ]]; do shift; done; exec "$@"')
    environment = cluster("scontrol", f'echo "$@" > {tmp_path / "queued"}')
    environment |= {"SLURM_JOB_ID": "7", "REQUEUE": requeue}
    done = run(["bash", str(script), str(training), "run.dir=x y"], environment)
    assert done.returncode == code
    assert done.stdout == "['run.dir=x y', 'resume=auto']\n"
    assert (tmp_path / "queued").exists() == queued
    if queued:
        assert (tmp_path / "queued").read_text() == "requeue 7\n"


def test_a_chain_waits_job_by_job(cluster, tmp_path):
    log = tmp_path / "log"
    environment = cluster("sbatch", f'echo "$@" >> {log}; wc -l < {log}')
    script = str(ROOT / "scripts" / "slurm" / "chain.sh")
    done = run([script, "3", "one_gpu.sh", "file.py", "run.dir=x"], environment)
    assert done.stdout == "3 jobs, the last is 3\n"
    lines = log.read_text().splitlines()
    rest = "one_gpu.sh file.py run.dir=x"
    assert lines[0] == f"--parsable --export=ALL,REQUEUE=0 {rest}"
    assert lines[1:] == [f"--parsable --export=ALL,REQUEUE=0 --dependency=afterany:{n} {rest}" for n in (1, 2)]
    assert run([script, "3"], environment).returncode == 2


WORDS = [*SMALL, "env=matrix/climbing", "chunks=2", "-m", "algo.epochs=1,2"]


def trained(folder: Path) -> None:
    for epochs in (1, 2):
        (table,) = (path for path in folder.rglob("metrics.csv") if f"algo.epochs={epochs}" in str(path))
        assert len(pd.read_csv(table)) == 4
        assert checkpoint.chunks(table.parent / "checkpoints" / "batch_0") == [1, 2]


def test_a_sweep_by_processes_of_this_machine(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    words = [sys.executable, str(SCRIPT), *WORDS, "launcher=local", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    done = run(words, dict(os.environ))
    assert done.returncode == 0, done.stderr
    trained(tmp_path / "sweep")


SBATCH = """
# Runs the tasks of an array one after the other, as SLURM would, and prints the job's number.
script="${@: -1}"
echo "$(grep -E '^#SBATCH' "$script")" > LOG
export SLURM_JOB_ID=7 SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_COUNT=2 SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1
export SLURM_JOB_NODELIST=here SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=1
(for task in 0 1; do
    SLURM_ARRAY_TASK_ID=$task bash "$script" > LOG.$task 2>&1
done) > /dev/null 2>&1 &
echo "Submitted batch job 7"
"""
SRUN = r"""
words=()
for word in "$@"; do
    word="${word//%A/7}"; word="${word//%a/$SLURM_ARRAY_TASK_ID}"; words+=("${word//%t/0}")
done
while [[ "${words[0]}" == --* || "${words[0]}" == -* ]]; do
    if [[ "${words[0]}" == --output ]]; then out="${words[1]}"; fi
    if [[ "${words[0]}" == *=* || "${words[0]}" == --unbuffered ]]; then n=1; else n=2; fi
    words=("${words[@]:$n}")
done
until compgen -G "$(dirname "$out")/*_submitted.pkl" > /dev/null; do sleep 0.1; done  # a queue is never so quick
exec "${words[@]}" > "$out"
"""


def test_a_sweep_as_an_array(cluster, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    cluster("sbatch", SBATCH.replace("LOG", str(tmp_path / "log")))
    cluster("srun", SRUN)
    cluster("sacct", 'echo "JobID|State"; echo "7_0|COMPLETED"; echo "7_1|COMPLETED"')
    environment = cluster("scontrol", "exit 0")
    words = [sys.executable, str(SCRIPT), *WORDS, "launcher=slurm", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    done = run([*words, "hydra.launcher.partition=gpu"], environment)
    logs = "".join(path.read_text() for path in tmp_path.glob("log*"))
    assert done.returncode == 0, done.stderr + logs
    assert "--array=0-1%" in logs and "--partition=gpu" in logs and "--gpus-per-node=1" in logs
    trained(tmp_path / "sweep")
