"""Your own NumPy arrays: two inputs by name and a regression target, trained on two replicas.

Run: python examples/by_feature/numpy_arrays.py
Prints the learned weights, whose true values are known here, and the error for arrays of different lengths.
"""

import keras
import numpy as np

import mirrorkit as mk

strategy = mk.strategy.create("mirrored", devices="cpu:2")

rng = np.random.default_rng(0)
left, right = rng.normal(size=(2, 1000, 1)).astype("float32")
target = 2 * left - 3 * right
rows = mk.data.arrays({"left": left, "right": right}, target)
train = mk.data.batches(rows, global_batch_size=50, shuffle=True, seed=0)
in_order = mk.data.batches(rows, global_batch_size=500)

with strategy.scope():
    inputs = {name: keras.Input([1], name=name) for name in ("left", "right")}
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()([inputs["left"], inputs["right"]]))
    model, optimizer = keras.Model(inputs, outputs), keras.optimizers.SGD(0.1)
loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))
loop.fit(train, epochs=5, verbose=0)

print("learned:", np.round(model.get_weights()[0][:, 0], 3))  # of 2 and -3
predictions = loop.predict(in_order)  # row by row, gathered from both replicas
print("largest error of 1,000 predictions:", f"{np.max(np.abs(predictions - target)):.0e}")
try:
    mk.data.arrays({"left": left, "right": right[:999]}, target)
except mk.errors.DataError as error:
    print("refused:", error)
