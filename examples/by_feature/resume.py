"""Resume: a run is stopped in the middle of an epoch, restarts, and ends with the weights of an uninterrupted run.

Run: python examples/by_feature/resume.py
Prints where the run stopped, where it continued, and that the weights are equal, bit for bit.
"""

import os
import signal
import tempfile

import keras
import numpy as np

import mirrorkit as mk

mk.reproducible.enable(seed=0)  # two runs of the same steps give the same bits
strategy = mk.strategy.create("mirrored", devices="cpu:2")
digits = mk.data.synthetic(train=1000, test=100)
train = mk.data.batches(digits.train, global_batch_size=50, shuffle=True, seed=0)  # 20 steps in an epoch


class Preempted(keras.callbacks.Callback):
    """The scheduler takes the machine away: SIGTERM after 50 steps."""

    def on_train_batch_end(self, batch, logs=None):
        if loop.position.steps == 50:
            os.kill(os.getpid(), signal.SIGTERM)


def make_loop():
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dropout(0.2)]
        model = keras.Sequential([keras.Input([28, 28, 1]), *layers, keras.layers.Dense(10)])
        optimizer = keras.optimizers.Adam(1e-3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss))


with tempfile.TemporaryDirectory() as folder:  # yours: "runs/first"
    loop = make_loop()
    try:
        loop.fit(train, epochs=4, callbacks=[mk.train.Checkpoints(folder), Preempted()], verbose=0)
    except SystemExit as stop:
        print(f"stopped after {loop.position.steps} steps, exit code {stop.code}")

    again = make_loop()  # a new process would run the same lines
    report = again.fit(train, epochs=4, callbacks=[mk.train.Checkpoints(folder)], verbose=0)
    print(f"went on for {sum(epoch.steps for epoch in report.epochs)} steps, {again.position.steps} in all")

unbroken = make_loop()
unbroken.fit(train, epochs=4, verbose=0)
pairs = zip(again.step.model.get_weights(), unbroken.step.model.get_weights(), strict=True)
print("the weights of an unbroken run:", all(np.array_equal(a, b) for a, b in pairs))
