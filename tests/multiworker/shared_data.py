"""What each worker gets of data shared out by `mk.data.distribute`, and a training on it; run by the tests.

Run: python -m mirrorkit launch --workers 3 shared_data.py FOLDER "file, seven files" "data, arrays" ...
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

EXAMPLES, BATCH = 49, 12
FILES = {"seven files": 7, "four files": 4, "one file": 1}


def split() -> mk.data.Split:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.arange(EXAMPLES)[:, None], rng.normal(size=(EXAMPLES, 3))], 1)  # a number, and features
    return mk.data.arrays(x.astype("float32"), (x[:, 1] > 0).astype("int64"), num_classes=2)


def make_step(strategy: tf.distribute.Strategy) -> mk.train.Step:
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Rescaling([0.0, 1, 1, 1]), keras.layers.Dense(2)])
        optimizer = keras.optimizers.SGD(0.5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"])
    step.build(strategy)
    return step


def local(strategy: tf.distribute.Strategy, value: Any) -> Any:
    return strategy.experimental_local_results(value)[0].numpy()


def shared(strategy: tf.distribute.Strategy, data: Any, policy: str) -> dict[str, Any]:
    """This worker's rows of each step; what a training and an evaluation on the shares come to."""
    step = make_step(strategy)

    @tf.function
    def train_step(batch: Any) -> Any:
        return step.update(strategy, strategy.run(step.compute, args=(batch,)))

    @tf.function
    def test_step(batch: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step.test, args=(batch,)), axis=None)

    rows, totals = [], 0
    try:
        for batch in mk.data.distribute(data, strategy, autoshard=policy):
            rows.append(local(strategy, batch[0])[:, 0].astype(int).tolist())
            totals += test_step(batch)
            train_step(batch)
    except (mk.errors.MirrorkitError, tf.errors.OpError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    weights = [variable.numpy().tolist() for variable in step.model.trainable_variables]
    return {"rows": rows, "totals": totals.numpy().tolist(), "weights": weights}


def main() -> None:
    folder = Path(sys.argv[1])
    strategy = mk.strategy.create("auto", start_timeout=120)
    me = mk.strategy.worker_index(strategy)
    data = {"arrays": mk.data.batches(split(), global_batch_size=BATCH, shuffle=True)}
    for name, shards in FILES.items():
        # as if each had a disk of its own
        mk.data.write_records(split(), folder / f"worker{me}" / name, num_files=shards)
        data[name] = mk.data.records(folder / f"worker{me}" / name, global_batch_size=BATCH)
    found = {}
    for case in sys.argv[2:]:
        policy, name = case.split(", ")
        found[case] = shared(strategy, data[name], policy)
    (folder / f"found{me}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
