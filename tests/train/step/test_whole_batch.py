"""`Step.from_loss(whole_batch=True)` and `all_gather`: losses over the whole batch, against one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import Keeps, largest_difference, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers


def _net() -> Any:
    """The gradient of its max pooling fails on no rows; a layer keeps a mean over the rows."""
    first = [L.Dense(3, use_bias=False), L.BatchNormalization(momentum=0.5, synchronized=True)]
    keeps = Keeps(lambda kept, x: 0.5 * kept + keras.ops.mean(x))
    return sequential((4, 4, 1), *first, L.MaxPool2D(), keeps, L.Flatten(), L.Dense(4, kernel_regularizer="l2"))


def _contrastive(net: Any) -> Callable[..., Any]:
    """A step of SimCLR's kind, with labels: pairs of one class pull, all other rows of the whole batch push."""

    def loss_fn(batch: Any, training: bool) -> Any:
        (first, second), labels = batch
        codes, others = (tf.math.l2_normalize(net(x, training=training), 1) for x in (first, second))
        every = mk.train.all_gather({"codes": others, "labels": labels})
        similar = 3 * codes @ tf.transpose(every["codes"])
        pulls = tf.cast(labels[:, None] == every["labels"][None], "float32")
        pull = tf.reduce_sum(pulls * similar, 1) / tf.reduce_sum(pulls, 1)
        examples = tf.cast(tf.shape(similar)[1], "float32")
        values = tf.reduce_logsumexp(similar, 1) - pull + tf.reduce_mean(every["codes"] ** 3)
        return {"loss": values, "pull": pull, "examples": tf.fill(tf.shape(pull), examples)}

    return loss_fn


@pytest.fixture(scope="module")
def images() -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Pairs of images [21, 4, 4, 1], and labels that TensorFlow does not gather from workers."""
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(21, 4, 4, 1)).astype("float32") for _ in range(2))
    return (first, first + 0.3 * second), rng.integers(0, 4, 21).astype("uint8")


@pytest.fixture
def make(strategy_of: Any) -> Callable[..., tuple[mk.train.Loop, Any]]:
    """`make(where, loss_of, **options)`: a loop and its net, with weights of the same seed."""

    def make(where: tuple[str, int], loss_of: Any = _contrastive, **options: Any) -> tuple[mk.train.Loop, Any]:
        strategy = strategy_of(*where)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            net, optimizer = _net(), keras.optimizers.SGD(0.05, momentum=0.5)
        step = mk.train.Step.from_loss(net, optimizer, loss_of(net), **{"whole_batch": True, **options})
        return mk.train.Loop(strategy, step, steps_per_call=3), net

    return make


def test_as_one_device(make: Any, images: Any, assert_replicas_equal: Any) -> None:
    """Two epochs with validation, synchronized layers and an empty share; a loop by hand: SimCLR in the corpus."""
    data = mk.data.batches(mk.data.arrays(*images), global_batch_size=20)  # the last one holds one image
    (loop, net), (other, alone) = make(("mirrored", 2)), make(("one_device", 1))
    found, expected = (one.fit(data, epochs=2, validation_data=data, verbose=0).history for one in (loop, other))
    assert found == {name: pytest.approx(values, rel=1e-5) for name, values in expected.items()}
    assert found["val_examples"][-1] == pytest.approx((20 * 20 + 1) / 21)
    assert largest_difference(net.get_weights(), alone.get_weights()) < 1e-6
    assert_replicas_equal(loop)


class _Gathers(L.Layer):  # type: ignore[name-defined, misc]
    """Takes away the mean over the whole batch."""

    def call(self, x: Any) -> Any:
        return x - tf.reduce_mean(mk.train.all_gather(x), 0)


def _plain_step(*layers: Any, **options: Any) -> Any:
    net = sequential((4, 4, 1), L.Flatten(), *layers, L.Dense(1))
    return mk.train.Step(net, keras.optimizers.SGD(0.01), **{"loss": "mse", **options})


def _gathered_error(y: Any, y_pred: Any) -> Any:
    return (y_pred - tf.reduce_mean(mk.train.all_gather(y_pred)))[:, 0] ** 2


@pytest.mark.parametrize(
    "make_step",
    [
        lambda: _plain_step(_Gathers(), L.BatchNormalization(synchronized=True)),
        lambda: _plain_step(metrics=[_gathered_error]),
        lambda: _plain_step(loss=_gathered_error, unchecked=("loss", "rows")),
    ],
    ids=["synchronized", "metric", "loss, unchecked"],
)
def test_where_no_other_rows_are_to_be_had(make_step: Any, strategy_of: Any, images: Any) -> None:
    """Refused by name, in training and evaluation; on one device it is what it says."""
    ((first, _), labels) = images
    data = plain_dataset(first[:8], labels[:8, None].astype("float32"), batch=8)
    for where in (("mirrored", 2), ("one_device", 1)):
        strategy = strategy_of(*where)
        with strategy.scope():
            loop = mk.train.Loop(strategy, make_step())
        if where[1] == 1:
            assert np.isfinite(loop.evaluate(data)["loss"])
            continue
        for use in (loop.evaluate, loop.fit):
            with pytest.raises(StepError, match=r"all_gather was called.*whole_batch=True"):
                use(data)


def test_a_step_whose_loss_is_not_said_to_be_over_the_whole_batch(make: Any, images: Any) -> None:
    for where, options in ((("mirrored", 2), {"unchecked": "rows"}), (("one_device", 1), {"accumulate": 2})):
        loop, _ = make(where, whole_batch=False, **options)
        with pytest.raises(StepError, match=r"all_gather was called.*without accumulate"):
            loop.fit(plain_dataset(*images, batch=20))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda codes: tf.reduce_logsumexp(codes @ tf.transpose(codes), 1),
        lambda codes: tf.reduce_sum(codes, 1) / tf.cast(tf.shape(codes)[0], "float32"),
        lambda codes: tf.reduce_sum(codes - mk.train.all_gather(codes)[: tf.shape(codes)[0]], 1),
    ],
    ids=["not gathered", "divided", "the first rows for the own"],
)
def test_what_parts_that_gather_would_make_of_it(wrong: Any, make: Any, images: Any) -> None:
    loop, _ = make(("mirrored", 2), lambda net: lambda batch: wrong(net(batch[0][0])))
    with pytest.raises(StepError, match="'loss' is not the same for parts"):
        loop.fit(plain_dataset(*images, batch=20), verbose=0)


def test_options_that_exclude_the_whole_batch(make: Any, images: Any) -> None:
    with pytest.raises(StepError, match="accumulate=4 exclude"):
        make(("one_device", 1), accumulate=4)
    with pytest.raises(StepError, match="jit_compile=True exclude"):
        make(("mirrored", 2), jit_compile=True)
    step = mk.train.Step.from_loss(_net(), keras.optimizers.SGD(), lambda batch: batch, whole_batch=True)
    with pytest.raises(AttributeError):
        step.accumulate = 2  # type: ignore[misc]
    with pytest.raises(StepError, match="accumulate=2"):
        step.for_loop(tf.distribute.get_strategy(), shards=2)
