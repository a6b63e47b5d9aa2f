"""Random numbers are those of TensorFlow where XLA compiles a function, with seeds that are no constants.

Of a constant one, TensorFlow computes the draw before XLA sees it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import largest_difference, plain_dataset, sequential

from mirrorkit._keras import keras
from mirrorkit.train.reduce.xla import takes
from mirrorkit.train.reduce.xla_draws import compiled

L = keras.layers
PICTURES = np.random.default_rng(0).uniform(size=(6, 8, 8, 3)).astype("float32")
# XLA and TensorFlow compute sines and logarithms that differ in the last bits: measured 1.6e-6; of half floats one bit.
OF_NORMAL = {tf.float32: 1e-5, tf.float16: 2e-3, tf.bfloat16: 2e-2}


def difference(draw: Callable[[], tf.Tensor]) -> float:
    found = [tf.cast(compiled(draw, with_xla=with_xla)(), tf.float64).numpy() for with_xla in (False, True)]
    assert np.ptp(found[0]) > 0
    return float(np.abs(found[0] - found[1]).max())


@pytest.fixture
def seed() -> tf.Variable:
    return tf.Variable([3, 5])


@pytest.mark.parametrize(
    "dtype", [tf.float32, pytest.param(tf.float16, marks=pytest.mark.slow), tf.bfloat16], ids=lambda dtype: dtype.name
)
def test_floats(dtype: tf.DType, seed: tf.Variable) -> None:
    def drawn(draw: Callable[..., tf.Tensor]) -> tf.Tensor:
        shapes = [(7,), (64, 33), (3, 5, 2, 2)]
        return tf.concat([tf.reshape(draw(shape, seed.value(), dtype=dtype), [-1]) for shape in shapes], 0)

    assert difference(lambda: drawn(tf.random.stateless_uniform)) == 0
    assert difference(lambda: drawn(tf.random.stateless_normal)) < OF_NORMAL[dtype]


@pytest.mark.parametrize("seed", [[-3, 5], [3, 2**40 + 1]], ids=str)
def test_seeds(seed: list[int]) -> None:
    variable = tf.Variable(tf.constant(seed, tf.int64))
    assert difference(lambda: tf.random.stateless_uniform([9], variable.value(), 0, 1000, tf.int32)) == 0


def test_of_a_generator_and_of_dropout(seed: tf.Variable) -> None:
    generator, ones = tf.random.Generator.from_seed(3), tf.ones([40, 30])
    drawn = [compiled(lambda: generator.uniform([50]), with_xla=with_xla) for with_xla in (False, True)]
    found = []
    for draw in drawn:
        generator.reset_from_seed(3)
        found.append(draw().numpy())
    np.testing.assert_array_equal(*found)
    assert difference(lambda: tf.nn.experimental.stateless_dropout(ones, 0.3, seed.value())) == 0


def test_of_double_precision_xla_is_left_off(seed: tf.Variable) -> None:
    draw = lambda: tf.random.stateless_normal([9], seed.value(), dtype=tf.float64)  # noqa: E731
    assert difference(draw) > 0.1
    assert not takes(draw)


RANGE = {"value_range": (0, 1)}
FAST: dict[str, Any] = {
    "Dropout": lambda: L.Dropout(0.4),
    "GaussianNoise": lambda: L.GaussianNoise(0.4),
    "RandomFlip": L.RandomFlip,
}
SLOW: dict[str, Any] = {
    "AlphaDropout": lambda: L.AlphaDropout(0.4),
    "GaussianDropout": lambda: L.GaussianDropout(0.4),
    "SpatialDropout2D": lambda: L.SpatialDropout2D(0.4),
    "RandomBrightness": lambda: L.RandomBrightness(0.3, **RANGE),
    "RandomColorDegeneration": lambda: L.RandomColorDegeneration(0.5, **RANGE),
    "RandomColorJitter": lambda: L.RandomColorJitter((0, 1), 0.3, 0.3, (0.2, 0.8), 0.2),
    "RandomContrast": lambda: L.RandomContrast(0.3, **RANGE),
    "RandomErasing": lambda: L.RandomErasing(**RANGE),
    "RandomGaussianBlur": lambda: L.RandomGaussianBlur(**RANGE),
    "RandomGrayscale": L.RandomGrayscale,
    "RandomHue": lambda: L.RandomHue(0.3, **RANGE),
    "RandomInvert": lambda: L.RandomInvert(0.5, **RANGE),
    "RandomPosterization": lambda: L.RandomPosterization(4, **RANGE),
    "RandomSaturation": lambda: L.RandomSaturation(0.5, **RANGE),
    "RandomSharpness": lambda: L.RandomSharpness(0.5, **RANGE),
    "Solarization": lambda: L.Solarization(0.5, 0.5, **RANGE),
}


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_layers(name: str) -> None:
    """The same draw with and without XLA; after a layer's first call, its generator is reset."""
    layer, pictures = (FAST | SLOW)[name](), tf.Variable(PICTURES)
    layer(PICTURES)
    generators = [variable for inner in layer._flatten_layers() for variable in inner.variables]

    def draw() -> tf.Tensor:
        for generator in generators:
            generator.assign([3, 5])
        return layer(pictures.value(), training=True)

    assert difference(draw) < 1e-5


@pytest.mark.parametrize("layer", [lambda: L.RandomCrop(6, 6), L.MixUp], ids=["RandomCrop", "MixUp"])
def test_layers_that_xla_computes_otherwise(layer: Any, caplog: pytest.LogCaptureFixture) -> None:
    made = layer()
    made(PICTURES)
    with caplog.at_level("INFO", "mirrorkit"):
        assert not takes(lambda x: made(x, training=True), tf.TensorSpec(PICTURES.shape))
    assert re.search("a size depends on values|other random numbers than TensorFlow .*[gG]amma", caplog.text)


@pytest.mark.slow
@pytest.mark.parametrize("where", [("one_device", 1), ("mirrored", 3)], ids=["1", "3"])
def test_a_training(where: tuple[str, int], make_loop: Any) -> None:
    """Each replica draws the same with and without XLA, in calls of several steps."""

    def net() -> Any:
        layers = [L.RandomFlip(), L.RandomBrightness(0.3, **RANGE), L.Flatten(), L.Dense(8, "tanh"), L.Dropout(0.4)]
        return sequential(
            PICTURES.shape[1:], *layers, L.GaussianNoise(0.4), L.Dense(4), L.AlphaDropout(0.4), L.Dense(1)
        )

    found = []
    for jit_compile in (False, True):
        loop = make_loop(where, net, jit_compile=jit_compile)
        history = loop.fit(plain_dataset(PICTURES, PICTURES[:, 0, 0, :1], batch=6), epochs=6, verbose=0)
        found.append([*loop.step.model.get_weights(), history.history["loss"]])
    assert largest_difference(*found) < 1e-5
