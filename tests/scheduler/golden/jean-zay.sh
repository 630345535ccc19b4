#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --partition=gpu_p13
#SBATCH --constraint=v100-32g
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=10
#SBATCH --gres=gpu:2
#SBATCH --time=30
#SBATCH --signal=USR2@90
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=batch/batch-%j.log
#SBATCH --hint=nomultithread

export DPTRAIN_JOB_BEGAN_S=$(date +%s)
echo "dptrain: the job begins" >&2

unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
export OMP_NUM_THREADS=10
export SRUN_CPUS_PER_TASK=10
export SUBMITIT_EXECUTOR=slurm
export SUBMITIT_LOG_LEVEL=WARNING

echo "dptrain: the ranks are started" >&2
exec srun --kill-on-bad-exit=1 --wait=60 --cpus-per-task=10 --label /opt/python/bin/python -P -u -m submitit.core._submit submitit
