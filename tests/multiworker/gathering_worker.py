"""One of two workers: gathers rows from all, and trains synchronized layers on bytes in a loop of its own."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.train.reduce.gathering import gather_rows, gather_sizes

ROWS = ([3, 2], [4, 0], [0, 5])  # of the two replicas


def gathered(strategy: tf.distribute.Strategy) -> list[dict[str, Any]]:
    """What this process's replicas gather, and the gradient of a function of it, for each pair of sizes."""
    x = np.arange(-8.0, 7.0, dtype="float32").reshape(5, 3)
    found = []
    for cut, size in ROWS:
        rows = tf.constant(x[: cut + size])

        @tf.function(autograph=False)
        def on_all(whole: tf.Tensor, cut: int = cut) -> Any:
            def on_replica(whole: tf.Tensor) -> Any:
                first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
                own = tf.cond(first, lambda: whole[:cut], lambda: whole[cut:])
                with tf.GradientTape() as tape:
                    tape.watch(own)
                    counts = gather_sizes(tf.shape(own)[0])
                    every = gather_rows({"x": own, "bytes": tf.cast(own + 8.0, tf.uint8), "sign": own > 0.0}, counts)
                    loss = tf.reduce_sum(tf.matmul(own, every["x"], transpose_b=True) ** 2)
                return every, tape.gradient(loss, own)

            return strategy.run(on_replica, args=(whole,))

        every, gradient = on_all(rows)
        local = strategy.experimental_local_results
        found.append(
            {
                "gathered": {name: local(value)[0].numpy().tolist() for name, value in every.items()},
                "dtypes": {name: local(value)[0].dtype.name for name, value in every.items()},
                "gradients": [part.numpy().tolist() for part in local(gradient)],
            }
        )
    return found


def trained(strategy: tf.distribute.Strategy) -> list[float]:
    """The losses of a custom training loop over bytes, whose shares have no static size."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (22, 6, 6, 1), dtype=np.uint8), rng.integers(0, 3, 22)
    layers = keras.layers
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6, 6, 1), dtype="uint8"),
                layers.Rescaling(1 / 255),
                layers.Conv2D(3, 3),
                layers.BatchNormalization(synchronized=True),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        step = mk.train.Step(model, keras.optimizers.SGD(0.1), loss=loss)
    step.build(strategy)

    @tf.function(autograph=False, reduce_retracing=True)
    def train(batch: Any) -> Any:
        return step.update(strategy, strategy.run(step.compute, args=(batch,)))

    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(8))
    return [float(train(batch)["loss"]) for batch in batches]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    strategy = mk.strategy.create("multi_worker", devices="cpu")
    found = {"gathered": gathered(strategy), "trained": trained(strategy)}
    (folder / f"found{mk.strategy.worker_index(strategy)}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
