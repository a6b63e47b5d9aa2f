"""Nets of tables: preprocessing layers, recommenders, several inputs and outputs, weights of examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from entries import EPOCHS, Fit, Rows, Script, Trained, batched, dense, logits, net, split
from nets_dense import regression
from nets_sequences import SUMMED, summed_rows, texts

import mirrorkit as mk
from mirrorkit._keras import keras

L, _o = keras.layers, keras.optimizers
USERS, ITEMS = 10, 14


def houses(rng: np.random.Generator, count: int) -> Rows:
    area, rooms, town = rng.uniform(30, 200, count), rng.integers(1, 6, count), rng.integers(0, 5, count)
    x = {"area": area[:, None].astype("float32"), "rooms": rooms[:, None], "town": town[:, None]}
    return x, (area / 100 + 0.3 * rooms - 0.2 * town)[:, None].astype("float32")


def ratings(rng: np.random.Generator, count: int) -> Rows:
    user, item = rng.integers(0, USERS, count), rng.integers(0, ITEMS, count)
    return {"user": user[:, None], "item": item[:, None]}, (np.sin(user) + np.cos(item))[:, None].astype("float32")


def clicks(rng: np.random.Generator, count: int) -> Rows:
    """A user, the item that was clicked and one that was not; and whether a pair of them is the former."""
    x, _ = ratings(rng, count)
    age = rng.uniform(18, 80, (count, 1)).astype("float32")
    return {**x, "age": age}, ((x["user"] + x["item"]) % 3 == 0).astype("float32")


def nested_targets(rng: np.random.Generator, count: int) -> Rows:
    x, y = regression(rng, count)
    return x, {"heads": {"size": y, "half": y / 2}, "sum": x.sum(1, keepdims=True)}


def colours(rng: np.random.Generator, count: int) -> Rows:
    number = rng.integers(0, 4, count)
    return np.array(["red", "green", "blue", "pink"])[number], (number % 3)


def price_net() -> Any:
    train, _ = split(houses)()
    area, rooms, town = (keras.Input((1,), name=n, dtype=d) for n, d in
                         (("area", "float32"), ("rooms", "int64"), ("town", "int64")))  # fmt: skip
    normal = L.Normalization()
    normal.adapt(train[0]["area"])
    parts = [normal(area), L.CategoryEncoding(6, "one_hot")(rooms), L.CategoryEncoding(5, "multi_hot")(town)]
    hidden = L.Dense(6, "tanh")(L.Concatenate()(parts))
    return keras.Model({"area": area, "rooms": rooms, "town": town}, L.Dense(1)(hidden))


def wide_and_deep() -> Any:
    user, item = keras.Input((1,), name="user", dtype="int64"), keras.Input((1,), name="item", dtype="int64")
    crossed = L.HashedCrossing(16, output_mode="one_hot")((user, item))
    hashed = L.Hashing(8, output_mode="multi_hot")(item)
    wide = L.Dense(1, use_bias=False)(L.Concatenate()([crossed, hashed]))
    deep = L.Concatenate()([L.Flatten()(L.Embedding(USERS, 3)(user)), L.Flatten()(L.Embedding(ITEMS, 3)(item))])
    return keras.Model({"user": user, "item": item}, wide + L.Dense(1)(L.Dense(8, "tanh")(deep)))


def two_towers(users: int = USERS, items: int = ITEMS) -> Any:
    user, item, age = (keras.Input((1,), name=n, dtype=d) for n, d in
                       (("user", "int64"), ("item", "int64"), ("age", "float32")))  # fmt: skip
    query = L.Concatenate()([L.Flatten()(L.Embedding(users, 4)(user)), L.Rescaling(1 / 80)(age)])
    query = L.Dense(4)(L.Dense(8, "tanh")(query))
    candidate = L.Dense(4)(L.Dense(8, "tanh")(L.Flatten()(L.Embedding(items, 4)(item))))
    return keras.Model({"user": user, "item": item, "age": age}, L.Dot(1)([query, candidate]))


def nested_heads() -> Any:
    inputs = keras.Input((4,))
    hidden = L.Dense(6, "tanh")(inputs)
    heads = {"size": L.Dense(1)(hidden), "half": L.Dense(1)(hidden)}
    return keras.Model(inputs, {"heads": heads, "sum": L.Dense(1)(hidden)})


def two_readings() -> Any:
    words = keras.Input((6,), dtype="int32")
    x = L.GRU(4, return_sequences=True)(L.Embedding(12, 4, mask_zero=True)(words))
    return keras.Model(words, {"tag": L.Dense(3)(x), "text": L.Dense(3)(L.GlobalAveragePooling1D()(x))})


def tags_and_text(rng: np.random.Generator, count: int) -> Rows:
    x, y = texts(rng, count)
    return x, {"tag": x % 3, "text": y}


def colour_net() -> Any:
    return net(lambda: L.Embedding(5, 3), L.Flatten, dense(3), shape=(1,), dtype="int64")()


def colours_before(train: Rows, test: Rows) -> Trained:
    """The words are looked up in the pipeline, as Keras's guide has it."""
    lookup = L.StringLookup(vocabulary=["red", "green", "blue", "pink"])
    train, test = (batched(rows).map(lambda x, y: (lookup(x)[:, None], y)) for rows in (train, test))
    model = colour_net()
    model.compile(keras.optimizers.SGD(0.3), loss=logits(), metrics=["accuracy"], jit_compile=False)
    fitted = model.fit(train, epochs=EPOCHS, validation_data=test, verbose=0)
    return Trained([model], [model.optimizer], fitted.history, model.predict(test, verbose=0))


def colours_after(strategy: Any, train: Rows, test: Rows) -> Trained:
    lookup = L.StringLookup(vocabulary=["red", "green", "blue", "pink"])
    train, test = (batched(rows).map(lambda x, y: (lookup(x)[:, None], y)) for rows in (train, test))
    with strategy.scope():
        model = colour_net()
        model.compile(keras.optimizers.SGD(0.3), loss=logits(), metrics=["accuracy"], jit_compile=False)
    loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))
    fitted = loop.fit(train, epochs=EPOCHS, validation_data=test, verbose=0)
    return Trained([model], [model.optimizer], fitted.history, loop.predict(test))


_small = {"epsilon": 1e-3}  # a gradient near zero is mostly rounding, and Adam would make a whole step of it
_of_large_tables: dict[str, Callable[[], Any]] = {
    "SGD": lambda: _o.SGD(0.2),
    "momentum": lambda: _o.SGD(0.2, momentum=0.9),
    "Adagrad": lambda: _o.Adagrad(0.1),
    "Adam": lambda: _o.Adam(0.02, **_small),
    "AdamW": lambda: _o.AdamW(0.02, weight_decay=0.05, **_small),
    "Nadam": lambda: _o.Nadam(0.02, **_small),
    "Adamax": lambda: _o.Adamax(0.02, **_small),
    "Adadelta": lambda: _o.Adadelta(1.0),
    "RMSprop": lambda: _o.RMSprop(0.01, momentum=0.5, centered=True),
    "Lion": lambda: _o.Lion(0.005),
    "Ftrl, whose gradients are dense": lambda: _o.Ftrl(0.1),
    "Lamb, whose gradients are dense": lambda: _o.Lamb(0.02),
    "Adafactor, whose gradients are dense": lambda: _o.Adafactor(0.02),
}


def recommender(name: str) -> Fit:
    """Two towers whose tables are kept as rows; a batch looks up some of them several times, and most not at all."""
    of_keras = {} if name in ("SGD", "momentum") else {"reference": SUMMED, "fitting": summed_rows}
    return Fit(
        name=f"recommender, large tables: {name}",
        data=split(clicks),
        model=lambda: two_towers(users=60, items=90),
        optimizer=_of_large_tables[name],
        loss=lambda: keras.losses.BinaryCrossentropy(from_logits=True),
        large_tables=True,
        **of_keras,
    )


ENTRIES = [
    Fit(
        name="prices: Normalization, CategoryEncoding, inputs by name",
        data=split(houses),
        model=price_net,
        optimizer=lambda: _o.Adam(0.02),
        metrics=lambda: ["mae"],
    ),
    Script(name="StringLookup in the pipeline", data=split(colours), before=colours_before, after=colours_after),
    Fit(
        name="wide and deep: Hashing, HashedCrossing",
        data=split(ratings),
        model=wide_and_deep,
        optimizer=lambda: _o.SGD(0.1, momentum=0.9),
    ),
    *map(recommender, _of_large_tables),
    Fit(
        name="nested outputs, a loss for all",
        data=split(nested_targets),
        model=nested_heads,
    ),
    Fit(
        name="a masked output beside another",
        data=split(tags_and_text),
        model=two_readings,
        optimizer=lambda: _o.SGD(0.3),
        loss=lambda: {"tag": logits(), "text": logits()},
    ),
]
