"""`loop.warm_up` compiles everything and leaves everything as it was, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from installed_versions import KERAS
from training_helpers import line_net, plain_dataset, sequential, set_values, values_of

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers


class Draws(L.Layer):
    """Passes its input on; a call draws from Python's and NumPy's generators."""

    def call(self, x: Any) -> Any:
        random.random()
        np.random.random()
        return x


def _net() -> Any:
    return sequential((4,), Draws(), L.Dense(5), L.BatchNormalization(), L.Dropout(0.3), L.Dense(1))


def _draws() -> list[Any]:
    """What the random generators give next."""
    return [
        random.random(),
        np.random.random(3),
        tf.random.get_global_generator().normal([3]).numpy(),
        tf.random.normal([3]).numpy(),
        np.asarray(keras.random.normal((3,))),
    ]


def _seed_all() -> None:
    if KERAS < (3, 13):
        keras.utils.clear_session(free_memory=False)  # set_random_seed left Keras's own generator where it was
    keras.utils.set_random_seed(11)
    tf.random.set_global_generator(tf.random.Generator.from_seed(5))


@contextmanager
def _nothing_is_left(loop: Any, copies: Any) -> Iterator[None]:
    """Variables, and what is drawn next, are after the block as they were before."""
    before = copies(loop)
    _seed_all()
    expected = _draws()
    _seed_all()
    yield
    np.testing.assert_equal(_draws(), expected)
    np.testing.assert_equal(before, copies(loop))


def test_everything_is_as_it_was_and_nothing_is_left_to_trace(make_loop: Any, numbers: Any, copies: Any) -> None:
    """Four batches of two updates, the last one smaller, on the host and on the devices, where they train the same."""
    ema = lambda: keras.optimizers.SGD(0.05, momentum=0.5, use_ema=True)  # noqa: E731
    loop = make_loop(("mirrored", 2), _net, ema, accumulate=2, steps_per_call="auto")
    first, found = values_of(loop), []
    for recipe in (mk.data.batches, mk.data.resident):
        data = recipe(mk.data.arrays(*(part[:28] for part in numbers)), global_batch_size=8)
        with _nothing_is_left(loop, copies):
            loop.warm_up(data, validation_data=data)
        traces = len(loop._passes.calls._traces)
        report = loop.fit(data, epochs=2, validation_data=data, verbose=0)
        assert "compilation included" not in report.summary()
        assert len(loop._passes.calls._traces) == traces
        found.append(copies(loop))
        set_values(loop, first)
    for host, device in zip(*found, strict=True):
        np.testing.assert_allclose(host, device, rtol=1e-6, atol=1e-7)


def test_the_users_dataset_is_not_read(line: Any, numbers: Any) -> None:
    read = []

    def batches() -> Any:
        read.append(1)
        yield numbers[0][:12], numbers[1][:12]

    spec = (tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((None, 1), tf.float32))
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    line.warm_up(data)
    assert not read
    line.fit(data, verbose=0)
    assert read == [1]


def test_class_weights_are_rehearsed_too(make_loop: Any, numbers: Any) -> None:
    data = plain_dataset(numbers[0], (numbers[1][:, 0] > 0).astype("int64"), batch=14)
    loop = make_loop(("mirrored", 2), line_net, loss="binary_crossentropy")
    loop.warm_up(data, class_weight={0: 2.0, 1: 1.0})
    compiled = len(loop._passes.calls._traces)
    loop.fit(data, class_weight={0: 2.0, 1: 1.0}, verbose=0)
    assert len(loop._passes.calls._traces) == compiled


def test_a_failed_rehearsal_restores_as_well(make_loop: Any, numbers: Any, copies: Any) -> None:
    def fails_in_training(y: Any, y_pred: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(y), -1e9, message="as planned")]):
            return tf.identity(y_pred[:, 0])

    loop = make_loop(("mirrored", 2), line_net, loss=fails_in_training)
    with _nothing_is_left(loop, copies), pytest.raises(tf.errors.InvalidArgumentError, match="as planned"):
        loop.warm_up(plain_dataset(*numbers, batch=12))
