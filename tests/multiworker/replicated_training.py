"""A training with everything in it, for two workers and for two replicas of one process; run by the tests.

Run: python -m mirrorkit launch --workers 2 replicated_training.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk

EXAMPLES, BATCH = 53, 12  # the last batch has 5: 3 and 2 of them


def data() -> tuple[mk.data.Batches, mk.data.Batches]:
    """The training data, shuffled, and the same in order."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, 8)).astype("float32")
    split = mk.data.arrays(x, (x[:, 0] * x[:, 1] > 0).astype("int64"))
    return mk.data.batches(split, global_batch_size=BATCH, shuffle=True), mk.data.batches(split, global_batch_size=18)


class Hooks(keras.callbacks.Callback):
    """Remembers how long the loop's calls are, and stops when asked."""

    def __init__(self, loop: mk.train.Loop, stop_at_epoch: int | None = None) -> None:
        super().__init__()
        self.calls: list[int] = []
        self._loop = loop
        self._stop_at_epoch = stop_at_epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(self._loop.steps_per_call)
        if epoch == self._stop_at_epoch:
            self.model.stop_training = True


def train(strategy: tf.distribute.Strategy, folder: Path) -> tuple[mk.train.Loop, dict[str, Any]]:
    """Train, evaluate and predict; returns what should be the same on all workers, and leaves files in `folder`."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dense(16), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
        model = keras.Sequential([*layers, keras.layers.Dense(2)])  # which the first batch builds
        optimizer = keras.optimizers.Adam(0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"], clip_norm=1.0)
    loop = mk.train.Loop(strategy, step)
    training, in_order = data()
    first = strategy.cluster_resolver is None or mk.strategy.worker_index(strategy) == 0
    # A callback of one worker alone that wants to stop: the others do too.
    hooks = Hooks(loop, stop_at_epoch=3 if first else None)
    writers = [keras.callbacks.CSVLogger(str(folder / "log.csv"), append=True)]
    report = loop.fit(training, epochs=9, validation_data=in_order, verbose=2, callbacks=[hooks, *writers])
    values = [copy.numpy() for v in step.variables for copy in strategy.experimental_local_results(v.value)[:1]]
    np.savez(folder / f"variables{mk.strategy.worker_index(strategy)}.npz", *values)
    return loop, {
        "history": report.history,
        "evaluate": loop.evaluate(in_order),
        "predict": loop.predict(in_order).tolist(),
        "calls": hooks.calls,
        "all": mk.strategy.of_all_workers(strategy, 10 + mk.strategy.worker_index(strategy)),
    }


def batches_seen(loop: mk.train.Loop) -> list[int]:
    """The batches of which a hook of the first worker alone is told; the others make calls of one step too."""
    seen: list[int] = []
    look = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    loop.fit(data()[0], callbacks=[look] if mk.strategy.is_chief(loop.strategy) else [], verbose=0)
    return seen


if __name__ == "__main__":
    made = mk.strategy.create("auto", start_timeout=120)
    results = Path(sys.argv[1])
    loop, found = train(made, results)
    found["seen"] = batches_seen(loop)
    rows = mk.data.distribute(data()[1].dataset(), made, autoshard="data")
    found["rows"] = [made.experimental_local_results(x)[0].numpy().tolist() for x, _ in rows]
    found["describe"] = mk.strategy.describe(made)
    (results / f"found{mk.strategy.worker_index(made)}.json").write_text(json.dumps(found))
