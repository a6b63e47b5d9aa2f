"""`mk.timing.warm_up` compiles the function of a loop of your own, or Keras's, and changes nothing, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
PLACES = [("one_device", 1), ("mirrored", 2), ("central_storage", 2)]
BATCH = 8


class Count(L.Layer):
    """Passes its input on, and counts how often it is traced; a trace draws from Python's and NumPy's generators."""

    traces = 0

    def call(self, x: Any) -> Any:
        Count.traces += 1
        random.random()
        np.random.random()
        return x


class Own:
    """What a user writes without mirrorkit: a model, an optimizer, a metric, a generator and one tf.function."""

    def __init__(self, strategy: Any, *, built: bool = True) -> None:
        keras.utils.set_random_seed(3)
        tf.random.set_global_generator(tf.random.Generator.from_seed(5))
        self.strategy = strategy
        central = isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)
        # Keras's layers cannot write a central variable.
        stateful = [] if central else [L.BatchNormalization(), L.Dropout(0.3)]
        with strategy.scope():
            self.model = keras.Sequential([keras.Input((4,)), Count(), L.Dense(5), *stateful, L.Dense(1)])
            self.optimizer = keras.optimizers.Adam(0.05)
            if built:
                self.optimizer.build(self.model.trainable_variables)
            read, total = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
            self.seen = tf.Variable(0.0, trainable=False, synchronization=read, aggregation=total)  # as of a metric
        self.calls = tf.Variable(0)
        self.train = tf.function(self.train_step)
        self.central = central

    @property
    def restore(self) -> list[Any]:
        return [self.model, self.optimizer, self.seen, self.calls]

    def train_step(self, batch: Any) -> Any:
        self.calls.assign_add(1, read_value=False)  # a variable that is written and never read
        losses = self.strategy.run(self.on_replica, args=(batch,))
        return self.strategy.reduce("sum", losses, axis=None)

    def on_replica(self, batch: Any) -> Any:
        x, y = batch
        x += (
            0.01 * tf.random.get_global_generator().normal(tf.shape(x))
            if self.strategy.num_replicas_in_sync == 1
            else 0
        )
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self.model(x, training=True) - y) ** 2)
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        if not self.central:  # there it would be one variable for all
            self.seen.assign_add(loss)
        return loss

    def batches(self) -> Any:
        return self.strategy.experimental_distribute_dataset(_dataset())

    def fit(self) -> list[float]:
        return [float(self.train(batch)) for batch in self.batches()]

    def values(self) -> list[np.ndarray]:
        """Every replica's copy of every variable."""
        return copies_of([*self.model.variables, *self.optimizer.variables, self.seen, self.calls])


def copies_of(variables: list[Any]) -> list[np.ndarray]:
    found = []
    for variable in variables:
        own = getattr(variable, "value", variable) if not isinstance(variable, tf.Variable) else variable
        found += [copy.numpy() for copy in getattr(own, "values", (own,))]
    return found


def _numbers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4 * BATCH, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


def _dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(_numbers()).batch(BATCH, drop_remainder=True)


def draws() -> list[Any]:
    """What the random generators give next."""
    return [random.random(), np.random.random(3), tf.random.get_global_generator().normal([3]).numpy()]


def assert_same(before: list[Any], after: list[Any]) -> None:
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.fixture(params=PLACES, ids=lambda where: where[0])
def strategy(request: Any, strategy_of: Callable[..., Any]) -> Any:
    return strategy_of(*request.param)


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "only captured"])
def test_everything_is_as_it_was_and_nothing_is_left_to_trace(strategy: Any, listed: bool) -> None:
    """In the midst of a training, when the replicas' own counts differ and the optimizer's slots are not zero."""
    own = Own(strategy)
    tf.function(own.train_step)(next(iter(own.batches())))  # another trace of the same, so that `train` has none
    before = own.values()
    if strategy.num_replicas_in_sync == 2 and not own.central:
        assert len(set(map(float, copies_of([own.seen])))) == 2
    python, numpy, generator = random.getstate(), np.random.get_state(), tf.random.get_global_generator()
    state = generator.state.numpy()
    expected = draws()
    random.setstate(python)
    np.random.set_state(numpy)
    generator.state.assign(state)
    traces = Count.traces
    mk.timing.warm_up(own.train, next(iter(own.batches())), restore=own.restore if listed else ())
    assert Count.traces > traces
    assert_same(expected, draws())
    assert_same(before, own.values())
    traces = Count.traces
    own.fit()
    assert Count.traces == traces
    assert own.train.experimental_get_tracing_count() == 1


def test_training_gives_the_same_bits_with_and_without(strategy: Any) -> None:
    """Also where the first call makes the optimizer's slots."""
    results = []
    for warm, built in ((False, True), (True, True), (True, False)):
        own = Own(strategy, built=built)
        if warm:
            mk.timing.warm_up(own.train, next(iter(own.batches())), restore=own.restore)
            assert float(np.sum(own.optimizer.iterations.numpy())) == 0
        losses = own.fit()
        results.append([losses, *own.values()])
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


def test_within_the_scope_of_the_strategy(strategy_of: Callable[..., Any]) -> None:
    own = Own(strategy_of("mirrored", 2))
    before = own.values()
    with own.strategy.scope():
        mk.timing.warm_up(own.train, next(iter(own.batches())), restore=own.restore)
        assert_same(before, own.values())
        traces = Count.traces
        own.train(next(iter(own.batches())))
    assert Count.traces == traces


def test_a_plain_function_puts_back_what_the_functions_it_calls_hold(strategy_of: Callable[..., Any]) -> None:
    own = Own(strategy_of("mirrored", 2))
    steps = tf.Variable(7)

    def train(batch: Any) -> Any:
        steps.assign_add(1)  # in Python: only `restore` tells of it
        return own.train(batch)

    before = own.values()
    mk.timing.warm_up(train, next(iter(own.batches())), restore=steps)
    assert_same(before, own.values())
    assert int(steps) == 7


@pytest.mark.parametrize(
    "place", [("one_device", 1), pytest.param(("mirrored", 2), marks=pytest.mark.slow)], ids=lambda where: where[0]
)
@pytest.mark.parametrize("restore", ["model and optimizer", "model"])
def test_keras_fit_traces_nothing_more_and_trains_the_same_bits(
    place: tuple[str, int], restore: str, strategy_of: Callable[..., Any]
) -> None:
    """Its optimizer and its metrics make their variables in the warm-up."""
    strategy = strategy_of(*place)
    data = mk.data.batches(mk.data.arrays(*_numbers()), global_batch_size=BATCH, shuffle=True, seed=1)
    results = []
    for warm in (False, True):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            layers = [Count(), L.Dense(5), L.BatchNormalization(), L.Dropout(0.3), L.Dense(1)]
            model = keras.Sequential([keras.Input((4,)), *layers])
            model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        before = copies_of(model.variables)
        if warm:
            model.make_train_function()
            iterator = iter(strategy.experimental_distribute_dataset(data.epochs(2)))
            given = [model, model.optimizer] if restore == "model and optimizer" else model
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


def test_a_keras_metric_gets_back_every_replicas_copy_and_not_their_sum(strategy_of: Callable[..., Any]) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        metric = keras.metrics.Mean()
        model = keras.Sequential([keras.Input((4,)), L.Dense(1)])
    function = tf.function(lambda x: strategy.run(lambda x: metric.update_state(model(x)), args=(x,)))
    data = strategy.experimental_distribute_dataset(_dataset().map(lambda x, y: x))
    for batch in data:
        function(batch)
    before = copies_of(metric.variables)
    assert before[0] != before[1]
    mk.timing.warm_up(function, batch, restore=[metric])
    assert_same(before, copies_of(metric.variables))


def test_a_variable_among_the_arguments_is_put_back_and_an_iterator_is_not() -> None:
    total = tf.Variable(1.0)
    add = tf.function(lambda variable, iterator: variable.assign_add(next(iterator)))
    iterator = iter(tf.data.Dataset.from_tensor_slices([10.0, 20.0]))
    mk.timing.warm_up(add, total, iterator)
    assert float(total) == 1
    assert float(next(iterator)) == 20


def test_a_function_that_changes_nothing_needs_nothing_to_restore() -> None:
    double = tf.function(lambda x: 2 * x)
    mk.timing.warm_up(double, tf.ones(3))
    assert double.experimental_get_tracing_count() == 1
    mk.timing.warm_up(double.get_concrete_function(tf.ones(3)), tf.ones(3))


def test_a_concrete_function() -> None:
    total = tf.Variable(1.0)
    traced = tf.function(lambda x: total.assign_add(x)).get_concrete_function(tf.TensorSpec([]))
    mk.timing.warm_up(traced, tf.constant(2.0))
    assert float(total) == 1


@pytest.mark.parametrize("plain", [False, True])
def test_an_error_within_the_function_restores_as_well(plain: bool, strategy_of: Callable[..., Any]) -> None:
    own = Own(strategy_of("mirrored", 2))

    @tf.function
    def fails(batch: Any) -> Any:
        loss = own.train_step(batch)
        with tf.control_dependencies([loss]):
            tf.debugging.assert_less(own.calls, 0, message="as planned")

    before = own.values()
    function = (lambda batch: fails(batch)) if plain else fails
    python = random.getstate()
    with pytest.raises(tf.errors.InvalidArgumentError, match="as planned"):
        mk.timing.warm_up(function, next(iter(own.batches())), restore=own.model)
    assert_same(before, own.values())
    assert random.getstate() == python


def test_no_wrapper_stays_behind() -> None:
    kind = type(tf.function(lambda: None))
    call = kind.__call__
    mk.timing.warm_up(tf.function(lambda x: x), 1)
    assert kind.__call__ is call


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
        (
            lambda x: x,
            (),
            r"<lambda>, which is not a tf\.function, and nothing to restore.*restore=\[model, optimizer\]",
        ),
        (tf.function(lambda x: x), [3], r"restore=\.\.\..*objects that have `\.variables`.*found 3"),
        (3, (), "was given 3, which cannot be called"),
    ],
)
def test_refusals(function: Any, restore: Any, message: str) -> None:
    with pytest.raises(StepError, match=message):
        mk.timing.warm_up(function, 1, restore=restore)


def test_within_a_function_it_is_refused() -> None:
    with pytest.raises(StepError, match=r"within a tf\.function.*outside"):
        tf.function(lambda: mk.timing.warm_up(tf.function(lambda x: x), 1), autograph=False)()


def test_variables_that_a_plain_function_creates_are_refused_by_name() -> None:
    own = Own(tf.distribute.get_strategy(), built=False)
    x, y = map(tf.constant, _numbers())
    before = copies_of(own.model.variables)
    with pytest.raises(StepError, match=r"on_replica created variables.*momentum.* more.*optimizer\.build\(model\.tr"):
        mk.timing.warm_up(own.on_replica, (x, y), restore=[own.model, own.optimizer])
    assert_same(before, copies_of(own.model.variables))


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
        with pytest.raises(StepError, match=r"creates variables whose first values depend on that call.*has not run"):
            mk.timing.warm_up(function, tf.constant(3.0))


def test_a_model_brings_its_metrics_and_its_optimizer(strategy_of: Callable[..., Any]) -> None:
    """Run eagerly, so that no tf.function tells of them."""
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), L.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], run_eagerly=True)
    model.fit(_dataset(), steps_per_epoch=2, verbose=0)
    everything = [*model.variables, *model.metrics_variables, *model.optimizer.variables]
    before = copies_of(everything)
    mk.timing.warm_up(model.train_function, iter(strategy.experimental_distribute_dataset(_dataset())), restore=model)
    assert_same(before, copies_of(everything))
    model.train_function(iter(strategy.experimental_distribute_dataset(_dataset())))
    assert all(map(np.any, copies_of(model.metrics_variables)))
    assert not any(map(np.array_equal, before[-2:], copies_of(everything)[-2:]))
