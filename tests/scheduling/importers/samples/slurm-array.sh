#!/bin/bash
#SBATCH --job-name=ddp # the name
#SBATCH -N 2 -t 1-00:15:00
#SBATCH --ntasks-per-node=1
#SBATCH --gres gpu:a100:4
#SBATCH --cpus-per-task=12
#SBATCH --mem=128G
#SBATCH --account=foo
#SBATCH --array=1-3%2

export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export MASTER_PORT=12340
module load cuda/12
source ~/venv/bin/activate
srun --cpu-bind=none torchrun --nnodes=$SLURM_NNODES \
   --node_rank=$SLURM_PROCID --data /scratch/me/data train.py $SLURM_ARRAY_TASK_ID
