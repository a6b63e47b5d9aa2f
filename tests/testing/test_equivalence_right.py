"""Right steps pass `assert_equivalent`: Step with many options, a user's own, every kind of data and strategy."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from equivalence_steps import L, RightStep, net, points

import mirrorkit as mk
from mirrorkit._keras import keras

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


@pytest.mark.slow  # a process of its own
def test_the_cpu_is_split_when_it_can_be(run_python: Any) -> None:
    result = run_python(
        """
        import keras, numpy as np, mirrorkit as mk

        def make_step():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            return mk.train.Step(model, keras.optimizers.SGD(0.1), loss="mse")

        x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
        found = mk.testing.assert_equivalent(make_step, (x, x[:, :1]), replicas=(1, 3), steps=2, global_batch_size=6)
        print(list(found.differences))
        """,
    )
    assert result.json() == [3]
