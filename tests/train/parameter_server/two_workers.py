"""Two workers and a parameter server in one process: each section prints what the tests in test_in_process.py compare.

TensorFlow connects a process to one cluster, so the sections share it. A section that fails is told apart by its name,
and the others run all the same. With the environment variable SLOW_SECTIONS it runs those of slow tests too.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sections import run

import mirrorkit as mk
from mirrorkit.errors import NonFiniteLossError, StepError

sys.path.append(str(Path(__file__).parents[1]))
from drawing import all_draws, assert_distinct, state_after

EXAMPLES, BATCH = 530, 16  # 33 batches and a smaller one
EVEN = 528  # without that, where one function less is compiled

strategy = mk.strategy.create("parameter_server", cluster=mk.testing.local_cluster(workers=2, ps=1))
rng = np.random.default_rng(0)
x = rng.normal(size=(EXAMPLES, 6)).astype("float32")
y = rng.integers(0, 3, EXAMPLES)
split = mk.data.arrays(x, y)
train = mk.data.batches(split, global_batch_size=BATCH, shuffle=True, seed=1)


class Momentum:
    """A step whose gradient is always 1, with momentum 0.9; it takes as many seconds as its batch says."""

    def build(self, strategy):
        if not hasattr(self, "velocity"):
            with strategy.scope():
                self.velocity = tf.Variable(0.0)
            self.variables = [self.velocity]
            self.apply = mk.train.Update(strategy, self.variables, self.new_values)

    def compute(self, batch):
        slept = tf.numpy_function(lambda seconds: time.sleep(float(seconds.max())), [batch[0]], [])
        with tf.control_dependencies([slept]):
            return {"gradient": tf.constant(1.0), "n": tf.cast(tf.shape(batch[0])[0], tf.float32)}

    def new_values(self, sums, values):
        return [0.9 * values[0] + sums["gradient"]], {"n": sums["n"]}

    def update(self, strategy, sums):
        return self.apply(sums)


def momentum():
    step = Momentum()
    loop = mk.train.Loop(strategy, step, steps_per_call=8)
    for first in (0.0, 1.0):  # the first fit compiles; in the second, one worker sleeps while the other makes all steps
        step.build(strategy)
        step.velocity.assign(0.0)
        seconds = np.array([first] + 7 * [0.0], "float32")
        loop.fit(mk.data.batches(mk.data.arrays(seconds, seconds), global_batch_size=1), epochs=1, verbose=0)
    return float(step.velocity.numpy())


def make():
    with strategy.scope():
        hidden = [keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization()]
        model = keras.Sequential([keras.Input((6,)), *hidden, keras.layers.Dense(3)])
        optimizer = keras.optimizers.SGD(0.02, momentum=0.5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"])
    return step, mk.train.Loop(strategy, step)


class Log(keras.callbacks.Callback):
    """Which hooks came."""

    def __init__(self):
        super().__init__()
        self.epochs, self.batches, self.position = [], [], None

    def set_loop(self, loop):
        self.loop = loop

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append((epoch, sorted(logs)))

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)
        done = int(self.loop.step.optimizer.iterations.value.numpy())
        assert done == self.loop.position.steps, "outside of a call no worker is at work"


made = {}  # the loop of `fit`, which later sections go on with


def warm_up():
    step, loop = made["step"], made["loop"] = make()
    before = [v.value.numpy() for v in step.variables]
    loop.warm_up(train)
    made["traces"] = len(loop._passes.calls._traces)
    after = [v.value.numpy() for v in step.variables]
    return {"changes_nothing": all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))}


def fit():
    step, loop = made["step"], made["loop"]
    log, told = Log(), []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("mirrorkit").addHandler(handler)
    report = loop.fit(train, epochs=3, validation_data=train, callbacks=[log], verbose=0)
    return {
        "told": told,
        "new_traces": len(loop._passes.calls._traces) - made["traces"],
        "iterations": int(step.optimizer.iterations.value.numpy()),
        "position": [loop.position.epoch, loop.position.steps],
        "epochs": log.epochs,
        "batches": log.batches,
        "history": report.history,
        "examples": [epoch.examples for epoch in report.epochs],
        "val_loss": loop.evaluate(train)["loss"],
    }


def evaluate():
    step, loop = made["step"], made["loop"]
    outputs = step.model(x, training=False).numpy()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    resident = mk.data.resident(split, global_batch_size=BATCH)
    return {
        "by_hand": {"loss": float(loss(y, outputs)), "accuracy": float(np.mean(outputs.argmax(1) == y))},
        "on_workers": loop.evaluate(train),
        "resident_on_workers": loop.evaluate(resident),
        "sent": loop.evaluate(tf.data.Dataset.from_tensor_slices((x, y)).batch(100)),
    }


def predict():
    step, loop = made["step"], made["loop"]
    unshuffled = mk.data.batches(split, global_batch_size=BATCH)
    return float(np.abs(loop.predict(unshuffled) - step.model(x, training=False).numpy()).max())


def checkpoints():
    with tempfile.TemporaryDirectory() as folder:
        step, loop = made["step"], made["loop"]
        before = int(step.optimizer.iterations.value.numpy())
        loop.position = mk.train.Position()
        loop.fit(train, epochs=2, callbacks=[mk.train.Checkpoints(folder, every=10)], verbose=0)
        weights = [v.value.numpy() for v in step.variables]
        again, loop = make()
        position = loop.restore(folder)
        restored = [position.epoch, position.steps]
        pairs = zip(weights, again.variables, strict=True)
        error = float(max(np.abs(a - v.value.numpy()).max() for a, v in pairs))
        loop.fit(train, epochs=3, verbose=0)
        iterations = int(again.optimizer.iterations.value.numpy()) - before
        return {"restored": restored, "error": error, "gone_on": iterations}


def non_finite():
    bad = y[:EVEN].astype("float32")
    bad[16 * 20 + 3] = np.nan
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.0)
    step = mk.train.Step(model, optimizer, loss="mse")
    try:
        mk.train.Loop(strategy, step).fit(
            mk.data.batches(mk.data.arrays(x[:EVEN], bad), global_batch_size=16), verbose=0
        )
    except NonFiniteLossError as error:
        return [error.step, error.epoch, error.batch]


def hidden():
    holes = x[:EVEN].copy()
    holes[16 * 20 + 3, 0] = np.nan  # as a ReLU does on some processors, a layer makes 0 of it
    with strategy.scope():
        hide = keras.layers.Lambda(lambda h: tf.where(tf.math.is_nan(h), 0.0, h))
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, name="first"), hide, keras.layers.Dense(1)])
        step = mk.train.Step(model, keras.optimizers.SGD(0.01), loss="mse")
    try:
        data = mk.data.batches(mk.data.arrays(holes, y[:EVEN].astype("float32")), global_batch_size=16)
        mk.train.Loop(strategy, step).fit(data, verbose=0)
    except NonFiniteLossError as error:
        return [error.variable, error.epoch]


def draws():
    found = all_draws(strategy)
    assert_distinct(found)
    try:
        state_after(strategy)
    except StepError as error:
        return str(error)


FAST = (momentum, warm_up, fit, evaluate, predict)  # a step of the user, and one loop
SLOW = (*FAST, checkpoints, non_finite, hidden, draws)
run(*(SLOW if "SLOW_SECTIONS" in os.environ else FAST))
