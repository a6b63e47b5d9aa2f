"""Nets of pictures: classifiers, a U-Net, augmentation."""

from __future__ import annotations

from typing import Any

import numpy as np
from entries import Fit, Rows, dense, logits, net, split

from mirrorkit._keras import keras

L, _o = keras.layers, keras.optimizers


def pictures(rng: np.random.Generator, count: int) -> Rows:
    """Pictures [N, 8, 8, 1] as bytes; the class is the third that is bright."""
    y = rng.integers(0, 3, count)
    x = rng.integers(0, 128, (count, 8, 8, 1)) + 100 * np.eye(3)[y].repeat([3, 2, 3], 1)[:, :, None, None]
    return x.astype("uint8"), y


def floats(rng: np.random.Generator, count: int) -> Rows:
    x, y = pictures(rng, count)
    return (x / np.float32(255)).astype("float32"), y


def segments(rng: np.random.Generator, count: int) -> Rows:
    """A class for each pixel: whether the neighbourhood is bright."""
    x = rng.normal(size=(count, 8, 8, 1))
    x = (x + np.roll(x, 1, 1) + np.roll(x, 1, 2)).astype("float32")
    return x, (x[..., 0] > 0.3).astype("int64") + (x[..., 0] > 1.5)


def conv(filters: int, activation: str | None = None, **options: Any) -> Any:
    return lambda: L.Conv2D(filters, 3, activation=activation, padding="same", **options)


def residual_net() -> Any:
    x = inputs = keras.Input((8, 8, 1))
    for filters, strides in ((4, 1), (6, 2)):
        y = L.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        y = L.Activation("silu")(L.BatchNormalization(momentum=0.8, synchronized=True)(y))
        y = L.Conv2D(filters, 3, padding="same", use_bias=False)(y)
        y = L.BatchNormalization(momentum=0.8, synchronized=True)(y)
        x = L.Activation("silu")(y + L.Conv2D(filters, 1, strides)(x))
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling2D()(x)))


def u_net() -> Any:
    def block(x: Any, filters: int) -> Any:
        x = L.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        return L.Activation("gelu")(L.BatchNormalization(momentum=0.8, synchronized=True)(x))

    inputs = keras.Input((8, 8, 1))
    first = block(inputs, 4)
    second = block(L.AveragePooling2D(2)(first), 6)
    middle = block(L.AveragePooling2D(2)(second), 8)
    x = block(L.Concatenate()([L.Conv2DTranspose(6, 2, 2)(middle), second]), 6)
    x = block(L.Concatenate()([L.UpSampling2D()(x), first]), 4)
    return keras.Model(inputs, L.Conv2D(3, 1)(x))


_head = (L.GlobalAveragePooling2D, dense(3))
ENTRIES = [
    Fit(
        name="Dice loss over the batch",  # of one-hot targets and shares that add up to 1 a mean over the rows
        data=lambda: tuple((x, np.eye(3, dtype="float32")[y]) for x, y in split(segments)()),
        model=net(lambda: L.Conv2D(3, 3, padding="same", activation="softmax"), shape=(8, 8, 1)),
        loss=lambda: keras.losses.Dice(),
    ),
    Fit(
        name="CNN on bytes, Rescaling",
        data=split(pictures),
        model=net(
            lambda: L.Rescaling(1 / 255),
            conv(4, "tanh"),
            lambda: L.AveragePooling2D(2),
            conv(6, "tanh"),
            L.Flatten,
            dense(3),
            shape=(8, 8, 1),
            dtype="uint8",
        ),
        optimizer=lambda: _o.Adam(0.01),
        loss=logits,
        metrics=lambda: ["accuracy"],
    ),
    Fit(
        name="ResNet, synchronized BatchNorm",
        orders=2,
        data=split(floats),
        model=residual_net,
        optimizer=lambda: _o.SGD(0.05, momentum=0.9),
        loss=logits,
        metrics=lambda: ["accuracy"],
    ),
    Fit(
        name="U-Net, synchronized BatchNorm; a class per pixel, MeanIoU",
        orders=2,
        data=split(segments),
        model=u_net,
        optimizer=lambda: _o.Adam(0.01),
        loss=logits,
        metrics=lambda: ["accuracy", keras.metrics.MeanIoU(3, sparse_y_pred=False, name="iou")],
    ),
    Fit(
        name="CNN, plain BatchNorm",
        data=split(floats),
        model=net(
            conv(4, use_bias=False),
            lambda: L.BatchNormalization(momentum=0.8),
            lambda: L.Activation("silu"),
            *_head,
            shape=(8, 8, 1),
        ),
        optimizer=lambda: _o.SGD(0.05, momentum=0.9),
        loss=logits,
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        per_shard=True,
    ),
    Fit(
        name="CNN, augmentation and Dropout",
        data=split(floats),
        model=net(
            lambda: L.RandomFlip("horizontal"),
            lambda: L.RandomTranslation(0.2, 0.2, fill_mode="constant"),
            conv(4, "tanh"),
            lambda: L.Dropout(0.3),
            *_head,
            shape=(8, 8, 1),
        ),
        loss=logits,
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        per_shard=True,
        draws=True,
    ),
    Fit(
        name="transfer learning: a frozen base",
        data=split(floats),
        model=lambda: _transfer(),
        optimizer=lambda: _o.Adam(0.02),
        loss=logits,
        metrics=lambda: ["accuracy"],
    ),
    Fit(
        name="a frozen BatchNorm within a trained net",
        data=split(floats),
        model=lambda: _frozen_normal(),
        optimizer=lambda: _o.Adam(0.02),
        loss=logits,
        metrics=lambda: ["accuracy"],
    ),
]


def _transfer() -> Any:
    base = net(conv(4, "tanh"), L.BatchNormalization, L.GlobalAveragePooling2D, shape=(8, 8, 1))()
    base.trainable = False
    inputs = keras.Input((8, 8, 1))
    return keras.Model(inputs, L.Dense(3)(base(inputs, training=False)))


def _frozen_normal() -> Any:
    model = net(conv(4, "tanh"), L.BatchNormalization, L.GlobalAveragePooling2D, dense(3), shape=(8, 8, 1))()
    model.layers[1].trainable = False
    return model
