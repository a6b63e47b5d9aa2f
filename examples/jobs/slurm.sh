#!/bin/bash
# Train on two nodes, with one worker per node and all of its GPUs. All nodes must share the folder of the checkpoints.
#   sbatch --gpus-per-node=4 examples/jobs/slurm.sh examples/mnist_loop.py --checkpoints runs/mnist
#SBATCH --nodes=2 --ntasks-per-node=1 --time=1-00:00:00
#SBATCH --output=%x-%j.out --open-mode=append --requeue --signal=B:USR1@120

# Slurm itself queues a preempted job again. This job also requeues itself two minutes before its time limit. Both send
# SIGTERM to the workers: they save, exit, and resume from there when the job starts again. They have Slurm's KillWait
# for it, 30 s by default; then comes SIGKILL. Where that is too short, see docs/slurm.md.
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1

# SLURM_NTASKS is that of the first start: queued again, the job may have got another number of nodes.
srun --kill-on-bad-exit=1 --ntasks=$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE)) python "$@" &
wait $!
