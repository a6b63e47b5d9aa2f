"""Kinds of work that people have: a model, examples drawn at random, and sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

L = keras.layers
USERS, ITEMS, FEATURES = 1_000_000, 200_000, 32  # rows and columns of the recommender's tables
ZIPF = 1.0  # ids: the probability of the row of rank r is proportional to r ** -ZIPF
WORDS, LENGTH, CLASSES, SIDE = 10_000, 64, 10, 64
BINARY, SPARSE = "binary_crossentropy", "sparse_categorical_crossentropy"


@dataclass(frozen=True)
class Kind:
    """A kind of work.

    Attributes:
        what: the words of the documentation.
        model: makes it; its last layer returns probabilities.
        inputs: draws those of so many examples, an array or a dict of arrays.
        batch: examples of a global batch.
        steps: of an epoch: 20, or fewer of long ones. At its end `Loop` reads all weights and slots once, to see a NaN.
        loss: the name of Keras's.
        batches: how many different ones there are; they come again and again.
        policy: Keras's dtype policy.
    """

    what: str
    model: Callable[[], keras.Model]
    inputs: Callable[[np.random.Generator, int], Any]
    batch: int
    steps: int
    loss: str = SPARSE
    batches: int = 16
    policy: str = "float32"

    def dataset(self) -> tf.data.Dataset:
        """Return global batches without an end, cut beforehand, so that making them takes next to no time."""
        rng, count = np.random.default_rng(0), self.batches * self.batch
        examples = self.inputs(rng, count), rng.integers(0, 2 if self.loss == BINARY else CLASSES, count)
        cut = tf.nest.map_structure(lambda a: a.reshape(self.batches, self.batch, *a.shape[1:]), examples)
        return tf.data.Dataset.from_tensor_slices(cut).repeat().prefetch(tf.data.AUTOTUNE)


def zipf(rng: np.random.Generator, shape: Any, rows: int) -> np.ndarray:
    """Draw ranks by Zipf's law and map them to rows in random order: popular rows lie anywhere in a table."""
    shares = np.cumsum(np.arange(1, rows + 1, dtype="float64") ** -ZIPF)
    ranks = np.searchsorted(shares, rng.random(shape) * shares[-1], side="right")
    return rng.permutation(rows)[ranks].astype("int32")


def pairs_of_ids(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    return {name: zipf(rng, (count, 1), rows) for name, rows in (("user", USERS), ("item", ITEMS))}


def words(rng: np.random.Generator, count: int) -> np.ndarray:
    return zipf(rng, (count, LENGTH), WORDS)


def numbers(*shape: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, count: rng.random((count, *shape), dtype="float32")


def recommender() -> keras.Model:
    """A row of each table, and a small MLP over both."""
    ids = {name: keras.Input((1,), dtype="int32", name=name) for name in ("user", "item")}
    rows = [L.Flatten()(L.Embedding(n, FEATURES)(ids[name])) for name, n in (("user", USERS), ("item", ITEMS))]
    return keras.Model(ids, L.Dense(1, "sigmoid")(L.Dense(64, "relu")(L.Concatenate()(rows))))


def mlp(inputs: int, units: list[int], outputs: int, last: str) -> keras.Model:
    hidden = [L.Dense(n, "relu") for n in units]
    return keras.Sequential([keras.Input((inputs,)), *hidden, L.Dense(outputs, last)])


def transformer() -> keras.Model:
    """Two blocks of attention over words."""
    ids = keras.Input((LENGTH,), dtype="int32")
    x = L.Embedding(WORDS, 64)(ids)
    for _ in range(2):
        x = L.LayerNormalization()(x + L.MultiHeadAttention(4, 16, dropout=0.1)(x, x))
        x = L.LayerNormalization()(x + L.Dropout(0.1)(L.Dense(64)(L.Dense(128, "gelu")(x))))
    return keras.Model(ids, L.Dense(CLASSES, "softmax")(L.GlobalAveragePooling1D()(x)))


def lstm() -> keras.Model:
    layers = [L.Embedding(WORDS, 64), L.LSTM(64), L.Dense(CLASSES, "softmax")]
    return keras.Sequential([keras.Input((LENGTH,), dtype="int32"), *layers])


def application(name: str) -> keras.Model:
    """A model of keras.applications, with random weights."""
    return getattr(keras.applications, name)(weights=None, classes=CLASSES, input_shape=(SIDE, SIDE, 3))


def convolutions(synchronized: bool, layers: int = 20) -> keras.Model:
    """So many convolutions in three stages, each with BatchNormalization behind it."""
    pictures = x = keras.Input((32, 32, 3))
    stages = [3 * number // layers for number in range(layers)]
    for stage, before in zip(stages, [0, *stages], strict=False):
        x = L.Conv2D(16 * 2**stage, 3, 2 if stage > before else 1, padding="same", use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization(synchronized=synchronized)(x))
    return keras.Model(pictures, L.Dense(CLASSES, "softmax")(L.GlobalAveragePooling2D()(x)))


PAIRS = f"tables of {USERS:,} x {FEATURES} and {ITEMS:,} x {FEATURES}, an MLP of 64 units"
ROWS = f"{FEATURES} columns, an MLP of 2 x 128 units"
WEIGHTS = "an MLP of 5 x 2,048 units, 21 M weights"
BLOCKS = f"2 blocks of attention, width 64, over {LENGTH} words"
PICTURES = f"images of {SIDE} x {SIDE}"
tabular, large = partial(mlp, FEATURES, [128] * 2, 1, "sigmoid"), partial(mlp, 2048, [2048] * 5, CLASSES, "softmax")
KINDS = {
    "recommender": Kind(PAIRS, recommender, pairs_of_ids, 1024, 20, loss=BINARY, batches=64),
    "tabular": Kind(ROWS, tabular, numbers(FEATURES), 256, 500, loss=BINARY),
    "transformer": Kind(BLOCKS, transformer, words, 64, 20),
    "lstm": Kind(f"64 units, over {LENGTH} words", lstm, words, 64, 20),
    "mlp-21m": Kind(WEIGHTS, large, numbers(2048), 128, 20),
    "mobilenet-v2": Kind(PICTURES, partial(application, "MobileNetV2"), numbers(SIDE, SIDE, 3), 32, 20),
    "resnet-50": Kind(PICTURES, partial(application, "ResNet50"), numbers(SIDE, SIDE, 3), 32, 5),
}
BATCH_NORM = {
    name: Kind("20 convolutions", partial(convolutions, name == "synchronized"), numbers(32, 32, 3), 64, 10)
    for name in ("synchronized", "plain")
}


def of_the_zoo(name: str, *shape: int) -> Kind:
    """One of mirrorkit's models, which return logits."""

    def model() -> keras.Model:
        import mirrorkit as mk

        logits = mk.models.create(name)
        return keras.Model(logits.inputs, L.Softmax()(logits.outputs[0]))

    return Kind(f"mirrorkit's {name}", model, numbers(*shape), 64, 3)


LAYERS = (8, 16, 32, 64)
FIRST = {"mnist_cnn": of_the_zoo("mnist_cnn", 28, 28, 1), "resnet20": of_the_zoo("resnet20", 32, 32, 3)}
DEPTHS = {  # of first_update.py
    f"{name}, {layers}": Kind(
        f"{layers} convolutions", partial(convolutions, name == "synchronized", layers), numbers(32, 32, 3), 64, 3
    )
    for name in BATCH_NORM
    for layers in LAYERS
}
