"""One worker under parameter servers beside one device: each section prints what a test compares."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from sections import run

import mirrorkit as mk

cluster = mk.testing.local_cluster(workers=1, ps=2)
servers = mk.strategy.create("parameter_server", cluster=cluster)
device = tf.distribute.OneDeviceStrategy("/job:chief/replica:0/task:0/device:CPU:0")

rng = np.random.default_rng(0)
images = rng.integers(0, 255, (210, 8, 8, 1)).astype("uint8")
labels = rng.integers(0, 3, 210)


def compared(train):
    """The largest difference between what `train` returns of each: arrays, a dict of arrays (by name), or numbers."""
    keras.utils.set_random_seed(0)
    one = train(device)
    keras.utils.set_random_seed(0)
    there = train(servers)
    pairs = zip(tf.nest.flatten(one), tf.nest.flatten(there), strict=True)
    return {"largest": max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs), "values": len(one[0])}


def values(step):
    return [v.value.numpy() for v in step.variables]


def accumulated():
    uneven = mk.data.batches(mk.data.arrays(images, labels), global_batch_size=32, shuffle=True)

    def train(strategy):
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
        layers += [keras.layers.Dense(6, use_bias=False)]  # the true gradient of a bias would be zero
        with strategy.scope():
            head = [keras.layers.BatchNormalization(), keras.layers.Dense(3)]
            model = keras.Sequential([keras.Input((8, 8, 1)), *layers, *head])
            optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.01)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        options = {"metrics": ["accuracy"], "ema": 0.9, "accumulate": 3, "clip_norm": 0.1}
        loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, **options), steps_per_call=5)
        report = loop.fit(uneven, epochs=2, verbose=0, class_weight={0: 2.0})
        with loop.step.averaged():
            return values(loop.step), report.history, loop.evaluate(uneven)["loss"]

    return compared(train)


def one_line():
    """`mk.fit` and what goes with it, on arrays, a dataset and a PyDataset."""

    def train(strategy):
        with strategy.scope():
            layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
            model = keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Dense(3, "softmax")])
            model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(40)
        fits = [
            mk.fit(model, images, labels, batch_size=64, validation_split=0.2, shuffle=False, verbose=0),
            mk.fit(model, images, labels, batch_size=64, epochs=2, seed=1, verbose=0),
            mk.fit(model, dataset, verbose=0),
            mk.fit(model, Pieces(), epochs=2, seed=1, verbose=0),
        ]
        logs = [fit.history for fit in fits]
        return model.get_weights(), logs, mk.evaluate(model, images, labels, verbose=0), mk.predict(model, images)

    return compared(train)


class Pieces(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, number):
        return images[70 * number : 70 * number + 70], labels[70 * number : 70 * number + 70]


def larger_models():
    """What is for models larger than a device."""
    found = {}
    try:
        with mk.parallel.Layout({".": 0}, devices=["cpu:0"]), servers.scope():
            keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    except mk.errors.StepError as error:
        found["layout"] = str(error)
    with servers.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        step = mk.train.Step(model, keras.optimizers.SGD(0.1), loss="mse", shard_optimizer=True)
    try:
        step.build(servers)
    except mk.errors.StepError as error:
        found["shard_optimizer"] = str(error)
    return found


def table():
    """Trained in a step: examples/by_feature/parameter_server.py."""

    def of_rows(rows, **options):
        return mk.parallel.PartitionedTable(servers, rows=rows, width=4, **options)

    shards = of_rows(101, shards=3)
    whole = np.concatenate([v.numpy() for v in shards.variables])
    ids = [[0, 34], [35, 100]]
    before = whole[7].copy()
    shards.add(tf.constant([7, 7]), tf.ones([2, 4]))
    return {
        "shards": [list(v.shape) for v in shards.variables],
        "servers": sorted({v.device.split("/device")[0] for v in shards.variables}),
        "lookup": float(np.abs(shards.lookup(tf.constant(ids)).numpy() - whole[ids]).max()),
        "twice": (shards.lookup(tf.constant([7])).numpy()[0] - before).tolist(),
        "small": len(of_rows(10).variables),
        "large": len(of_rows(100_000).variables),
    }


run(accumulated, one_line, larger_models, table)
