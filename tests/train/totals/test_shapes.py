"""Targets, outputs and sample weights whose shapes do not fit are refused by name, before the first step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient
from mirrorkit.train.totals.losses import LossCall, loss_faults

L = keras.layers


class Distance(keras.losses.Loss):
    def call(self, y: Any, y_pred: Any) -> Any:
        return keras.ops.mean((y - y_pred) ** 2, -1)


class Whole(keras.losses.Loss):
    """Compares the examples with each other, which is what it is for."""

    def call(self, y: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.abs(y_pred - keras.ops.transpose(y_pred)), -1)


def distance(y: Any, y_pred: Any) -> Any:
    return keras.ops.mean((y - y_pred) ** 2, -1)


def flat(y: Any, y_pred: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(tf.reshape(y, [-1]), tf.reshape(y_pred, [-1, 3]))


def fault(loss: Any, y: Any, y_pred: Any, weight: Any = None, dtype: Any = tf.float32) -> str | None:
    kinds = zip((y, y_pred, weight), (dtype, tf.float32, dtype), strict=True)
    with tf.Graph().as_default():
        y, y_pred, weight = (None if shape is None else tf.compat.v1.placeholder(kind, shape) for shape, kind in kinds)
    model = keras.Model()
    model.compile(loss=loss)
    calls = list[LossCall]()
    with tf.Graph().as_default(), ambient.set(losses=calls), contextlib.suppress(Exception):
        model.compute_loss(None, y, y_pred, weight)
    return loss_faults(calls, ["loss"] * len(calls)).get("loss")


N = None
TARGETS = "It takes targets [N, 10]."
INDICES = "It takes targets [N]. Sparse losses take class indices"
STRETCHED = "compares every target with every output"


@pytest.mark.parametrize(
    ("loss", "y", "y_pred", "match"),
    [
        ("mse", [N], [N, 10], TARGETS),
        (keras.losses.Huber(), [N], [N, 10], TARGETS),
        (distance, [N], [N, 10], TARGETS),
        (Distance(), [N], [N, 10], TARGETS),
        ("categorical_crossentropy", [N], [N, 10], TARGETS),
        ("binary_crossentropy", [N], [N, 10], TARGETS),
        ("sparse_categorical_crossentropy", [N, 10], [N, 10], INDICES),
        ("mse", [N, 3], [N, 10], TARGETS),
        ("mse", [N, 8], [N, 8, 10], "It takes targets [N, 8, 10]."),
        (Distance(), [N], [N, 1], f"{STRETCHED}: TensorFlow stretches targets [N] and outputs [N, 1]"),
        (Distance(), [N, 1], [N], "targets [N]: y[:, tf.newaxis], or tf.squeeze"),
        (Distance(), [N, None], [N, None, 1], STRETCHED),
        (flat, [N, 7], [N, 7, 3], "returned shape [924] for 132 rows"),
        (flat, [N, None], [N, None, 3], "returned shape [924] for 132 rows"),
        (lambda y, y_pred: distance(y, y_pred)[::2], [N, 2], [N, 2], "returned shape [66] for 132 rows"),
    ],
)
def test_what_does_not_fit(loss: Any, y: Any, y_pred: Any, match: str) -> None:
    for rows in (None, 10):  # as many as some outputs
        assert match in str(fault(loss, [rows, *y[1:]], [None, *y_pred[1:]])), rows


@pytest.mark.parametrize(
    ("loss", "y", "y_pred"),
    [
        *((loss, y, y_pred) for loss in ("mse", distance) for y, y_pred in [([N], [N, 1]), ([N, 1], [N])]),
        *((loss, [N, 1], [N, 10]) for loss in ("mse", Distance())),  # stretched within the row, as in Keras
        ("mse", [N, 10], [N, 1]),
        ("mse", [N], [N]),
        ("mse", [N, None], [N, 10]),
        (Distance(), [N, 10], [N, 10]),
        (Whole(), [N], [N, 1]),  # for one device
        (lambda y, value: value, [N], [N, 3]),
        ("sparse_categorical_crossentropy", [N], [N, 10]),
        ("sparse_categorical_crossentropy", [N, 1], [N, 10]),
        ("sparse_categorical_crossentropy", [N, None, None], [N, None, None, 5]),
        (keras.losses.CTC(), [N, 4], [N, 9, 6]),
        (lambda y, y_pred: y_pred._keras_mask, [N], [N, 10]),  # which no trace by itself has
        (lambda y, y_pred: tf.reshape(y_pred, [32, 10])[:, 0], [N, 10], [N, 10]),  # for batches of one size
        (lambda y, y_pred: distance(tf.reshape(y, [-1, 2]), tf.reshape(y_pred, [-1, 2, 5])[:, 0, :2]), [N, 2], [N, 10]),
        (lambda y, y_pred: tf.boolean_mask(distance(y, y_pred), y[:, 0] > 0), [N, 2], [N, 2]),
    ],
)
def test_what_fits_or_may_fit(loss: Any, y: Any, y_pred: Any) -> None:
    assert fault(loss, y, y_pred) is None


@pytest.mark.parametrize(
    ("y", "weight", "fits"),
    [([N, 6], [N, 6], False), ([N, 6], [N], True), ([N, 6], [N, 1], True), ([N, 6, 2], [N, 6], True)],
    ids=str,
)
def test_sample_weights(y: Any, weight: Any, fits: bool) -> None:
    found = fault("mse", y, y, weight)
    assert found is None if fits else "The loss (mean_squared_error) does not take sample weights [N, 6]" in str(found)


@pytest.fixture
def fitted(make_loop: Any) -> Callable[..., Any]:
    """`fitted(where, batch, net, y, evaluates=False, **options)`: the logs of a fit or an evaluation."""

    def run(where: Any, batch: int, net: Any, y: Any, evaluates: bool = False, **options: Any) -> Any:
        loop = make_loop(where, net, **options)
        data = tf.data.Dataset.from_tensor_slices((np.ones((40, 4), "float32"), y)).batch(batch)
        return loop.evaluate(data) if evaluates else loop.fit(data, verbose=0).history

    return run


def ten() -> Any:
    return keras.Sequential([keras.Input((4,)), L.Dense(10)])


@pytest.mark.parametrize(
    ("where", "batch", "evaluates"), [(("one_device", 1), 10, False), (("mirrored", 2), 20, True)], ids=str
)
def test_not_even_where_the_rows_are_as_many_as_the_outputs(
    where: Any, batch: int, evaluates: bool, fitted: Any
) -> None:
    """Keras trains every target on every output there, and so would a replica with ten rows."""
    with pytest.raises(StepError, match=r"\[N\] for outputs \[N, 10\]") as raised:
        fitted(where, batch, ten, np.ones(40, "float32"), evaluates, loss="mse")
    assert "unchecked=('loss',)" in str(raised.value)


def test_whoever_knows_better_gets_what_keras_does(fitted: Any) -> None:
    y = np.arange(40, dtype="float32")
    losses = fitted(("one_device", 1), 10, ten, y, loss="mse", unchecked=("loss",))["loss"]
    keras.utils.set_random_seed(0)
    model = ten()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    data = tf.data.Dataset.from_tensor_slices((np.ones((40, 4), "float32"), y)).batch(10, drop_remainder=True)
    assert losses == pytest.approx(model.fit(data, verbose=0).history["loss"], rel=1e-5)


def test_weights_of_the_data_are_looked_at(make_loop: Any) -> None:
    ones = [np.ones((40, size), "float32") for size in (4, 10, 10)]
    with pytest.raises(StepError, match=r"weights \[N, 10\]"):
        make_loop(("one_device", 1), ten).fit(tf.data.Dataset.from_tensor_slices(tuple(ones)).batch(8))


def test_an_output_is_named(fitted: Any) -> None:
    def two() -> Any:
        x = keras.Input((4,))
        return keras.Model(x, {"kind": L.Dense(3)(x), "size": L.Dense(1)(x)})

    y = {"kind": np.zeros(40, "int64"), "size": np.zeros(40, "float32")}
    losses = {"kind": "categorical_crossentropy", "size": "mse"}
    with pytest.raises(StepError, match=r"kind_loss \(categorical_crossentropy\) .*targets \[N\]"):
        fitted(("mirrored", 2), 8, two, y, loss=losses)


def test_the_shape_that_counts_is_that_of_the_call(fitted: Any) -> None:
    """A layer may say another one."""

    class Wrong(L.Dense):
        def compute_output_shape(self, shape: Any) -> Any:
            return (shape[0], 7)

        def compute_output_spec(self, x: Any) -> Any:
            return keras.KerasTensor((x.shape[0], 7))

    def net() -> Any:
        return keras.Sequential([keras.Input((4,)), Wrong(3)])

    y = np.ones((40, 3), "float32")
    assert len(fitted(("one_device", 1), 8, net, y, loss="mse")["loss"]) == 1
    with pytest.raises(StepError, match=r"\[N, 2\] for outputs \[N, 3\]"):
        fitted(("one_device", 1), 8, net, y[:, :2], loss="mse")


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_later_data_of_other_shapes_is_checked_too(replicas: int, make_loop: Any) -> None:
    x = np.ones([12, 4], np.float32)
    fits, stretched = (
        mk.data.batches(mk.data.arrays(x, np.ones(shape, np.float32)), global_batch_size=3)  # as many as outputs
        for shape in ((12, 3), (12,))
    )
    loop = make_loop(("mirrored", replicas), lambda: keras.Sequential([keras.Input((4,)), L.Dense(3)]))
    loop.fit(fits, verbose=0)
    for use in (
        lambda: loop.fit(stretched, epochs=2, verbose=0),
        lambda: loop.evaluate(stretched),
        lambda: loop.fit(fits, epochs=2, validation_data=stretched, verbose=0),
    ):
        with pytest.raises(StepError, match=r"\[N\] for outputs \[N, 3\]"):
            use()
