"""A step of your own: least squares by gradient descent, with `compute` on each replica and one `update` of the sums.

Run: python examples/by_feature/custom_step.py
Prints how much the weights differ from those of the same steps in NumPy, on one and on two replicas: only by rounding.
"""

import numpy as np
import tensorflow as tf

import mirrorkit as mk


class LeastSquares:
    """`Loop` trains with any object that has `build`, `compute` and `update`."""

    def build(self, strategy):  # may be called more than once
        if not hasattr(self, "variables"):
            with strategy.scope():
                self.variables = [tf.Variable(tf.zeros([3, 1]))]
            self.apply = mk.train.Update(strategy, self.variables, self.new_values)

    def compute(self, batch):  # on each replica, of its own rows: sums, never means
        x, y = batch
        error = x @ self.variables[0] - y
        rows = tf.cast(tf.shape(x)[0], tf.float32)
        return {"gradient": tf.matmul(x, error, transpose_a=True), "loss": tf.reduce_sum(error**2), "rows": rows}

    def update(self, strategy, sums):  # adds the sums of all replicas up, then calls new_values once
        return self.apply(sums)

    def new_values(self, sums, values):
        return [values[0] - 0.5 * sums["gradient"] / sums["rows"]], {"loss": sums["loss"] / sums["rows"]}


strategies = mk.strategy.create("mirrored", devices="cpu:2"), mk.strategy.create("one_device", devices="cpu:1")
rng = np.random.default_rng(0)
x = rng.normal(size=(1000, 3)).astype("float32")
y = (x @ [[1], [2], [3]] + rng.normal(size=(1000, 1))).astype("float32")

expected = np.zeros([3, 1])
for _ in range(5):
    expected -= 0.5 * x.T @ (x @ expected - y) / len(x)
print("NumPy's weights:", expected[:, 0].round(4))

for strategy in strategies:
    step = LeastSquares()
    data = mk.data.batches(mk.data.arrays(x, y), global_batch_size=1000)
    mk.train.Loop(strategy, step).fit(data, epochs=5, verbose=0)
    weights = step.variables[0].numpy()
    print(f"{mk.strategy.describe(strategy)}: {np.max(np.abs(weights - expected)):.0e} from NumPy's")
