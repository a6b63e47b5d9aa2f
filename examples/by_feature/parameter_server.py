"""Parameter servers: a table of vectors, split by rows over two servers, trained by two asynchronous workers.

Run: python examples/by_feature/parameter_server.py
Prints the shards of the table, and the error of the learned vectors. All servers and workers run in this process here;
to run each in its own process, or on a cluster, leave out `cluster=` (docs/parameter-server.md).
"""

import numpy as np
import tensorflow as tf

import mirrorkit as mk

ROWS, WIDTH = 10_000, 16
cluster = mk.testing.local_cluster(workers=2, ps=2)
strategy = mk.strategy.create("parameter_server", cluster=cluster)


class TableStep:
    """Each row of the table is to become the vector that the data has for its id."""

    def __init__(self, strategy):
        self.table = mk.parallel.PartitionedTable(strategy, rows=ROWS, width=WIDTH)
        self.variables = self.table.variables  # for Checkpoints

    def build(self, strategy):
        self.apply = mk.train.Update(strategy, [], lambda sums, values: ([], {"loss": sums["loss"] / sums["rows"]}))

    def compute(self, batch):  # on a worker: only the rows of these ids travel
        ids, vectors = batch
        error = self.table.lookup(ids) - vectors
        self.table.add(ids, -0.5 * error)
        return {"loss": tf.reduce_sum(tf.reduce_mean(error**2, axis=1)), "rows": tf.cast(tf.size(ids), tf.float32)}

    def update(self, strategy, sums):
        return self.apply(sums)


wanted = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("float32")
data = mk.data.batches(mk.data.arrays(np.arange(ROWS), wanted), global_batch_size=500, shuffle=True, seed=0)
step = TableStep(strategy)
loop = mk.train.Loop(strategy, step)
report = loop.fit(data, epochs=8, verbose=0)

print(mk.strategy.describe(strategy))
for shard in step.table.variables:
    print(f"{shard.name}: rows {shard.shape[0]}, on {shard.device.split('/device')[0]}")
print("loss of each epoch:", *(f"{value:.4f}" for value in report.history["loss"]))
found = np.concatenate([shard.numpy() for shard in step.table.variables])
print(f"after {loop.position.steps} steps: largest error of a vector {np.max(np.abs(found - wanted)):.3f}")
