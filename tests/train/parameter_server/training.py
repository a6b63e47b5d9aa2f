"""The same script in every task: trains with checkpoints, and says where it is.

Arguments: the folder, the number of epochs (for ever), and the seconds of a pause after each call (0.2).
"""

from __future__ import annotations

import sys
import time

import keras
import numpy as np

import mirrorkit as mk

folder, epochs, pause = sys.argv[1], int((sys.argv[2:] or [1000])[0]), float((sys.argv[3:] or [0.2])[0])
strategy = mk.strategy.create("auto", start_timeout=60)

rng = np.random.default_rng(0)
x = rng.normal(size=(640, 8)).astype("float32")
y = (x @ rng.normal(size=(8, 1))).astype("float32")
data = mk.data.batches(mk.data.arrays(x, y), global_batch_size=16, shuffle=True)
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.02)
loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"), steps_per_call=10)


class Pace(keras.callbacks.Callback):
    """Leave time to kill something, and say that it can be done now."""

    def on_epoch_begin(self, epoch, logs=None):
        updates = int(optimizer.iterations.value.numpy())
        print("epoch", epoch, "at step", loop.position.steps, "updates", updates, flush=True)

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(pause)


callbacks = [mk.train.Checkpoints(folder, every=10), Pace()]
report = loop.fit(data, epochs=epochs, callbacks=callbacks, verbose=0)
print("done", loop.position.steps, int(optimizer.iterations.value.numpy()), report.history["loss"][-1], flush=True)
