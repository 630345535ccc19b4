#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=30
#SBATCH --signal=USR2@90
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --array=0-4%2
#SBATCH --output=batch/batch-%A_%a.log

export DPTRAIN_JOB_BEGAN_S=$(date +%s)
echo "dptrain: the job begins" >&2

unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
export OMP_NUM_THREADS=1
export SRUN_CPUS_PER_TASK=1
export SUBMITIT_EXECUTOR=slurm
export SUBMITIT_LOG_LEVEL=WARNING

echo "dptrain: the ranks are started" >&2
exec srun --kill-on-bad-exit=1 --wait=60 --cpus-per-task=1 --label /opt/python/bin/python -P -u -m submitit.core._submit submitit
