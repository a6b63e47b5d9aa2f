"""Nets of tables: preprocessing layers, recommenders, several inputs and outputs, weights of examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
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


def pairs(rng: np.random.Generator, count: int) -> Rows:
    a, b = rng.normal(size=(count, 3)).astype("float32"), rng.normal(size=(count, 2)).astype("float32")
    return (a, b), (a.sum(1) * b.sum(1))[:, None]


def two_targets(rng: np.random.Generator, count: int) -> Rows:
    x, y = regression(rng, count)
    return x, {"size": y, "sign": (y[:, 0] > 0).astype("int64")}


def nested_targets(rng: np.random.Generator, count: int) -> Rows:
    x, y = regression(rng, count)
    return x, {"heads": {"size": y, "half": y / 2}, "sum": x.sum(1, keepdims=True)}


def tuple_targets(rng: np.random.Generator, count: int) -> Rows:
    x, y = regression(rng, count)
    return x, (y, x.sum(1, keepdims=True))


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


class Factors(keras.Model):
    """Matrix factorization: a vector and a bias for each user and item."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = L.Embedding(USERS, 4), L.Embedding(ITEMS, 4)
        self.user_bias, self.item_bias = L.Embedding(USERS, 1), L.Embedding(ITEMS, 1)
        self({"user": tf.zeros((1, 1), "int64"), "item": tf.zeros((1, 1), "int64")})

    def call(self, x: Any) -> Any:
        user, item = x["user"][:, 0], x["item"][:, 0]
        affinity = keras.ops.sum(self.users(user) * self.items(item), axis=-1, keepdims=True)
        return affinity + self.user_bias(user) + self.item_bias(item)


def two_towers(users: int = USERS, items: int = ITEMS) -> Any:
    user, item, age = (keras.Input((1,), name=n, dtype=d) for n, d in
                       (("user", "int64"), ("item", "int64"), ("age", "float32")))  # fmt: skip
    query = L.Concatenate()([L.Flatten()(L.Embedding(users, 4)(user)), L.Rescaling(1 / 80)(age)])
    query = L.Dense(4)(L.Dense(8, "tanh")(query))
    candidate = L.Dense(4)(L.Dense(8, "tanh")(L.Flatten()(L.Embedding(items, 4)(item))))
    return keras.Model({"user": user, "item": item, "age": age}, L.Dot(1)([query, candidate]))


def pair_net() -> Any:
    a, b = keras.Input((3,)), keras.Input((2,))
    return keras.Model((a, b), L.Dense(1)(L.Multiply()([L.Dense(5, "tanh")(a), L.Dense(5, "tanh")(b)])))


def two_heads() -> Any:
    inputs = keras.Input((4,))
    hidden = L.Dense(6, "tanh")(inputs)
    return keras.Model(inputs, {"size": L.Dense(1)(hidden), "sign": L.Dense(2)(hidden)})


def nested_heads() -> Any:
    inputs = keras.Input((4,))
    hidden = L.Dense(6, "tanh")(inputs)
    heads = {"size": L.Dense(1)(hidden), "half": L.Dense(1)(hidden)}
    return keras.Model(inputs, {"heads": heads, "sum": L.Dense(1)(hidden)})


def tuple_heads() -> Any:
    inputs = keras.Input((4,))
    hidden = L.Dense(6, "tanh")(inputs)
    return keras.Model(inputs, (L.Dense(1, name="a")(hidden), L.Dense(1, name="b")(hidden)))


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
    Fit(name="matrix factorization", data=split(ratings), model=Factors, optimizer=lambda: _o.SGD(0.5)),
    *map(recommender, _of_large_tables),
    Fit(name="two inputs as a tuple", data=split(pairs), model=pair_net, optimizer=lambda: _o.Adam(0.02)),
    Fit(
        name="two outputs, loss weights, a metric of one",
        data=split(two_targets),
        model=two_heads,
        optimizer=lambda: _o.Adam(0.02),
        loss=lambda: {"size": keras.losses.Huber(), "sign": logits()},
        metrics=lambda: {"sign": ["accuracy"]},
        compiled={"loss_weights": {"size": 1.0, "sign": 0.3}},
    ),
    Fit(
        name="nested outputs, a loss for all",
        data=split(nested_targets),
        model=nested_heads,
    ),
    Fit(
        name="a tuple of outputs, a loss for all",
        data=split(tuple_targets),
        model=tuple_heads,
    ),
    Fit(
        name="a masked output beside another",
        data=split(tags_and_text),
        model=two_readings,
        optimizer=lambda: _o.SGD(0.3),
        loss=lambda: {"tag": logits(), "text": logits()},
    ),
]
