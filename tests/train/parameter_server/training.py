"""The same script in every task: trains with checkpoints, and says where it is. Arguments: folder, epochs, seconds."""

from __future__ import annotations

import sys
import time

import keras
import numpy as np

import mirrorkit as mk

folder, epochs, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
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
        print("epoch", epoch, "at step", loop.position.steps, flush=True)

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(pause)


report = loop.fit(data, epochs=epochs, callbacks=[mk.train.Checkpoints(folder, every=10), Pace()], verbose=0)
print("done", loop.position.steps, int(optimizer.iterations.value.numpy()), report.history["loss"][-1], flush=True)
