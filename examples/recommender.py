"""A recommender of two towers: large tables of embeddings, of which a batch looks up few rows.

Users and items are drawn by Zipf's law: the k-th most popular of them with a probability proportional to 1/k. Each has
a hidden taste, one of two; a user likes an item of the same taste four times out of five, another once. The towers
learn a vector for each user and each item, and how well they fit is their product. With Adagrad or SGD a step updates
only the rows that its batch looks up; with Adam all rows change, in blocks (docs/large-tables.md).

Run: python examples/recommender.py --devices cpu:2 --epochs 2
     python -m mirrorkit launch --workers 2 examples/recommender.py --epochs 1
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
from keras import layers as L

import mirrorkit as mk

TASTES = 2


def zipf(rng, count, size):
    """Draw numbers below `size`; popular ones lie anywhere, as ids do."""
    shares = np.cumsum(1 / np.arange(1, size + 1))
    return rng.permutation(size)[np.searchsorted(shares, rng.random(count) * shares[-1])].astype("int32")


def visits(count, users, items, seed=0):
    """Return ids (user, item) and whether the user liked the item."""
    rng = np.random.default_rng(seed)
    tastes = [rng.integers(TASTES, size=size) for size in (users, items)]
    ids = {"user": zipf(rng, count, users), "item": zipf(rng, count, items)}
    same = tastes[0][ids["user"]] == tastes[1][ids["item"]]
    liked = rng.random(count) < np.where(same, 0.8, 0.2)
    return ids, liked.astype("float32")


def towers(users, items, width):
    ids = {name: keras.Input((), dtype="int32", name=name) for name in ("user", "item")}
    start = keras.initializers.RandomNormal(stddev=0.3, seed=0)  # products of smaller vectors would hardly move
    user, item = (
        L.Embedding(size, width, start.clone(), name=f"{name}s")(ids[name])
        for name, size in (("user", users), ("item", items))
    )
    bias = L.Dense(1)(L.Concatenate()([user, item]))
    return keras.Model(ids, L.Add()([L.Dot(axes=1)([user, item]), bias]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="auto", help="as in mk.strategy.create; auto detects a cluster")
    parser.add_argument("--devices", help="cpu:4, gpu, gpu:2, ...; default: all GPUs, or the CPU")
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--visits", type=int, default=1_000_000, help="examples of the training")
    parser.add_argument("--width", type=int, default=16, help="numbers in each vector")
    parser.add_argument("--optimizer", default="adagrad", choices=["adagrad", "sgd", "adam"])
    parser.add_argument("--lazy", action="store_true", help="update only rows that were looked up, with any optimizer")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=1024, help="global batch size, over all replicas")
    options = parser.parse_args()

    keras.utils.set_random_seed(0)
    strategy = mk.strategy.create(options.strategy, devices=options.devices)
    held_out = options.visits // 10
    ids, liked = visits(options.visits + held_out, options.users, options.items)
    known = mk.data.arrays({name: of_all[held_out:] for name, of_all in ids.items()}, liked[held_out:])
    other = mk.data.arrays({name: of_all[:held_out] for name, of_all in ids.items()}, liked[:held_out])
    train = mk.data.batches(known, global_batch_size=options.batch_size, shuffle=True, seed=0)
    test = mk.data.batches(other, global_batch_size=options.batch_size)

    make = {
        "adagrad": lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=1e-6),
        "sgd": lambda: keras.optimizers.SGD(10.0),
        "adam": lambda: keras.optimizers.Adam(0.005),
    }[options.optimizer]
    with strategy.scope():
        model = towers(options.users, options.items, options.width)
        optimizer = make()
    step = mk.train.Step(
        model,
        optimizer,
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
        sparse_embeddings="lazy" if options.lazy else "auto",
    )
    loop = mk.train.Loop(strategy, step)
    report = loop.fit(train, epochs=options.epochs)
    rows, seen = options.users + options.items, sum(len(np.unique(of_all[:1024])) for of_all in ids.values())
    print(f"{rows:,} rows of {options.width} numbers; 1,024 examples look up {seen:,}")
    print(f"{mk.strategy.describe(strategy)}: {report.summary()}")
    print(f"AUC on other visits {loop.evaluate(test)['auc']:.4f}")


if __name__ == "__main__":
    main()
