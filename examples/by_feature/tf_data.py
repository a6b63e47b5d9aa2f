"""Your own tf.data.Dataset: its batches are the global batches, and each replica takes its share of each.

Run: python examples/by_feature/tf_data.py
Prints the rows that each of two replicas gets, and that `evaluate` counts every row once, even in a smaller last batch.
"""

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk

strategy = mk.strategy.create("mirrored", devices="cpu:2")

rng = np.random.default_rng(0)
x = rng.normal(size=(1000, 4)).astype("float32")
y = (x @ [1, 2, 3, 4])[:, None].astype("float32")
rows = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda x, y: (x * 2, y))
train = rows.shuffle(1000, seed=0).batch(64).prefetch(tf.data.AUTOTUNE)  # a seed: several workers need the same order
test = rows.batch(64)

keras.utils.set_random_seed(0)
with strategy.scope():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.05)
loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse", metrics=["mae"]))
report = loop.fit(train, epochs=2, verbose=0)
print("one epoch:", report.epochs[0].steps, "steps,", report.epochs[0].examples, "rows")

for x_share, _ in mk.data.distribute(test, strategy):
    shares = [len(share) for share in strategy.experimental_local_results(x_share)]
print("the last batch on two replicas:", shares)  # 1000 = 15 * 64 + 40

by_hand = np.mean(np.abs(model(2 * x).numpy() - y))
print(f"mae of evaluate: {loop.evaluate(test)['mae']:.6f}, of NumPy over all rows: {by_hand:.6f}")
