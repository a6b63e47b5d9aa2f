"""A worker of test_own_train_step_on_workers.py: trains models with their own train_step."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "train" / "replica_code"))

import keras
import numpy as np
import own_models

import mirrorkit as mk
from mirrorkit.variables import copies

NAMES = ("wgan", "distillation", "mean_teacher")


def main(folder: Path) -> None:
    strategy = mk.strategy.create("multi_worker")
    found = {}
    for name in NAMES:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = own_models.MODELS[name]()
        loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
        data = mk.data.batches(mk.data.arrays(*own_models.data()), global_batch_size=16)  # each reads its own rows
        history = loop.fit(data, epochs=3, verbose=0).history
        found |= {f"{name}/logs/{log}": values for log, values in history.items()}
        found |= {f"{name}/{i}": copies(weight)[0].numpy() for i, weight in enumerate(model.weights)}
    np.savez(folder / f"found{mk.strategy.worker_index(strategy)}.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
