#!/bin/bash
# The same in an Apptainer (or Singularity) container, after every device has shown that it computes.
#   apptainer build mirrorkit.sif examples/jobs/mirrorkit.def
#   sbatch --gpus-per-node=4 examples/jobs/slurm_container.sh mirrorkit.sif examples/mnist_loop.py --checkpoints runs/mnist
#SBATCH --nodes=2 --ntasks-per-node=1 --time=1-00:00:00
#SBATCH --output=%x-%j.out --open-mode=append --requeue --signal=B:USR1@120

# Both as in slurm.sh.
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1
tasks=$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))
container=(apptainer exec --nv "$1")

srun --ntasks=$tasks "${container[@]}" python -m mirrorkit devices --require "${REQUIRE:-gpu}" || exit
srun --kill-on-bad-exit=1 --ntasks=$tasks "${container[@]}" python "${@:2}" &
wait $!
