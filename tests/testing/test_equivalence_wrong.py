"""Wrong steps fail `assert_equivalent`, each with a message that says which fault it looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from equivalence_steps import (
    FirstReplicasState,
    ForgottenReduction,
    L,
    LocalClip,
    LocalClipByValue,
    LocalMean,
    LocalState,
    RightState,
    RightStep,
    Tutorial,
    net,
    points,
)

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError


def _fails(make_step: Callable[[], Any], **options: Any) -> str:
    options = {"replicas": (1, 2), "steps": 4, "global_batch_size": 8, **options}
    with pytest.raises(AssertionError) as caught:
        mk.testing.assert_equivalent(make_step, points(), **options)
    return str(caught.value)


def _sgd() -> Any:
    return keras.optimizers.SGD(0.05)


def _adam() -> Any:
    return keras.optimizers.Adam(0.02)


def test_a_mean_over_the_local_batch() -> None:
    message = _fails(lambda: LocalMean(net(), _sgd()))
    assert "on 2 replicas" in message
    assert "It looks like means over the local batch where sums belong: 'examples', 'gradients/0'" in message


@pytest.mark.slow
def test_a_mean_over_the_local_batch_shows_when_shares_are_unequal_only() -> None:
    found = mk.testing.assert_equivalent(
        lambda: LocalMean(net(), _sgd()), points(), steps=3, global_batch_size=8, uneven=False
    )
    assert max(found.differences.values()) < 1e-6


def test_a_forgotten_reduction() -> None:
    message = _fails(lambda: ForgottenReduction(net(), _sgd()))
    assert "It looks like a missing reduction: each replica trains its copy of 'sequential/dense/kernel'" in message


@pytest.mark.parametrize(("step", "bound"), [(LocalClip, 4), pytest.param(LocalClipByValue, 1, marks=pytest.mark.slow)])
def test_clipping_the_local_gradient(step: Any, bound: int) -> None:
    message = _fails(lambda: step(net(), _sgd()))
    assert "It looks like clipping" in message
    assert f"reach {bound} and no more" in message


def test_batchnorm_that_each_replica_keeps_for_itself() -> None:
    message = _fails(lambda: LocalState(net(L.BatchNormalization()), _sgd()))
    assert "layer state that is not combined: the weights agree, but" in message
    assert "moving_mean" in message
    assert "the replicas' copies differ" in message


def test_batchnorm_of_one_replica() -> None:
    message = _fails(lambda: FirstReplicasState(net(L.BatchNormalization()), _sgd()), reference="shards")
    assert "layer state that is not combined: the weights agree, but" in message
    assert "not that of the whole batch" in message


@pytest.mark.slow  # fast: a Step with such layers, in test_equivalence_right.py
def test_batchnorm_that_is_combined() -> None:
    mk.testing.assert_equivalent(
        lambda: RightState(net(L.BatchNormalization()), _sgd()),
        points(),
        replicas=(3,),
        steps=4,
        global_batch_size=9,
        reference="shards",
    )


def test_batchnorm_depends_on_the_cut_and_the_message_says_so() -> None:
    message = _fails(lambda: RightState(net(L.BatchNormalization(name="normal")), _sgd()))
    assert "depends on how a batch is cut (normal)" in message
    assert 'reference="shards"' in message


def _mean_times(factor: float) -> Callable[[tf.Tensor], tf.Tensor]:
    """A mean that is right on one replica and so many times too large on several."""

    def loss_of(values: tf.Tensor) -> tf.Tensor:
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return tf.reduce_mean(values) * (1 if replicas == 1 else factor)

    return loss_of


@pytest.mark.parametrize(
    ("optimizer", "factor", "found"),
    [(_sgd, 1, "2 times too large"), pytest.param(_adam, 0.25, "2 times too small", marks=pytest.mark.slow)],
)
def test_an_optimizer_that_adds_up_on_each_replica(optimizer: Any, factor: float, found: str) -> None:
    message = _fails(lambda: Tutorial(net(), optimizer(), _mean_times(factor)))
    assert f"It looks like a wrong divisor: the first update's gradient is {found}" in message


def _mean_over_replicas(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(values) / tf.distribute.get_replica_context().num_replicas_in_sync


def test_a_mean_of_means_inside_strategy_run() -> None:
    message = _fails(lambda: Tutorial(net(), _sgd(), _mean_over_replicas))
    assert "mean over the local batch: the result is correct while the replicas' shares are equal and wrong" in message
    assert "from update 1 on, whose 7 examples are split as 4, 3." in message


@pytest.mark.slow
def test_an_optimizer_that_clips_on_each_replica() -> None:
    message = _fails(
        lambda: Tutorial(net(), keras.optimizers.SGD(0.05, global_clipnorm=0.5), _mean_over_replicas), uneven=False
    )
    assert "clipping before the reduction: SGD has global_clipnorm" in message


@pytest.mark.slow
def test_wrong_logs_alone() -> None:
    class Logs(RightStep):
        def _new_values(self, sums: Any, values: Any) -> Any:
            new, logs = super()._new_values(sums, values)
            return new, {"loss": logs["loss"] * tf.distribute.get_strategy().num_replicas_in_sync}

    assert "The training is correct, but the logs are not" in _fails(lambda: Logs(net(), _sgd()))


@pytest.mark.slow
def test_a_share_without_examples() -> None:
    class Mean(RightStep):
        def compute(self, batch: Any) -> Any:
            return tf.nest.map_structure(
                lambda value: value * tf.reduce_mean(batch[1] / batch[1]), super().compute(batch)
            )

    x, y = points(9)
    with pytest.raises(AssertionError, match=r"NaN or infinite at step 1.*may be empty"):
        mk.testing.assert_equivalent(
            lambda: Mean(net(), _sgd()), (x, y), replicas=(1, 2), steps=2, global_batch_size=8, uneven=False
        )


@pytest.mark.slow
def test_an_unknown_fault_is_not_given_a_name() -> None:
    class Odd(RightStep):
        def _new_values(self, sums: Any, values: Any) -> Any:
            new, logs = super()._new_values(sums, values)
            late = tf.cast(values[-2], tf.float32) > 1 if values[-2].dtype.is_integer else tf.constant(True)
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            return [new[0] + 1e-3 * (replicas - 1) * tf.cast(late, tf.float32), *new[1:]], logs

    message = _fails(lambda: Odd(net(), _sgd()))
    assert "It looks like none of the known mistakes. It differs from update" in message
    assert "dense/kernel" in message


def test_a_step_that_trains_nothing() -> None:
    assert "changed none of its trainable variables" in _fails(lambda: RightStep(net(), keras.optimizers.SGD(0.0)))


def test_first_weights_that_differ_each_time() -> None:
    def make() -> Any:
        model = net()
        model.layers[0].bias.assign(np.random.default_rng().normal(size=6))
        return RightStep(model, _sgd())

    assert "different initial values each time: sequential/dense/bias" in _fails(make, steps=2)


def test_a_step_that_depends_on_the_order() -> None:
    class Neighbours(RightStep):
        def compute(self, batch: Any) -> Any:
            return super().compute((batch[0], tf.roll(batch[1], 1, 0)))

    assert "Nothing can be proven: one replica that gets the examples" in _fails(lambda: Neighbours(net(), _sgd()))


class Silent(RightStep):
    """Does not say what it changes."""

    variables = property(lambda self: [], lambda self, value: None)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"reference": "one"}, 'reference must be "batch" or "shards"'),
        ({"replicas": (1,)}, "replicas must hold numbers above 1"),
        ({"replicas": (0, 2)}, "replicas must hold numbers above 1"),
        ({"steps": 1}, "steps must be at least 2"),
        ({"global_batch_size": None}, "with global_batch_size="),
        ({"data": "dataset"}, "global_batch_size is for arrays"),
        ({"data": "array"}, "found ndarray"),
        ({"data": "nothing", "global_batch_size": None}, "data set is empty"),
        ({"ignore": ["last/bias", "first/bias"]}, r"ignore=\['first/bias'\] matches none"),
        ({"step": Silent}, "Silent does not say what it changes"),
    ],
)
def test_arguments_that_do_not_fit(options: Any, match: str) -> None:
    options = {"step": RightStep, "data": "arrays", "global_batch_size": 8, **options}
    dataset = tf.data.Dataset.from_tensor_slices(points()).batch(8)
    every = {"arrays": points(), "array": points()[0], "dataset": dataset, "nothing": dataset.take(0)}
    step, data = options.pop("step"), every[options.pop("data")]
    with pytest.raises(StepError, match=match):
        mk.testing.assert_equivalent(lambda: step(net(), _sgd()), data, **options)
