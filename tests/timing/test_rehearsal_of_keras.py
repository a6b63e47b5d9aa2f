"""`mk.timing.warm_up` of Keras's own functions: fit's train function, metrics, compiled models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from rehearsal_subjects import BATCH, Count, assert_same, copies_of, dataset, numbers

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers


@pytest.mark.parametrize(
    ("place", "listed"),
    [
        pytest.param(("one_device", 1), False, marks=pytest.mark.slow),
        pytest.param(("mirrored", 2), True, marks=pytest.mark.slow),
    ],
    ids=["one_device", "mirrored, the optimizer listed too"],
)
def test_keras_fit_traces_nothing_more_and_trains_the_same_bits(
    place: tuple[str, int], listed: bool, strategy_of: Callable[..., tf.distribute.Strategy]
) -> None:
    """Its optimizer and its metrics make their variables in the warm-up."""
    strategy = strategy_of(*place)
    data = mk.data.batches(mk.data.arrays(*numbers()), global_batch_size=BATCH, shuffle=True, seed=1)
    results = []
    for warm in (False, True):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            layers = [Count(), L.Dense(5), L.BatchNormalization(), L.Dropout(0.3), L.Dense(1)]
            model = keras.Sequential([keras.Input((4,)), *layers])
            model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", metrics=["mae"])
        before = copies_of(model.variables)
        if warm:
            model.make_train_function()
            iterator = iter(strategy.experimental_distribute_dataset(data.epochs(2)))
            given = [model, model.optimizer] if listed else model
            mk.timing.warm_up(model.train_function, iterator, restore=given)
            assert_same(before, copies_of(model.variables))
            assert not np.any([value.any() for value in copies_of(model.metrics_variables)])
            assert len(model.optimizer.variables) > len(model.trainable_variables)
            slots = [v for v in model.optimizer.variables if not v.path.endswith("learning_rate")]
            assert not np.any([value.any() for value in copies_of(slots)])
        traces = Count.traces
        length = {"epochs": 2, "steps_per_epoch": data.steps_per_epoch}
        history = model.fit(data.epochs(2), verbose=0, **length).history
        assert (Count.traces == traces) == warm
        assert int(model.optimizer.iterations.numpy()) == 8
        results.append([*copies_of([*model.variables, *model.optimizer.variables]), *map(np.array, history.values())])
    assert_same(*results)


def test_a_keras_metric_gets_back_every_replicas_copy_and_not_their_sum(
    strategy_of: Callable[..., tf.distribute.Strategy],
) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        metric = keras.metrics.Mean()
        model = keras.Sequential([keras.Input((4,)), L.Dense(1)])
    function = tf.function(lambda x: strategy.run(lambda x: metric.update_state(model(x)), args=(x,)))
    data = strategy.experimental_distribute_dataset(dataset().map(lambda x, y: x))
    for batch in data:
        function(batch)
    before = copies_of(metric.variables)
    assert before[0] != before[1]
    mk.timing.warm_up(function, batch, restore=[metric])
    assert_same(before, copies_of(metric.variables))
