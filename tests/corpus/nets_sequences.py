"""Nets of sequences: recurrent ones, masks, transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from entries import Fit, Rows, dense, logits, net, split

from mirrorkit._keras import keras

L, _o = keras.layers, keras.optimizers
WORDS, LENGTH = 12, 6


def series(rng: np.random.Generator, count: int) -> Rows:
    x = np.cumsum(rng.normal(size=(count, LENGTH + 1, 1)) * 0.3, axis=1).astype("float32")
    return x[:, :-1], x[:, -1]


def padded(rng: np.random.Generator, count: int) -> Rows:
    """Sequences of 2 to 6 steps, padded with zeros."""
    x = rng.normal(size=(count, LENGTH, 2)).astype("float32")
    x[np.arange(LENGTH) >= rng.integers(2, LENGTH + 1, count)[:, None]] = 0
    return x, (x.sum((1, 2)) > 0).astype("int64")


def texts(rng: np.random.Generator, count: int) -> Rows:
    """Ids of words, padded with 0; the class counts small ids."""
    x = rng.integers(1, WORDS, (count, LENGTH))
    x[np.arange(LENGTH) >= rng.integers(2, LENGTH + 1, count)[:, None]] = 0
    return x, ((x > 0) & (x < 4)).sum(1) % 3


def next_words(rng: np.random.Generator, count: int) -> Rows:
    """The word after each word; nothing is to be predicted where the text has ended."""
    x, _ = texts(rng, count)
    y = np.roll(x, -1, axis=1)
    y[:, -1] = 0
    return x, y


def tags(rng: np.random.Generator, count: int) -> Rows:
    x, _ = texts(rng, count)
    return x, x % 3


def summed_rows(optimizer: Any) -> Any:
    """The optimizer, given the gradient of an Embedding, not that of each occurrence: docs/differences.md."""

    class SummedRows(type(optimizer)):
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            return super().apply([tf.convert_to_tensor(g) for g in grads], trainable_variables)

    return SummedRows.from_config(optimizer.get_config())


class Positions(L.Layer):
    """Embedding of words and of their places."""

    def __init__(self, size: int) -> None:
        super().__init__()
        normal = keras.initializers.RandomNormal(stddev=0.5)
        self.words, self.places = (L.Embedding(count, size, normal) for count in (WORDS, LENGTH))

    def build(self, shape: Any) -> None:
        self.words.build(shape)
        self.places.build(shape)

    def call(self, x: Any) -> Any:
        return self.words(x) + self.places(keras.ops.arange(LENGTH))


def transformer(outputs: int, *, causal: bool) -> Any:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = Positions(8)(inputs)
    normal = L.LayerNormalization()(x)
    x = x + L.MultiHeadAttention(2, 4)(normal, normal, use_causal_mask=causal)
    x = x + L.Dense(8)(L.Dense(16, "gelu")(L.LayerNormalization()(x)))
    x = L.LayerNormalization()(x)
    return keras.Model(inputs, L.Dense(outputs)(x if causal else L.GlobalAveragePooling1D()(x)))


def tied_model() -> Any:
    """The output layer is the Embedding, transposed."""
    embedding = L.Embedding(WORDS, 6)
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = L.Dense(6, "tanh")(embedding(inputs))
    return keras.Model(inputs, Tied(embedding)(x))


class Tied(L.Layer):
    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.embedding, self.built = embedding, True

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, keras.ops.transpose(self.embedding.embeddings))


SUMMED = "`fit` with an optimizer that sees the gradient of an Embedding ([why](differences.md#embedding))"
_words = {"shape": (LENGTH,), "dtype": "int32"}
ENTRIES = [
    Fit(
        name="LSTM on masked sequences",
        data=split(padded),
        model=net(L.Masking, lambda: L.LSTM(5), dense(2), shape=(LENGTH, 2)),
        optimizer=lambda: _o.Adam(0.01),
        loss=logits,
        metrics=lambda: ["accuracy"],
    ),
    Fit(
        name="bidirectional GRU",
        data=split(series),
        model=net(lambda: L.Bidirectional(L.GRU(3)), dense(1), shape=(LENGTH, 1)),
        optimizer=lambda: _o.RMSprop(0.01),
    ),
    Fit(
        name="bag of words: Embedding, mean under a mask, SGD",
        data=split(texts),
        model=net(lambda: L.Embedding(WORDS, 4, mask_zero=True), L.GlobalAveragePooling1D, dense(3), **_words),
        optimizer=lambda: _o.SGD(0.3),
        loss=logits,
        metrics=lambda: ["accuracy"],
    ),
    Fit(
        name="text classifier: Embedding, LSTM, Adam",
        data=split(texts),
        model=net(lambda: L.Embedding(WORDS, 4, mask_zero=True), lambda: L.LSTM(5), dense(3), **_words),
        optimizer=lambda: _o.Adam(0.02),
        loss=logits,
        metrics=lambda: ["accuracy"],
        reference=SUMMED,
        fitting=summed_rows,
    ),
    Fit(
        name="transformer encoder, Adam",
        orders=2,
        data=split(texts),
        model=lambda: transformer(3, causal=False),
        optimizer=lambda: _o.Adam(0.01, epsilon=1e-3),
        loss=logits,
        metrics=lambda: ["accuracy"],
        reference=SUMMED,
        fitting=summed_rows,
        without=("key/bias",),
    ),
    Fit(
        name="causal language model, ignore_class",
        orders=2,
        data=split(next_words),
        model=lambda: transformer(WORDS, causal=True),
        optimizer=lambda: _o.SGD(0.05, momentum=0.9),
        loss=lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
        without=("key/bias",),
    ),
    Fit(
        name="causal language model, ignore_class=-1 as floats",
        data=lambda: tuple((x, np.where(y == 0, -1, y).astype("float32")) for x, y in split(next_words)()),
        model=lambda: transformer(WORDS, causal=True),
        optimizer=lambda: _o.SGD(0.05),
        loss=lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1),
        without=("key/bias",),
    ),
    Fit(
        name="tagging: an output per step, masked",
        data=split(tags),
        model=net(
            lambda: L.Embedding(WORDS, 4, mask_zero=True), lambda: L.GRU(4, return_sequences=True), dense(3), **_words
        ),
        optimizer=lambda: _o.SGD(0.3),
        loss=logits,
        metrics=lambda: ["accuracy"],
    ),
    Fit(
        name="language model with tied weights, Adam",
        data=split(next_words),
        model=tied_model,
        optimizer=lambda: _o.Adam(0.02),
        loss=logits,
    ),
    Fit(
        name="LSTM, recurrent Dropout",
        data=split(series),
        model=net(lambda: L.LSTM(5, dropout=0.2, recurrent_dropout=0.2), dense(1), shape=(LENGTH, 1)),
        loss=lambda: keras.losses.MeanSquaredError(),
        per_shard=True,
        draws=True,
        without=("seed_generator",),  # predict draws too, as in Keras
    ),
]
