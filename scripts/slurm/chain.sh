#!/bin/bash
# A long training as several jobs, each going on where the one before has ended; for sites that do not requeue.
# Jobs that find it finished end at once.
#
#     scripts/slurm/chain.sh 5 scripts/slurm/one_gpu.sh baselines/ippo/ippo_ff_mpe.py run.dir=runs/long total_steps=1e9
#
set -euo pipefail

if [ "$#" -lt 3 ]; then
    echo "usage: $0 <jobs> <one of the other scripts> <algorithm file> run.dir=<folder> [name=value ...]" >&2
    exit 2
fi
jobs=$1
shift
id=$(sbatch --parsable --export=ALL,REQUEUE=0 "$@")
for _ in $(seq 2 "$jobs"); do
    id=$(sbatch --parsable --export=ALL,REQUEUE=0 --dependency="afterany:${id%%;*}" "$@")
done
echo "$jobs jobs, the last is ${id%%;*}"
