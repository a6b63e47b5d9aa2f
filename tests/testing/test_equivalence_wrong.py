"""assert_equivalent: what is right passes, and what is wrong is found."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from equivalence_steps import (
    ForgottenReduction,
    L,
    LocalState,
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
    return re.sub(
        r"(sequential|dense|batch_normalization)_\d+", r"\1", str(caught.value)
    )  # Keras numbers steps' layers


def _sgd() -> Any:
    return keras.optimizers.SGD(0.05)


WEIGHTS = "sequential/dense/kernel, sequential/dense/bias, sequential/last/kernel, sequential/last/bias"


def test_a_gradient_that_is_twice_too_large_shows_in_all_weights() -> None:
    """A mean over the share, as in many a script; on one replica it is right."""
    message = _fails(lambda: Tutorial(net(), _sgd(), tf.reduce_mean))
    assert "not give the same result on 2 replicas (mirrored) as on one. After 4 steps these differ (by " in message
    assert f", allowed 1.0e-06): {WEIGHTS}" in message


@pytest.mark.slow
def test_a_forgotten_reduction() -> None:
    message = _fails(lambda: ForgottenReduction(net(), _sgd()))
    assert f"(the replicas' copies differ): {WEIGHTS}. " in message


@pytest.mark.slow
def test_batchnorm_that_each_replica_keeps_for_itself() -> None:
    message = _fails(lambda: LocalState(net(L.BatchNormalization()), _sgd()))
    state = "sequential/batch_normalization/moving_mean, sequential/batch_normalization/moving_variance"
    assert f"these differ (the replicas' copies differ): {state}. " in message
    assert 'plain BatchNormalization or random layers needs reference="shards"' in message


@pytest.mark.slow
def test_a_share_without_examples() -> None:
    class Mean(RightStep):
        def compute(self, batch: Any) -> Any:
            return tf.nest.map_structure(
                lambda value: value * tf.reduce_mean(batch[1] / batch[1]), super().compute(batch)
            )

    x, y = points(9)
    with pytest.raises(AssertionError, match=r"NaN.*step 1.*empty"):
        mk.testing.assert_equivalent(
            lambda: Mean(net(), _sgd()), (x, y), replicas=(1, 2), steps=2, global_batch_size=8, uneven=False
        )


@pytest.mark.slow
def test_a_step_that_trains_nothing() -> None:
    assert "changed none of its trainable variables" in _fails(lambda: RightStep(net(), keras.optimizers.SGD(0.0)))


@pytest.mark.slow
def test_first_weights_that_differ_each_time() -> None:
    def make() -> Any:
        model = net()
        model.layers[0].bias.assign(np.random.default_rng().normal(size=6))
        return RightStep(model, _sgd())

    assert "different initial values each time" in _fails(make, steps=2)


@pytest.mark.slow
def test_a_net_that_amplifies_rounding_proves_nothing() -> None:
    class Chaotic(RightStep):
        def _new_values(self, sums: Any, values: Any) -> Any:
            new, logs = super()._new_values(sums, values)
            return [tf.sin(1e4 * value) for value in new[:1]] + new[1:], logs

    message = _fails(lambda: Chaotic(net(), _sgd()))
    assert "Nothing can be proven: on one replica, weights that differ in the last place" in message


class Silent(RightStep):
    """Does not say what it changes."""

    variables = property(lambda self: [], lambda self, value: None)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"reference": "one"}, "reference"),
        ({"replicas": (1,)}, "replicas"),
        ({"steps": 1}, "steps"),
        ({"global_batch_size": None}, "with global_batch_size="),
        ({"data": "dataset"}, "global_batch_size is for arrays"),
        ({"data": "array"}, "found ndarray"),
        ({"data": "nothing", "global_batch_size": None}, "empty"),
        ({"ignore": ["last/bias", "first/bias"]}, r"ignore=\['first/bias'\] matches none"),
        ({"step": Silent}, "Silent"),
    ],
)
def test_arguments_that_do_not_fit(options: Any, match: str) -> None:
    options = {"step": RightStep, "data": "arrays", "global_batch_size": 8, **options}
    dataset = tf.data.Dataset.from_tensor_slices(points()).batch(8)
    every = {"arrays": points(), "array": points()[0], "dataset": dataset, "nothing": dataset.take(0)}
    step, data = options.pop("step"), every[options.pop("data")]
    with pytest.raises(StepError, match=match):
        mk.testing.assert_equivalent(lambda: step(net(), _sgd()), data, **options)


# --- right steps pass `assert_equivalent`: Step with many options, a user's own, every kind of data and strategy


o = keras.optimizers


@pytest.mark.slow
def test_a_users_own_step() -> None:
    found = mk.testing.assert_equivalent(
        lambda: RightStep(net(), o.SGD(0.05)), points(60), replicas=(1, 3), steps=6, global_batch_size=16
    )
    assert found.differences.keys() == {3}
    assert 0 < found.differences[3] < 1e-6
    assert 0 < found.control < 1e-5
    assert found.bar == max(1e-6, 3 * found.control)
    assert str(found).startswith("after 6 steps: 3 replicas ")


def _layers_that_depend_on_the_cut() -> Any:
    return mk.train.Step(net(L.BatchNormalization(), L.Dropout(0.3)), o.SGD(0.01), loss="mse", accumulate=2)


@pytest.mark.slow
def test_layers_that_depend_on_the_cut_need_the_other_reference() -> None:
    dataset = tf.data.Dataset.from_tensor_slices(points(25)).batch(12)  # the last batch holds one: 1, 0
    make, options = _layers_that_depend_on_the_cut, {"replicas": (2,), "steps": 5}
    found = mk.testing.assert_equivalent(make, dataset, **options, reference="shards")
    assert max(found.differences.values()) < 1e-6
    with pytest.raises(AssertionError, match=r"reference=\"shards\""):
        mk.testing.assert_equivalent(make, dataset, **options)


@pytest.mark.slow
def test_a_parameter_without_a_gradient_is_left_out_by_name() -> None:
    class Drifts(RightStep):
        """The last layer's bias, which does not enter the loss, moves with the number of replicas."""

        def compute(self, batch: Any) -> Any:
            x, y = batch
            return super().compute((x, y + self.model.layers[-1].bias))

        def _new_values(self, sums: Any, values: Any) -> Any:
            new, logs = super()._new_values(sums, values)
            new[3] += 1e-3 * tf.distribute.get_strategy().num_replicas_in_sync
            return new, logs

    def make() -> Any:
        return Drifts(net(), o.SGD(0.05))

    options = {"replicas": (1, 2), "steps": 3, "global_batch_size": 8}
    with pytest.raises(AssertionError, match=r"differ \(.*\): sequential/last/bias"):
        mk.testing.assert_equivalent(make, points(), **options)
    mk.testing.assert_equivalent(make, points(), **options, ignore=["last/bias"])
