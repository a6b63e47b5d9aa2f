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
                    of_other_dtypes = {"bytes": tf.cast(own + 8.0, tf.uint8), "sign": own > 0.0}
                    every = mk.train.all_gather({"x": own, **of_other_dtypes, "half": tf.cast(own, tf.bfloat16)})
                    loss = tf.reduce_sum(tf.matmul(own, every["x"], transpose_b=True) ** 2)
                half = tf.cast(every.pop("half"), tf.float32)
                return {**every, "half": half}, tape.gradient(loss, own)

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


def contrastive(strategy: tf.distribute.Strategy) -> list[Any]:
    """Losses, validation losses and weights of codes that are compared with those of the whole batch.

    The last batch holds one image: one of two replicas has none.
    """
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(33, 6, 6, 1)).astype("float32"), rng.integers(0, 3, 33).astype("uint8")
    keras.utils.set_random_seed(0)
    with strategy.scope():
        pooled = [keras.layers.Conv2D(3, 3, use_bias=False), keras.layers.MaxPool2D(), keras.layers.Flatten()]
        net, optimizer = (
            keras.Sequential([keras.Input((6, 6, 1)), *pooled, keras.layers.Dense(4)]),
            keras.optimizers.SGD(0.1),
        )

    def loss_fn(batch: Any) -> Any:
        images, labels = batch
        codes = tf.math.l2_normalize(net(images), 1)
        every, of_every = mk.train.all_gather((codes, labels))
        similar, same = 4 * codes @ tf.transpose(every), tf.cast(labels[:, None] == of_every[None], tf.float32)
        return tf.reduce_logsumexp(similar, 1) - tf.reduce_sum(same * similar, 1) / tf.reduce_sum(same, 1)

    loop = mk.train.Loop(strategy, mk.train.Step.from_loss(net, optimizer, loss_fn, whole_batch=True))
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    history = loop.fit(data, epochs=2, validation_data=data, verbose=0).history
    return [history["loss"], history["val_loss"], *[weights.tolist() for weights in net.get_weights()]]


FUNCTIONS = {"gathered": gathered, "trained": trained, "contrastive": contrastive}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    strategy = mk.strategy.create("multi_worker", devices="cpu")
    found = {name: function(strategy) for name, function in FUNCTIONS.items()}
    (folder / f"found{mk.strategy.worker_index(strategy)}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
