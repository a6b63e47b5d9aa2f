"""What the first batch did not show is found later: what a counter or a callback switches on, and nothing else."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from first_batch_helpers import TWO, X
from training_helpers import line_net, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train.first_batch import check as check_module, later, parts
from mirrorkit.train.first_batch.check import Switches
from mirrorkit.train.first_batch.later import LaterChecks

L = keras.layers
ops = keras.ops
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")
ENDLESS = plain_dataset(X, X[:, :1], batch=8).repeat()


class _SwitchOn(keras.callbacks.Callback):
    """In a hook, when it is called with this number."""

    def __init__(self, switch: Any, value: Any, hook: str = "on_train_batch_end", number: int = 1) -> None:
        super().__init__()
        self.switch, self.value, self.number = switch, value, number
        setattr(self, hook, self.act)

    def act(self, number: int, logs: Any = None) -> None:
        if number == self.number:
            self.switch.assign(self.value)


class _Centers(L.Layer):  # type: ignore[name-defined]
    def build(self, shape: Any) -> None:
        self.share = self.add_weight(shape=(), initializer="zeros", trainable=False, name="share")

    def call(self, x: Any, training: bool = False) -> Any:
        return x - self.share * ops.mean(x, axis=0, keepdims=True) if training else x


class _CentersLater(L.Layer):  # type: ignore[name-defined]
    """After three steps, which it counts."""

    def build(self, shape: Any) -> None:
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        self.steps.assign(self.steps + 1.0)
        return x - ops.where(self.is_on(), 0.5, 0.0) * ops.mean(x, axis=0, keepdims=True)

    def is_on(self) -> Any:
        return self.steps > 3.5


class _CentersInOddSteps(_CentersLater):
    """The first step is step 0."""

    def is_on(self) -> Any:
        return ops.equal(self.steps % 2, 0.0)


class _TwoUpdates(keras.Model):  # type: ignore[name-defined, misc]
    """A train_step of its own: it minimizes a mean over the rows; after some steps, or at a low rate, the maximum.

    Also from so many rows on.
    """

    def __init__(self, layers: Any = lambda: (), largest_after: int = 10**9, largest_from: int = 10**9) -> None:
        super().__init__()
        self.net, self.largest_after = sequential((4,), *layers(), L.Dense(1)), largest_after
        self.largest_from = largest_from
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def call(self, x: Any, training: bool = False) -> Any:
        return self.net(x, training=training)

    def train_step(self, data: Any) -> Any:
        x, y = data
        for _ in range(2):
            is_late = (self.optimizer.iterations >= 2 * self.largest_after) | (self.optimizer.learning_rate < 0.005)
            with tf.GradientTape() as tape:
                each = tf.reduce_mean((self.net(x, training=True) - y) ** 2, -1)
                is_late |= tf.shape(each)[0] >= self.largest_from
                loss = tf.where(is_late, tf.reduce_max(each), tf.reduce_mean(each))
            weights = self.net.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def _loop_of(strategy: Any, unchecked: Any = (), **options: Any) -> Any:
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = _TwoUpdates(**options)
        model.compile(keras.optimizers.SGD(0.01))
    return mk.train.Loop(strategy, mk.train.Step.from_compiled(model, unchecked=unchecked), steps_per_call=1)


@pytest.fixture(autouse=True)
def no_check_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the machine computes."""
    monkeypatch.setattr(later, "_SECONDS", 1e9)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """After how many steps there was a later check."""
    steps: list[int] = []
    check = LaterChecks.check

    def noted(self: LaterChecks, after: int, batch: Any) -> None:
        steps.append(after)
        check(self, after, batch)

    monkeypatch.setattr(LaterChecks, "check", noted)
    return steps


class _OfPresent(L.Layer):  # type: ignore[name-defined]
    """Divides by how many rows of a batch are not empty."""

    def call(self, x: Any) -> Any:
        return x / ops.mean(ops.cast(ops.any(x != 0.0, axis=-1, keepdims=True), "float32"))


def _batches_and_then(first: Any, batches: int, later: Any) -> Any:
    x = np.concatenate([np.tile(first, (batches, 1)), np.tile(later, (8, 1))])
    return plain_dataset(x, x[:, :1], batch=8)


def test_rows_that_show_it_come_later(make_loop: Any, checked: list[int]) -> None:
    """The batch that comes next is looked at, and then trained on."""
    loop = make_loop(TWO, lambda: sequential((4,), _OfPresent(), L.Dense(1)), steps_per_call=1)
    padded = X[:8] * (np.arange(8) % 4 != 1)[:, None]
    with pytest.raises(StepError, match=r"At step 11 .*depends on the other examples"):
        loop.fit(_batches_and_then(X[:8], 11, padded), verbose=0)
    assert checked == [11]


@pytest.mark.slow
def test_a_first_batch_of_equal_rows_is_passed_over(make_loop: Any, checked: list[int]) -> None:
    centers = lambda: sequential((4,), L.Dense(3), _Centers(), L.Dense(1))  # noqa: E731
    loop = make_loop(TWO, centers, steps_per_call=1)
    loop.step.model.layers[1].share.assign(1.0)
    more_than_are_looked_at_first = _batches_and_then(X[:1], 96, X[:8])
    with pytest.raises(StepError, match=r"At step 16 .*depends on the other examples"):
        loop.fit(more_than_are_looked_at_first, verbose=0)
    assert checked == [1, 2, 4, 8, 16]


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end"])
def test_a_callback_in_the_midst_of_the_training(hook: str, make_loop: Any) -> None:
    """Found at the end of the first call with what it has assigned."""
    loop = make_loop(TWO, lambda: sequential((4,), L.Dense(3), _Centers(), L.Dense(1)), steps_per_call=2)
    switch = _SwitchOn(loop.step.model.layers[1].share, 1.0, hook, 3)
    with pytest.raises(StepError, match=r"the check at step 12.*depends on the other examples"):
        loop.fit(ENDLESS, steps_per_epoch=5, epochs=9, callbacks=[switch], verbose=0)
    after = 17 if hook == "on_epoch_begin" else 22
    assert loop.step.optimizer.iterations == after
    with pytest.raises(StepError, match="depends on the other examples"):  # a second try is no way around
        loop.fit(ENDLESS, steps_per_epoch=1, verbose=0)
    assert loop.step.optimizer.iterations == after


@pytest.mark.slow
def test_every_second_step(make_loop: Any, checked: list[int]) -> None:
    """The first step, which is even, does not show it."""
    loop = make_loop(TWO, lambda: sequential((4,), L.Dense(3), _CentersInOddSteps(), L.Dense(1)), steps_per_call=1)
    with pytest.raises(StepError, match=r"At step 11 .*depends on the other examples"):
        loop.fit(ENDLESS, steps_per_epoch=20, verbose=0)


def test_a_layer_that_counts_steps(make_loop: Any) -> None:
    loop = make_loop(TWO, lambda: sequential((4,), L.Dense(3), _CentersLater(), L.Dense(1)), steps_per_call=4)
    with pytest.raises(StepError, match=r"the check at step 0.*depends on the other examples"):
        loop.fit(ENDLESS, steps_per_epoch=50, verbose=0)
    assert loop.step.optimizer.iterations == 12  # the end of the call with the tenth step


@pytest.mark.parametrize("switched", ["a layer", "the learning rate"])
def test_a_callback_switches_what_a_step_with_two_updates_reads(switched: str, strategy_of: Any) -> None:
    layer = _Centers()
    loop = _loop_of(strategy_of(*TWO), layers=lambda: [layer])
    switch, value = (layer.share, 1.0) if switched == "a layer" else (loop.step.model.optimizer.learning_rate, 0.001)
    with pytest.raises(StepError, match=r"At step 4 .* the check at step 0 .*does not mean the same on shares"):
        loop.fit(ENDLESS, steps_per_epoch=9, callbacks=[_SwitchOn(switch, value, number=3)], verbose=0)


@pytest.mark.parametrize(("replicas", "first"), [(2, 13), (3, 24)])
def test_a_step_with_two_updates_that_depends_on_the_number_of_rows(
    replicas: int, first: int, strategy_of: Any
) -> None:
    match = "does not mean the same on shares"
    with pytest.raises(StepError, match=match):
        _loop_of(strategy_of("mirrored", replicas), largest_from=first).fit(plain_dataset(X, X[:, :1], batch=24))
    _loop_of(strategy_of("mirrored", replicas), largest_from=25).fit(plain_dataset(X, X[:, :1], batch=24))


def test_gradients_that_are_nothing_but_rounding(
    strategy_of: Any, checked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the weights of the least squares those of several rows add up to nothing."""
    loop = _loop_of(strategy_of(*TWO))
    x, y = np.tile(100 * X[:8], (2, 1)), np.tile(1000 * X[8:16, 1:2], (2, 1))
    x[:, 1:] = 0.0
    slope, bias = np.polyfit(x[:, 0], y[:, 0], 1)
    settles = keras.callbacks.Callback()
    best = [np.array([[slope], [0.0], [0.0], [0.0]]), np.array([bias])]
    settles.on_train_batch_end = lambda batch, logs=None: loop.step.model.set_weights(best)
    loop.fit(plain_dataset(x, y, batch=16).repeat(), steps_per_epoch=11, callbacks=[settles], verbose=0)
    assert checked == [11]
    monkeypatch.setattr(parts, "but_for_rounding", lambda whole, parts, nudged: parts)
    with pytest.raises(StepError, match="gradients"):
        check_module.compare_parts(loop._passes.step, (tf.constant(x), tf.constant(y)), "train")


class _Counts(L.Layer):  # type: ignore[name-defined]
    """In a Python attribute, how often it is called."""

    calls = 0

    def call(self, x: Any) -> Any:
        self.calls += 1
        return x


def _supervised(make_loop: Any, strategy_of: Any) -> Any:
    def net() -> Any:
        return sequential((4,), L.Dense(8), L.BatchNormalization(), L.Dropout(0.3), _Counts(), L.Dense(1))

    return make_loop(TWO, net, lambda: keras.optimizers.Adam(0.01), steps_per_call=2, accumulate=2, metrics=["mae"])


def _of_its_own(make_loop: Any, strategy_of: Any) -> Any:
    return _loop_of(strategy_of(*TWO), layers=lambda: (L.Dense(8), L.BatchNormalization(), L.Dropout(0.3), _Counts()))


@pytest.mark.parametrize("make", [pytest.param(_supervised, marks=pytest.mark.slow), _of_its_own])
def test_a_right_training_goes_on_with_the_same_bits(
    make: Any, make_loop: Any, strategy_of: Any, monkeypatch: pytest.MonkeyPatch, checked: list[int]
) -> None:
    def trained() -> list[Any]:
        loop = make(make_loop, strategy_of)
        history = loop.fit(ENDLESS, steps_per_epoch=6, epochs=2, verbose=0).history
        model = getattr(loop.step.model, "net", loop.step.model)
        calls = [layer.calls for layer in model.layers if isinstance(layer, _Counts)]
        variables = [v.value.numpy() for v in loop._passes.step.variables]
        draws = [random.random(), np.random.uniform(), tf.random.normal([3]), keras.random.normal([3])]
        return [*variables, *history.values(), calls, *draws, len(loop._passes.calls._traces)]

    expected, first = trained(), 12 if make is _supervised else 11
    assert checked == [first]
    monkeypatch.setattr(LaterChecks, "is_due", lambda self, steps: False)
    for one, other in zip(trained(), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert checked == [first]


def test_what_has_no_parts_or_is_unchecked_is_left_alone(make_loop: Any, strategy_of: Any, checked: list[int]) -> None:
    for loop in (
        make_loop(("one_device", 1), line_net),
        _loop_of(strategy_of("one_device", 1), largest_after=6),
        _loop_of(strategy_of(*TWO), largest_after=6, unchecked="rows"),
    ):
        loop.fit(ENDLESS, steps_per_epoch=12, verbose=0)
    assert checked == []


def test_a_name_that_is_unchecked_stays_so(make_loop: Any) -> None:
    switch = keras.Variable(0.0, trainable=False)

    def loss(y: Any, y_pred: Any) -> Any:
        each = ops.mean(ops.square(y - y_pred), -1)
        return each + switch * ops.max(each)

    loop = make_loop(TWO, line_net, loss=loss, unchecked=("loss", "rows"))
    loop.fit(ENDLESS, steps_per_epoch=12, callbacks=[_SwitchOn(switch, 1.0, number=2)], verbose=0)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_no_difference(strategy_of: Any, checked: list[int]) -> None:
    loop = _loop_of(strategy_of(*TWO))
    bias = loop.step.model.net.layers[0].bias
    nan = _SwitchOn(bias, [np.nan], "on_train_batch_begin", number=9)
    loop.fit(ENDLESS, steps_per_epoch=20, callbacks=[nan, keras.callbacks.TerminateOnNaN()], verbose=0)
    assert loop.position.steps == 10
    assert checked == []


@pytest.mark.slow
def test_a_further_fit_counts_on_and_one_that_resumes_too(make_loop: Any, checked: list[int], tmp_path: Path) -> None:
    def loop() -> Any:
        return make_loop(TWO, line_net, steps_per_call=1)

    first = loop()
    saved = mk.train.Checkpoints(tmp_path)
    first.fit(ENDLESS, steps_per_epoch=4, epochs=2, callbacks=[saved], verbose=0)
    assert checked == []
    first.fit(ENDLESS, steps_per_epoch=60, epochs=2, verbose=0)
    assert checked == [11, 101]
    checked.clear()
    resumed = loop()
    resumed.fit(ENDLESS, steps_per_epoch=4, epochs=4, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0)
    assert checked == [11]


def test_the_time_of_all_checks_is_bounded(make_loop: Any, monkeypatch: Any, caplog: Any) -> None:
    now = [0.0]
    for clock in ("perf_counter", "process_time"):
        monkeypatch.setattr(later, clock, lambda: now[0])
    monkeypatch.setattr(later, "_SECONDS", 5.0)

    def takes(seconds: float) -> Any:
        def check(batch: Any) -> None:
            now[0] += seconds

        return check

    def checks(first: float) -> Any:
        step = make_loop(TWO, line_net)._passes.step
        monkeypatch.setattr(later, "first_batch_check", lambda step, again=False: takes(2.0 if again else first))
        made = LaterChecks(step)
        made.first(0)(None)
        made._step.checked["train"] = None
        return made

    some = checks(3.0)
    assert not some.is_due(10)
    for steps in (11, 101):  # as long as five seconds are not over
        assert some.is_due(steps)
        some.check(steps, None)
        assert not some.is_due(steps + 1)
    with caplog.at_level("INFO", "mirrorkit"):
        assert not some.is_due(1001)  # a third one of two seconds
    assert "The check at step 1001 waits" in caplog.text
    some._trained = 599.0
    assert not some.is_due(1002)
    some._trained = 601.0
    assert some.is_due(1003)
    del some._step.checked["train"]  # none of them could tell anything: the next does not wait
    some._trained = 0.0
    assert some.is_due(2000)
    assert not checks(6.0).is_due(11)  # by the first check


@pytest.mark.parametrize("what", ["evaluate", "predict", "validation"])
def test_what_was_changed_since_the_last_evaluation_or_prediction(what: str, make_loop: Any) -> None:
    class CentersOutside(_Centers):
        def call(self, x: Any, training: bool = False) -> Any:
            return x if training else super().call(x, training=True)

    layer = CentersOutside()
    loop = make_loop(TWO, lambda: sequential((4,), layer, L.Dense(1)))
    data = plain_dataset(X, X[:, :1], batch=8)

    def validated(data: Any) -> Any:
        loop.fit(data, validation_data=data, verbose=0)

    run = {"evaluate": loop.evaluate, "predict": loop.predict, "validation": validated}[what]
    for _ in range(3):  # the fourth pass is checked for the change alone
        run(data)
    layer.share.assign(1.0)
    with pytest.raises(StepError, match="depends on the other examples"):
        run(data)


def test_switches_count_the_changes_of_each_variable() -> None:
    """The first, second, fourth, ... of each; large ones are left alone."""
    often, once, large = keras.Variable(0.0), keras.Variable(0.0), keras.Variable(np.zeros(17))
    switches = Switches(SimpleNamespace(only_read=[often, once, large]))
    due = []
    for number in range(1, 9):
        often.assign(number)
        if number == 7:
            once.assign(1.0)
        if switches.is_due():
            due.append(number)
    assert due == [1, 2, 4, 7, 8]
    large.assign(np.ones(17))
    assert not switches.is_due()


def test_a_second_fit_on_a_dataset_goes_on_with_the_checks(make_loop: Any) -> None:
    """Its calls are whole epochs, of which no batch is left."""
    loop = make_loop(TWO, lambda: sequential((4,), _CentersLater(), L.Dense(1)), steps_per_call=3)
    loop.step.model.layers[0].steps.assign(-5.0)  # so that it begins in the ninth step
    loop.fit(plain_dataset(X, X[:, :1], batch=8), epochs=2, verbose=0)
    with pytest.raises(StepError, match=r"At step 12 .*depends on the other examples"):
        loop.fit(plain_dataset(X, X[:, :1], batch=8), epochs=3, verbose=0)


class _CentersOutliers(L.Layer):  # type: ignore[misc, name-defined]
    def call(self, x: Any) -> Any:
        return tf.where(tf.reduce_max(tf.abs(x)) > 20.0, x - tf.reduce_mean(x, 0), x)


@pytest.mark.parametrize("what", ["fit", pytest.param("evaluate", marks=pytest.mark.slow)])
def test_other_data_of_a_further_call(what: str, make_loop: Any) -> None:
    loop = make_loop(TWO, lambda: sequential((4,), _CentersOutliers(), L.Dense(1)))
    call = functools.partial(getattr(loop, what), verbose=0) if what == "fit" else loop.evaluate
    outlier = X[:8] + 30 * (np.arange(8) == 5)[:, None]
    call(plain_dataset(X, X[:, :1], batch=8))
    with pytest.raises(StepError, match="depends on the other examples"):
        call(plain_dataset(outlier, X[:8, :1], batch=8))


def test_batches_of_padding_at_the_beginning_of_each_epoch(make_loop: Any) -> None:
    """A call is an epoch, so at its end the next batch is padding again."""
    loop = make_loop(TWO, lambda: sequential((4,), _Centers(), L.Dense(1)), steps_per_call=11)
    loop.step.model.layers[0].share.assign(1.0)
    weights = np.repeat([0.0, 1.0], [24, 64]).astype("float32")
    x = np.tile(X[:8], (11, 1))
    with pytest.raises(StepError, match="depends on the other examples"):
        loop.fit(tf.data.Dataset.from_tensor_slices((x, x[:, :1], weights)).batch(8), epochs=2, verbose=0)
    assert int(loop.step.optimizer.iterations.numpy()) == 0
