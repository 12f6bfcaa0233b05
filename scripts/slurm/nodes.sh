#!/bin/bash
# One training on several nodes: a process on each drives its GPUs. srun tells them where to meet (distributed.coordinator=auto).
#
#     sbatch scripts/slurm/nodes.sh baselines/ippo/ippo_ff_mpe.py run.dir=/shared/runs/mine seeds=1024
#
#SBATCH --job-name=shoal
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail

srun --kill-on-bad-exit=1 python "$@" resume=auto
code=$?
# 75: stopped by a signal with a checkpoint, and there is more to do (REQUEUE=0: another job of a chain does it).
if [ "$code" -eq 75 ] && [ "${REQUEUE:-1}" = 1 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
