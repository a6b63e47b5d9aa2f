"""A two-tower recommender: large embedding tables, of which each batch looks up few rows.

Users and items are drawn by Zipf's law: the k-th most popular has a probability proportional to 1/k. Each has one of
two hidden tastes. A user likes an item of the same taste with probability 4/5, and other items with probability 1/5.
With Adagrad or SGD a step updates only the rows that its batch looks up; with Adam all rows change
(docs/large-tables.md).

Run: python examples/recommender.py --devices cpu:2
     python -m mirrorkit launch --workers 2 examples/recommender.py --epochs 1
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
from keras import layers as L

import mirrorkit as mk

OPTIMIZERS = {
    "adagrad": lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=1e-6),
    "sgd": lambda: keras.optimizers.SGD(10.0),
    "adam": lambda: keras.optimizers.Adam(0.005),
}


def zipf(rng, count, size):
    """Draw numbers below `size`; popular ones lie anywhere, as ids do."""
    shares = np.cumsum(1 / np.arange(1, size + 1))
    return rng.permutation(size)[np.searchsorted(shares, rng.random(count) * shares[-1])].astype("int32")


def visits(count, sizes, seed=0):
    """Return ids of users and items, by name, and whether the user liked the item."""
    rng = np.random.default_rng(seed)
    ids = {name: zipf(rng, count, size) for name, size in sizes.items()}
    user, item = (rng.integers(2, size=size)[ids[name]] for name, size in sizes.items())
    return ids, (rng.random(count) < np.where(user == item, 0.8, 0.2)).astype("float32")


def towers(sizes):
    ids = {name: keras.Input((), dtype="int32", name=name) for name in sizes}
    start = keras.initializers.RandomNormal(stddev=0.3)  # products of smaller vectors would hardly move
    both = [L.Embedding(size, 16, start.clone(), name=f"{name}s")(ids[name]) for name, size in sizes.items()]
    return keras.Model(ids, L.Add()([L.Dot(axes=1)(both), L.Dense(1)(L.Concatenate()(both))]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="auto", help="as in mk.strategy.create; auto detects a cluster")
    parser.add_argument("--devices", help="cpu:4, gpu, gpu:2, ...; default: all GPUs, or the CPU")
    for name, number in (("users", 100_000), ("items", 20_000), ("visits", 1_000_000), ("epochs", 3)):
        parser.add_argument(f"--{name}", type=int, default=number, help=f"default: {number:,}")
    parser.add_argument("--optimizer", default="adagrad", choices=OPTIMIZERS)
    parser.add_argument("--lazy", action="store_true", help="update only rows that were looked up, with any optimizer")
    parser.add_argument("--batch-size", type=int, default=1024, help="global batch size, over all replicas")
    options = parser.parse_args()

    keras.utils.set_random_seed(0)
    strategy = mk.strategy.create(options.strategy, devices=options.devices)
    sizes = {"user": options.users, "item": options.items}
    known = mk.data.arrays(*visits(options.visits, sizes))
    held_out = options.visits // 10
    train = mk.data.batches(known[held_out:], global_batch_size=options.batch_size, shuffle=True, seed=0)
    test = mk.data.batches(known[:held_out], global_batch_size=options.batch_size)
    with strategy.scope():
        model, optimizer = towers(sizes), OPTIMIZERS[options.optimizer]()
    loss, auc = keras.losses.BinaryCrossentropy(from_logits=True), keras.metrics.AUC(from_logits=True, name="auc")
    how = "lazy" if options.lazy else "auto"
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss, metrics=[auc], sparse_embeddings=how))
    report = loop.fit(train, epochs=options.epochs)
    print(f"{mk.strategy.describe(strategy)}: {report.summary()}")
    print(f"AUC on other visits {loop.evaluate(test)['auc']:.4f}")


if __name__ == "__main__":
    main()
