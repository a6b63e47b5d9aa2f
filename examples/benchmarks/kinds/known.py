"""Models whose training speed others have published, and what a training step of them computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import numpy as np

from kinds.models import CLASSES, Kind, of_the_zoo

L = keras.layers
ops = keras.ops
BFLOAT16 = "mixed_bfloat16"


@dataclass(frozen=True)
class Known(Kind):
    """A kind of work that is known outside of mirrorkit.

    Attributes:
        counted: "images" or "tokens": what a speed counts.
        of_example: how many of them an example has.
        optimizer: as `keras.optimizers.get` takes it.
    """

    counted: str = "images"
    of_example: int = 1
    optimizer: Any = "adam"


def resnet50(side: int = 224, widths: tuple[int, ...] = (64, 128, 256, 512)) -> keras.Model:
    """ResNet-50 v1.5, which NVIDIA and torchvision measure: as in arXiv:1512.03385, but 3x3 convolutions take the
    strides. keras.applications.ResNet50 takes them in the 1x1 convolutions before, and computes 6 % less.
    """
    pixels = keras.Input((side, side, 3), dtype="uint8")

    def convolution(x: Any, filters: int, size: int, strides: int = 1) -> Any:
        x = L.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
        return L.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)

    x = L.ReLU()(convolution(L.Rescaling(1 / 64, -2.0)(pixels), widths[0], 7, 2))
    x = L.MaxPooling2D(3, 2, padding="same")(x)
    for stage, (width, blocks) in enumerate(zip(widths, (3, 4, 6, 3), strict=True)):
        for block in range(blocks):
            strides = 2 if stage and not block else 1
            shortcut = x if block else convolution(x, 4 * width, 1, strides)
            x = L.ReLU()(convolution(x, width, 1))
            x = L.ReLU()(convolution(x, width, 3, strides))
            x = L.ReLU()(convolution(x, 4 * width, 1) + shortcut)
    x = L.Dense(1000)(L.GlobalAveragePooling2D()(x))
    return keras.Model(pixels, L.Softmax(dtype="float32")(x))


def bert(layers: int = 12, width: int = 768, heads: int = 12, words: int = 30_522, length: int = 128) -> keras.Model:
    """BERT (arXiv:1810.04805) with a head that classifies; all tokens count, and all are of the first segment."""
    ids = keras.Input((length,), dtype="int32")
    places, segments = ops.cumsum(ops.ones_like(ids), axis=1) - 1, ops.zeros_like(ids)
    x = L.Embedding(words, width)(ids) + L.Embedding(512, width)(places) + L.Embedding(2, width)(segments)
    x = L.Dropout(0.1)(L.LayerNormalization(epsilon=1e-12)(x))
    for _ in range(layers):
        attended = L.MultiHeadAttention(heads, width // heads, dropout=0.1)(x, x)
        x = L.LayerNormalization(epsilon=1e-12)(x + L.Dropout(0.1)(attended))
        hidden = L.Dense(width)(L.Dense(4 * width, "gelu")(x))
        x = L.LayerNormalization(epsilon=1e-12)(x + L.Dropout(0.1)(hidden))
    pooled = L.Dropout(0.1)(L.Dense(width, "tanh")(x[:, 0]))
    return keras.Model(ids, L.Softmax(dtype="float32")(L.Dense(CLASSES)(pooled)))


def pixels(side: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, count: rng.integers(0, 256, (count, side, side, 3), "uint8")


def tokens(words: int, length: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, count: rng.integers(0, words, (count, length), "int32")


def multiply_adds(model: keras.Model) -> int:
    """Multiply-adds of one example's forward pass: those of convolutions, dense layers and attention.

    Each weight of a kernel is multiplied once at each place of the output; an attention also multiplies each query
    with each key, and each weight of the result with each value.
    """
    total = 0
    for layer in model.layers:
        if isinstance(layer, (L.Conv2D, L.Dense, L.MultiHeadAttention)):
            places = math.prod(layer.output.shape[1:-1])
            total += places * sum(math.prod(weight.shape) for weight in layer.weights if _is_kernel(weight))
            if isinstance(layer, L.MultiHeadAttention):
                of = layer.get_config()
                total += 2 * places * places * of["num_heads"] * of["key_dim"]
    return total


def _is_kernel(weight: Any) -> bool:
    return weight.path.endswith("/kernel")


def flops_of_training(model: keras.Model) -> int:
    """FLOPs of one example in a training step: two to a multiply-add; the backward pass has twice those of the forward
    pass, since it computes a gradient of each layer's input and one of its weights. The first layer's input and all
    that is not a product of matrices are left aside, as is usual (arXiv:2204.02311, appendix B).
    """
    return 3 * 2 * multiply_adds(model)


def _zoo(name: str, steps: int, *shape: int) -> Known:
    kind = of_the_zoo(name, *shape)
    return Known(kind.what, kind.model, kind.inputs, batch=256, steps=steps)


_RESNET_50 = Known(
    "ResNet-50 v1.5 at 224 x 224",
    resnet50,
    pixels(224),
    batch=256,
    steps=20,
    batches=2,
    policy=BFLOAT16,
    optimizer={"class_name": "SGD", "config": {"learning_rate": 0.01, "momentum": 0.9}},
)
_BERT = Known(
    "BERT-base at 128 tokens",
    bert,
    tokens(30_522, 128),
    batch=64,
    steps=60,
    policy=BFLOAT16,
    counted="tokens",
    of_example=128,
    optimizer={"class_name": "Adam", "config": {"learning_rate": 1e-5}},
)
_KNOWN = {
    "resnet-50": _RESNET_50,
    "bert-base": _BERT,
    "resnet20": _zoo("resnet20", 200, 32, 32, 3),
    "mnist_cnn": _zoo("mnist_cnn", 1000, 28, 28, 1),
}

_TINY_BERT = partial(bert, layers=2, width=32, heads=2, words=100, length=8)
_SMALL: dict[str, dict[str, Any]] = {
    "resnet-50": {"model": partial(resnet50, 32, (4, 4, 4, 4)), "inputs": pixels(32), "batch": 2},
    "bert-base": {"model": _TINY_BERT, "inputs": tokens(100, 8), "of_example": 8, "batch": 2},
    "resnet20": {"batch": 16},
    "mnist_cnn": {"batch": 16},
}
KNOWN = {f"{name}, known": work for name, work in _KNOWN.items()}  # other kinds of work have some of these names too
REHEARSED = {f"{name}, rehearsed": replace(work, steps=2, batches=2, **_SMALL[name]) for name, work in _KNOWN.items()}
