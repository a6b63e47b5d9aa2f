"""Loop: history and report, epochs and call lengths, tracing, and what stops a run."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import (
    as_new,
    keras_twin,
    largest_difference,
    line_net,
    plain_dataset,
    sequential,
    set_values,
    values_of,
)

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import NonFiniteLossError, StepError

L = keras.layers


# --- history and report


def test_history_is_that_of_keras_with_a_validation_after_the_listed_epochs(line: Any, numbers: Any) -> None:
    seen: list[int] = []

    def note() -> keras.callbacks.Callback:
        return keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: seen.append(epoch) if "val_loss" in logs else None
        )

    model = keras_twin(line_net, line)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse", metrics=["mae"])
    data = plain_dataset(*numbers, batch=12)
    asked: dict[str, Any] = {"epochs": 5, "validation_data": data, "validation_freq": [2, 5, 9], "verbose": 0}
    expected = model.fit(data, callbacks=[note()], **asked).history
    report = line.fit(data, callbacks=[note()], **asked)
    assert seen == [1, 4, 1, 4]
    assert report.history.keys() == expected.keys() == {"loss", "mae", "val_loss", "val_mae"}
    for name, values in expected.items():
        np.testing.assert_allclose(report.history[name], values, rtol=1e-5)
        assert all(type(value) is float for value in report.history[name])


def test_report_counts_what_was_trained(line: Any, numbers: Any) -> None:
    report = line.fit(plain_dataset(*numbers, batch=13), epochs=3, verbose=0)  # 13, 13, 13, 13, 8
    assert [(epoch.examples, epoch.steps) for epoch in report.epochs] == [(60, 5)] * 3
    assert all(epoch.seconds > 0 for epoch in report.epochs)
    assert (report.throughput.examples, report.throughput.steps) == (180, 15)
    assert report.examples_per_second > 0
    assert f"loss {report.history['loss'][-1]:.4f}" in report.summary()
    assert int(line.step.optimizer.iterations.numpy()) == 15


# --- epochs and call lengths


def test_initial_epoch_continues_the_order_of_a_recipe(line: Any, recipe: Any) -> None:
    line.fit(recipe, epochs=1, verbose=0)
    report = line.fit(recipe, epochs=3, initial_epoch=1, verbose=0)
    in_two = values_of(line)
    assert len(report.history["loss"]) == 2
    as_new(line)
    line.fit(recipe, epochs=3, verbose=0)
    assert largest_difference(values_of(line), in_two) == 0
    as_new(line)
    line.fit(recipe, epochs=1, verbose=0)
    line.fit(recipe, epochs=2, verbose=0)  # epochs 0, 1 once more, so in another order
    assert largest_difference(values_of(line), in_two) > 0


def test_auto_makes_calls_of_about_half_a_second() -> None:
    from mirrorkit.train.calls.length import CallLength

    length = CallLength(tf.distribute.get_strategy(), "auto")
    assert length.next(1000) == 1
    length.learn(1, 3.0)  # compiles
    probe = length.next(1000)
    length.learn(probe, 0.01 * probe)
    assert length.next(1000) == 50
    assert length.next(20) == 20
    assert length.next(None) == 50  # a call says itself how many steps it found data for
    length.learn(50, 0.005 * 50)  # in a long call the start of the call weighs less
    assert length.next(1000) == 100
    length.learn(1, 9.0)  # compiled for a smaller last batch
    assert length.next(1000) == 100
    length.learn(100, 0.001 * 100)  # no longer looked at
    assert length.next(1000) == 100
    slow = CallLength(tf.distribute.get_strategy(), "auto")
    slow.learn(1, 9.0)
    slow.learn(slow.next(9), 30.0)
    assert slow.next(1000) == 1
    slow.learn(1, 0.001)  # a batch of one example: the others are larger
    assert slow.next(1000) == 4


def test_batch_hooks_come_once_per_call(line: Any, recipe: Any) -> None:
    seen: list[tuple[str, int]] = []

    class Record(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(("begin", batch))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(("end", batch))
            assert set(logs) == {"loss", "mae"}

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(("test", batch))

    line.fit(recipe, validation_data=recipe, callbacks=[Record()], verbose=0)  # 5 steps, 2 in a call
    train = [("begin", 0), ("end", 1), ("begin", 2), ("end", 3), ("begin", 4), ("end", 4)]
    assert seen == [*train, ("test", 1), ("test", 3), ("test", 4)]


# --- what stops a run


def test_a_bad_loss_names_its_step_in_the_whole_run(fixed_line: Any, numbers: Any) -> None:
    loop = fixed_line(("central_storage", 2))
    start = values_of(loop)
    try:
        for bad in (np.nan, np.inf):
            loop.fit(plain_dataset(*numbers, batch=10), verbose=0)
            x, done = numbers[0].copy(), loop.position.steps
            x[37] = bad  # batch 3 of 10
            with pytest.raises(NonFiniteLossError, match=r"epoch 2, batch 3 .*clip_norm") as error:
                loop.fit(plain_dataset(x, numbers[1], batch=10), epochs=4, initial_epoch=2, verbose=0)
            assert done >= 6
            assert error.value.step == done + 3
            assert f"training step {done + 3} " in str(error.value)
            assert isinstance(error.value, ArithmeticError)
            set_values(loop, start)
    finally:
        set_values(loop, start)


# --- tracing


def test_nothing_is_traced_twice(make_loop: Any, numbers: Any) -> None:
    """Whole batches and a smaller last one, in training and validation: a trace each, and not one per replica.

    One more for both tells whether the step is a function.
    """
    traces: list[bool] = []

    class Count(L.Layer):
        def call(self, x: Any, training: bool = False) -> Any:
            if not tf.executing_eagerly():  # as when the first batch is checked
                traces.append(training)
            return x

    loop = make_loop(("mirrored", 2), lambda: sequential((4,), Count(), L.Dense(1)), steps_per_call=2)
    recipe = mk.data.batches(mk.data.arrays(*numbers), global_batch_size=16, shuffle=True)  # the last one has 12
    traces.clear()
    loop.fit(recipe, epochs=2, validation_data=recipe, verbose=0)
    assert traces.count(True) == 3
    assert len(loop._passes.calls._traces) == 4
    before = len(traces)
    loop.fit(recipe, validation_data=recipe, verbose=0)
    loop.evaluate(recipe)
    assert len(traces) == before
    assert len(loop._passes.calls._traces) == 4


@pytest.mark.slow
def test_data_of_another_shape_is_compiled_anew_and_the_log_says_what_changed(
    make_loop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    loop = make_loop(("mirrored", 2), lambda: sequential((None, 4), L.Dense(1)), steps_per_call=2)

    def data(length: int) -> mk.data.Batches:
        x = np.zeros((8, length, 4), "float32")
        return mk.data.batches(mk.data.arrays(x, x[:, :, :1]), global_batch_size=4)

    loop.fit(data(3), epochs=2, verbose=0)
    assert not caplog.records
    loop.fit(data(5), verbose=0)
    (record,) = caplog.records
    assert "shape=(4, 3, 4)" in record.message
    assert "became" in record.message
    assert "shape=(4, 5, 4)" in record.message
    loop.fit(data(3), verbose=0)
    assert len(caplog.records) == 1


def test_a_recipe_that_holds_less_than_it_says_is_an_error(line: Any, recipe: Any) -> None:
    class Fewer(mk.data.Batches):
        def dataset(self, epoch: int = 0, start: int = 0) -> tf.data.Dataset:
            return super().dataset(epoch, start).take(3 - start)

    fewer = Fewer(**{f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe) if f.init})
    with pytest.raises(StepError, match="claims to hold 5 batches"):
        line.fit(fewer, verbose=0)
