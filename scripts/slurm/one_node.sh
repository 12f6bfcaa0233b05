#!/bin/bash
# One training on all GPUs of a node: one process drives them, runs are spread over them.
#
#     sbatch scripts/slurm/one_node.sh baselines/ippo/ippo_ff_mpe.py run.dir=runs/mine seeds=256
#
#SBATCH --job-name=shoal
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
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
