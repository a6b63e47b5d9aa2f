#!/bin/bash
# Train on two nodes: one worker for each, with all the GPUs it was given. Mind that all nodes see the checkpoints' folder.
#   sbatch --gpus-per-node=4 examples/jobs/slurm.sh examples/mnist_loop.py --checkpoints runs/mnist
#SBATCH --nodes=2 --ntasks-per-node=1 --time=1-00:00:00
#SBATCH --output=%x-%j.out --open-mode=append --requeue --signal=B:USR1@120

# Slurm itself queues a preempted job again. Here the job does so two minutes before its time is over. Both send SIGTERM
# to the workers: they save, leave, and go on from there when the job is started again.
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1

srun --kill-on-bad-exit=1 python "$@" &
wait $!
