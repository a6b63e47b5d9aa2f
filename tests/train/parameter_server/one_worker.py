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


def classified(data, **options):
    def train(strategy):
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
        layers += [keras.layers.Dense(6, use_bias=False)]  # the true gradient of a bias would be zero
        with strategy.scope():
            head = [keras.layers.BatchNormalization(), keras.layers.Dense(3)]
            model = keras.Sequential([keras.Input((8, 8, 1)), *layers, *head])
            optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.01)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"], ema=0.9, **options)
        loop = mk.train.Loop(strategy, step, steps_per_call=5)
        report = loop.fit(data, epochs=2, verbose=0, class_weight={0: 2.0})
        with step.averaged():
            return values(step), report.history, loop.evaluate(data)["loss"]

    return compared(train)


def accumulated():
    uneven = mk.data.batches(mk.data.arrays(images, labels), global_batch_size=32, shuffle=True)
    return classified(uneven, accumulate=3, clip_norm=0.1)


def whole_batch():
    """Each worker has whole batches, so there is nothing to gather; the last batch is smaller."""
    vectors = rng.normal(size=(210, 4)).astype("float32")

    def train(strategy):
        with strategy.scope():
            net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
            optimizer = keras.optimizers.Adam(0.01)

        def loss_fn(batch):
            codes = net(batch)
            every = mk.train.all_gather(codes)
            return tf.reduce_logsumexp(codes @ tf.transpose(every), 1) - tf.reduce_sum(codes**2, 1)

        loop = mk.train.Loop(strategy, mk.train.Step.from_loss(net, optimizer, loss_fn, whole_batch=True))
        data = tf.data.Dataset.from_tensor_slices(vectors).batch(32)
        return net.get_weights(), loop.fit(data, epochs=2, validation_data=data, verbose=0).history

    return compared(train)


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


class Vectors:
    """Learns a vector for each id: the mean of what it is asked to be."""

    def __init__(self, **options):
        self.table = mk.parallel.PartitionedTable(
            servers, rows=101, width=4, initializer=lambda shape, dtype: tf.zeros(shape, dtype), **options
        )
        self.variables = self.table.variables

    def build(self, strategy):
        self.apply = mk.train.Update(strategy, [], lambda sums, values: ([], {"loss": sums["loss"] / sums["n"]}))

    def compute(self, batch):
        ids, wanted = batch
        error = self.table.lookup(ids) - wanted
        self.table.add(ids, -0.5 * error)
        return {"loss": tf.reduce_sum(error**2), "n": tf.cast(tf.shape(ids)[0], tf.float32)}

    def update(self, strategy, sums):
        return self.apply(sums)


def table():
    wanted = rng.normal(size=(101, 4)).astype("float32")
    step = Vectors(shards=3)
    data = mk.data.batches(mk.data.arrays(np.arange(101), wanted), global_batch_size=10, shuffle=True)
    mk.train.Loop(servers, step).fit(data, epochs=20, verbose=0)
    whole = np.concatenate([v.numpy() for v in step.variables])
    ids = [[0, 34], [35, 100]]
    lookup = float(np.abs(step.table.lookup(tf.constant(ids)).numpy() - whole[ids]).max())
    before = whole[7].copy()
    step.table.add(tf.constant([7, 7]), tf.ones([2, 4]))
    return {
        "shards": [list(v.shape) for v in step.variables],
        "servers": sorted({v.device.split("/device")[0] for v in step.variables}),
        "error": float(np.abs(whole - wanted).max()),
        "lookup": lookup,
        "twice": (step.table.lookup(tf.constant([7])).numpy()[0] - before).tolist(),
        "small": len(mk.parallel.PartitionedTable(servers, rows=10, width=4).variables),
        "large": len(mk.parallel.PartitionedTable(servers, rows=100_000, width=4).variables),
    }


run(accumulated, whole_batch, larger_models, table)
