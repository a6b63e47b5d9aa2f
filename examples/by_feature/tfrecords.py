"""Sharded TFRecord files: write a data set once, from a generator, then train on more than fits into memory.

Run: python examples/by_feature/tfrecords.py
Prints the files, that a shuffled epoch holds every example once, and that the order of an epoch can be repeated from
any step on. So a run can resume in the middle of an epoch without reading the batches before that again.
"""

import tempfile
from pathlib import Path

import keras
import numpy as np

import mirrorkit as mk

strategy = mk.strategy.create("mirrored", devices="cpu:2")


def examples():  # one at a time: the set is never in memory as a whole
    rng = np.random.default_rng(0)
    for number in range(1000):
        yield rng.normal(size=4).astype("float32"), np.float32([number])


with tempfile.TemporaryDirectory() as folder:
    mk.data.write_records(examples(), folder, num_files=4, prefix="train")
    print("files:", *sorted(path.name for path in Path(folder).glob("*.tfrecord")))

    train = mk.data.records(folder, global_batch_size=100, shuffle=True, seed=0)
    epoch = [y.numpy()[:, 0].astype(int).tolist() for _, y in train.dataset(epoch=0)]
    print("first batch:", *epoch[0][:8], "...")
    print("every example once:", sorted(number for batch in epoch for number in batch) == list(range(1000)))
    later = [y.numpy()[:, 0].astype(int).tolist() for _, y in train.dataset(epoch=0, start=7)]
    print("from step 7 on, the same batches:", later == epoch[7:])

    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.1)
    report = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse")).fit(train, epochs=2, verbose=0)
    print(report.epochs[0].steps, "steps,", report.epochs[0].examples, "examples in an epoch")
