"""NaN watch: when the loss is no longer finite, the error names the batch, the replica's part and the layer.

Run: python examples/by_feature/nan_watch.py
Prints the error for a NaN in the data and for a layer that overflows, and that the weights are as before the bad step.
"""

import keras
import numpy as np

import mirrorkit as mk

strategy = mk.strategy.create("mirrored", devices="cpu:2")
rng = np.random.default_rng(0)
x = rng.normal(size=(640, 8)).astype("float32")
x_bad = x.copy()
x_bad[300] = np.nan  # one of the rows of batch 4
y = x.sum(axis=1, keepdims=True)


def train(inputs, learning_rate):
    keras.utils.set_random_seed(0)
    data = mk.data.batches(mk.data.arrays(inputs, y), global_batch_size=64)
    with strategy.scope():
        layers = [keras.layers.Dense(16, "exponential", name="hidden"), keras.layers.Dense(1, name="output")]
        model, optimizer = keras.Sequential([keras.Input([8]), *layers]), keras.optimizers.SGD(learning_rate)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
    try:
        loop.fit(data, epochs=20, callbacks=[mk.checks.NanWatch()], verbose=0)
    except mk.errors.NonFiniteLossError as error:
        print(f"epoch {error.epoch}: {str(error).partition('The first number that is not finite ')[2]}")
    print("weights still finite:", all(np.isfinite(weight).all() for weight in model.get_weights()))


train(x_bad, learning_rate=0.01)
train(x, learning_rate=1.0)  # too high: the hidden layer overflows
