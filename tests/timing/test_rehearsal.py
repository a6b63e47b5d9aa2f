"""warm_up: the functions of a custom loop are compiled, and everything is as it was."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rehearsal_subjects import BATCH, Count, Own, copies_of, dataset, draws, numbers

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError


@pytest.fixture(scope="module")
def own(strategy_of: Callable[..., Any]) -> Own:
    """In the midst of a training, when the replicas' own counts differ and the optimizer's slots are not zero."""
    own = Own(strategy_of("mirrored", 2))
    own.train(next(iter(own.batches())))
    assert len(set(map(float, copies_of([own.seen])))) == 2
    return own


def check_that_all_is_as_it_was(own: Own) -> None:
    own.train = tf.function(own.train_step)
    before = own.values()
    python, numpy, generator = random.getstate(), np.random.get_state(), tf.random.get_global_generator()
    state = generator.state.numpy()
    expected = draws()
    random.setstate(python)
    np.random.set_state(numpy)
    generator.state.assign(state)
    traces = Count.traces
    mk.timing.warm_up(own.train, next(iter(own.batches())))
    assert Count.traces > traces
    np.testing.assert_equal(expected, draws())
    np.testing.assert_equal(before, own.values())
    traces = Count.traces
    own.fit()
    assert Count.traces == traces, "nothing is left to trace"
    assert own.train.experimental_get_tracing_count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("place", [("mirrored", 2), ("one_device", 1), ("central_storage", 2)], ids=str)
def test_training_gives_the_same_bits_with_and_without(place: Any, strategy_of: Callable[..., Any]) -> None:
    """Also where the first call makes the optimizer's slots."""
    results = []
    for warm in (False, True):
        own = Own(strategy_of(*place), built=not warm)
        if warm:
            mk.timing.warm_up(own.train, next(iter(own.batches())), restore=own.restore)
            assert float(np.sum(own.optimizer.iterations.numpy())) == 0
        losses = own.fit()
        results.append([losses, *own.values()])
    np.testing.assert_equal(*results)
    check_that_all_is_as_it_was(own)  # in the midst of a training


def test_a_plain_function_puts_back_what_the_functions_it_calls_hold(own: Own) -> None:
    own.train = tf.function(own.train_step)
    steps = tf.Variable(7)

    def train(batch: Any) -> Any:
        steps.assign_add(1)  # in Python: only `restore` tells of it
        return own.train(batch)

    before = own.values()
    mk.timing.warm_up(train, next(iter(own.batches())), restore=steps)
    np.testing.assert_equal(before, own.values())
    assert int(steps) == 7


def test_a_variable_among_the_arguments_is_put_back_and_an_iterator_is_not() -> None:
    total = tf.Variable(1.0)
    add = tf.function(lambda variable, iterator: variable.assign_add(next(iterator)))
    iterator = iter(tf.data.Dataset.from_tensor_slices([10.0, 20.0]))
    mk.timing.warm_up(add, total, iterator)
    assert float(total) == 1
    assert float(next(iterator)) == 20


def test_a_function_that_changes_nothing_needs_nothing_to_restore() -> None:
    double = tf.function(lambda x: 2 * x)
    call = type(double).__call__
    mk.timing.warm_up(double, tf.ones(3))
    assert double.experimental_get_tracing_count() == 1
    mk.timing.warm_up(double.get_concrete_function(tf.ones(3)), tf.ones(3))
    assert type(double).__call__ is call, "no wrapper stays behind"


@pytest.mark.parametrize("plain", [False, True])
def test_an_error_within_the_function_restores_as_well(plain: bool) -> None:
    total = tf.Variable(1.0)

    @tf.function
    def fails(x: Any) -> Any:
        with tf.control_dependencies([total.assign_add(x)]):
            tf.debugging.assert_less(total, 0.0, message="as planned")

    function = (lambda x: fails(x)) if plain else fails
    python = random.getstate()
    with pytest.raises(tf.errors.InvalidArgumentError, match="as planned"):
        mk.timing.warm_up(function, tf.constant(2.0), restore=tf.Variable(0.0))
    assert float(total) == 1
    assert random.getstate() == python


def test_every_way_to_call_a_tf_function_goes_through_the_method_that_is_wrapped() -> None:
    """`_remembering` wraps `__call__` of a private class: this fails when TensorFlow moves its entry."""
    total = tf.Variable(1.0)

    class Adder:
        @tf.function
        def add(self, x: Any) -> Any:
            return total.assign_add(x)

    adder = Adder()
    plain: list[Callable[[], Any]] = [
        lambda: tf.function(total.assign_add)(2.0),
        lambda: adder.add(2.0),
        lambda: tf.function(lambda: adder.add(2.0))(),
        lambda: tf.function(total.assign_add, jit_compile=True)(2.0),
    ]
    for function in plain:
        mk.timing.warm_up(function, restore=tf.Variable(0.0))
        assert float(total) == 1
        function()
        assert float(total.assign_sub(2.0)) == 1


@pytest.mark.parametrize(
    ("function", "restore", "message"),
    [
        (lambda x: x, (), r"<lambda>.*nothing to restore"),
        (tf.function(lambda x: x), [3], r"restore=\.\.\..*found 3"),
    ],
)
def test_refusals(function: Any, restore: Any, message: str) -> None:
    with pytest.raises(StepError, match=message):
        mk.timing.warm_up(function, 1, restore=restore)


def test_within_a_function_it_is_refused() -> None:
    with pytest.raises(StepError, match="outside"):
        tf.function(lambda: mk.timing.warm_up(tf.function(lambda x: x), 1), autograph=False)()


def test_variables_that_a_plain_function_creates_are_refused_by_name() -> None:
    own = Own(tf.distribute.get_strategy(), built=False)
    x, y = map(tf.constant, numbers())
    before = copies_of(own.model.variables)
    with pytest.raises(StepError, match=r"momentum.*optimizer\.build"):
        mk.timing.warm_up(own.on_replica, (x, y), restore=[own.model, own.optimizer])
    np.testing.assert_equal(before, copies_of(own.model.variables))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("lifted", [True, False])
def test_variables_whose_first_values_are_tensors(lifted: bool, nested: bool) -> None:
    made: list[tf.Variable] = []

    @tf.function
    def train(x: Any) -> Any:
        if not made:
            made.append(tf.Variable(tf.ones([]) if lifted else 2 * x, name="made_late"))
        return made[0].assign_add(x)

    function = tf.function(lambda x: train(x)) if nested else train
    if lifted:
        mk.timing.warm_up(function, tf.constant(3.0))
        assert float(made[0]) == 1
        assert float(function(tf.constant(3.0))) == 4
    else:
        with pytest.raises(StepError, match="first values depend"):
            mk.timing.warm_up(function, tf.constant(3.0))


# --- `mk.timing.warm_up` of Keras's own functions: fit's train function, metrics, compiled models


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
            np.testing.assert_equal(before, copies_of(model.variables))
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
    np.testing.assert_equal(*results)


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
    np.testing.assert_equal(before, copies_of(metric.variables))
