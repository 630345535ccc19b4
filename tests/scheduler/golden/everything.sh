#!/bin/bash
#SBATCH --job-name=demo
#SBATCH --partition=gpu
#SBATCH --account=abc@v100
#SBATCH --qos=normal
#SBATCH --constraint=a100&nvlink
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=2
#SBATCH --mem-per-cpu=1536M
#SBATCH --time=30
#SBATCH --signal=USR2@90
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=batch/batch-%j.log
#SBATCH --exclusive
#SBATCH --mail-type=END,FAIL
#SBATCH --reservation='two words'

export DPTRAIN_JOB_BEGAN_S=$(date +%s)
echo "dptrain: the job begins" >&2

# A setup line that fails, or leaves the script, ends the job before any rank starts.
# Only errexit: activation scripts break under nounset.
trap 'dptrain_code=$?; echo "dptrain: setup line failed with exit code $dptrain_code: $dptrain_setup" >&2; [ $dptrain_code -ne 0 ] || exit 1' EXIT
set -e
dptrain_setup='module purge'
module purge
dptrain_setup='module load '"'"'cuda/12'"'"''
module load 'cuda/12'
dptrain_setup='source "$HOME/env/bin/activate"'
source "$HOME/env/bin/activate"
set +e
trap - EXIT

unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
export OMP_NUM_THREADS=4
export GLOO_SOCKET_IFNAME=ib0
export NCCL_SOCKET_IFNAME==ib0
export MESSAGE='two words, $HOME and '"'"'quotes'"'"''
export SRUN_CPUS_PER_TASK=8
export SUBMITIT_EXECUTOR=slurm
export SUBMITIT_LOG_LEVEL=WARNING

echo "dptrain: the ranks are started" >&2
exec srun --kill-on-bad-exit=1 --wait=60 --cpus-per-task=8 --label apptainer exec 'my image.sif' /opt/python/bin/python -P -u -m submitit.core._submit submitit
