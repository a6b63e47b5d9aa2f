"""A model that is already compiled: `Step.from_compiled` takes over its optimizer, losses and metrics.

Run: python examples/by_feature/compiled_model.py
Prints the history of Keras's `fit` on one device and that of `Loop` on two replicas: the same names and numbers.
"""

import keras
import numpy as np

import mirrorkit as mk

strategy = mk.strategy.create("mirrored", devices="cpu:2")
digits = mk.data.synthetic(train=2000, test=500)
train = mk.data.batches(digits.train, global_batch_size=100, shuffle=True, seed=0)


def compiled():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(32, "tanh")]
    model = keras.Sequential([keras.Input([28, 28, 1]), *layers, keras.layers.Dense(10, "softmax")])
    model.compile(keras.optimizers.SGD(0.1), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


alone = compiled()
dataset = train.epochs(3)  # all epochs in one dataset, each in an order of its own
length = {"epochs": 3, "steps_per_epoch": train.steps_per_epoch, "shuffle": False}
expected = alone.fit(dataset, verbose=0, **length).history

with strategy.scope():
    model = compiled()
loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
history = loop.fit(train, epochs=3, verbose=0).history

for name, values in history.items():
    print(f"{name:8} of fit, one device:    ", np.round(expected[name], 4))
    print(f"{name:8} of Loop, two replicas: ", np.round(values, 4))
pairs = zip(alone.get_weights(), model.get_weights(), strict=True)
print(f"largest difference of the weights: {max(np.max(np.abs(a - b)) for a, b in pairs):.0e}")
