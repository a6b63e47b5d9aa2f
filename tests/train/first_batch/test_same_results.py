"""Loss and gradient of some rows, as workers compare them; real workers are in tests/multiworker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.errors import ClusterError
from mirrorkit.train import Step
from mirrorkit.train.first_batch import same_results
from mirrorkit.train.first_batch.running import PureRuns
from mirrorkit.train.first_batch.same_results import require_same_results, rows_of_chief

ROWS = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
BATCH = (tf.constant(ROWS), tf.constant(ROWS.sum(1, keepdims=True)))


@pytest.fixture
def others(other_workers: Any) -> Callable[..., list[np.ndarray]]:
    """`others(*changes)`: let more workers compute what this one does, each changed by a function."""
    return functools.partial(other_workers, same_results)


def step_of(*layers: Any, **options: Any) -> Any:
    model = keras.Sequential([keras.Input((3,)), *(layers or [keras.layers.Dense(4, "relu")]), keras.layers.Dense(1)])
    step = Step(model, keras.optimizers.SGD(0.1), **{"loss": "mse", **options}).for_loop(tf.distribute.get_strategy())
    step.prepare(BATCH)
    return step


def compare(step: Any, what: Any = "train") -> None:
    runs = PureRuns(step, step.unpack(BATCH).present, what)
    require_same_results(step.strategy, step.model, runs.whole(), runs.weights, runs.count)


def same(numbers: np.ndarray) -> np.ndarray:
    return numbers


def other(index: int, factor: float) -> Callable[[np.ndarray], np.ndarray]:
    """Multiply the loss (0) or the fingerprint of the gradient of a weight (from 1 on)."""

    def change(numbers: np.ndarray) -> np.ndarray:
        numbers[index] *= factor
        return numbers

    return change


def test_it_is_the_loss_and_its_gradient(others):
    (sent, step) = (others(same), step_of(accumulate=2))
    compare(step)
    x, y = BATCH
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((step.model(x) - y) ** 2) / 6
    gradients = tape.gradient(loss, [weight.value for weight in step.model.trainable_variables])
    np.testing.assert_allclose(sent[0][0], float(loss), rtol=1e-5)
    np.testing.assert_allclose(sent[0][1:, 0], [np.linalg.norm(g) for g in gradients], rtol=1e-5)


def test_rounding_is_no_difference(others):
    others(other(0, 1 + 1e-6), other(1, 1 - 1e-6))
    compare(step_of())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ((same, other(0, 1.1)), r"'loss' is .* on worker 2 and .* on worker 0"),
        ((other(3, 1.5),), r"dense_1/kernel' is .* on worker 1 and"),
    ],
    ids=["loss", "gradient"],
)
def test_the_worker_with_another_result_is_named(others, changes, words):
    others(*changes)
    with pytest.raises(ClusterError, match=words):
        compare(step_of())


def test_evaluation_compares_the_loss_alone(others):
    sent = others(same)
    compare(step_of(), "test")
    assert sent[0][0, 0] > 0
    assert not sent[0][1:].any()


def test_nothing_is_changed_and_all_workers_draw_the_same(others):
    (sent, step) = (others(same), step_of(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)))
    before = [variable.numpy().copy() for variable in step.variables]
    for _ in range(2):
        compare(step)
    np.testing.assert_array_equal(sent[0], sent[1])
    for variable, value in zip(step.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


L = keras.layers
STEPS = {
    **{str(one): functools.partial(step_of, **one) for one in ({"jit_compile": True}, {"accumulate": 2})},
    **{str(one): functools.partial(step_of, **one) for one in ({"loss_scale": 8.0}, {"clip_norm": 1.0})},
    "recurrent, and one without gradient": lambda: step_of(L.Reshape((3, 1)), L.LSTM(4), L.Dense(2, trainable=False)),
}


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_any_step(others, make):
    sent = others(same)
    compare(make())
    assert np.isfinite(sent[0]).all()


def test_what_is_no_number_is_not_compared(others):
    others(same)
    for batch in (tf.constant(["a"] * 6), tf.ragged.constant([[1.0]] * 6)):
        assert rows_of_chief(tf.distribute.get_strategy(), (batch, BATCH[1]), 4) is None


def test_a_loss_over_the_whole_batch(others):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])

    def loss_fn(batch: Any) -> tf.Tensor:
        return tf.reduce_sum(model(batch[0]) ** 2, axis=-1)

    made = Step.from_loss(model, keras.optimizers.SGD(0.1), loss_fn, whole_batch=True)
    step = made.for_loop(tf.distribute.get_strategy())
    step.prepare(BATCH)
    sent = others(other(0, 2.0))
    with pytest.raises(ClusterError, match="'loss' is"):
        compare(step)
    assert sent[0][0, 0] > 0
