#!/bin/bash
# One training on one GPU; queued again until it has ended.
#
#     sbatch scripts/slurm/one_gpu.sh baselines/ippo/ippo_ff_mpe.py run.dir=runs/mine seeds=64
#
#SBATCH --job-name=shoal
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail

srun python "$@" resume=auto
code=$?
# 75: stopped by a signal with a checkpoint, and there is more to do (REQUEUE=0: another job of a chain does it).
if [ "$code" -eq 75 ] && [ "${REQUEUE:-1}" = 1 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
