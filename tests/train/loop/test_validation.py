"""When a fit validates: after which epochs, and after how many steps within one; also where a run was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import At, Interrupted, as_new, interrupt, plain_dataset, send_sigterm, set_values, values_of

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train.loop.validation import Validation

C = keras.callbacks


class Seen(C.Callback):  # type: ignore[name-defined, misc]
    """Remembers what the logs of batches and epochs say of validations, and the weights at that time."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.weights: list[Any] = []
        self.tests = 0

    def get_state(self) -> Any:
        return self.seen, self.weights, self.tests

    def set_state(self, state: Any) -> None:
        self.seen, self.weights, self.tests = state

    def set_loop(self, loop: Any) -> None:
        self.loop = loop

    def on_test_end(self, logs: Any = None) -> None:
        self.tests += 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._note(logs)

    def _note(self, logs: Any) -> None:
        if "val_loss" in logs:
            self.seen.append((self.loop.position.steps, logs["val_loss"]))
            self.weights.append(self.model.get_weights())


@pytest.fixture
def validation(numbers: Any) -> Any:
    return mk.data.batches(mk.data.arrays(*(part[:30] for part in numbers)), global_batch_size=10)


def _fit(line: Any, recipe: Any, validation: Any, *callbacks: Any, length: Any = 100, **options: Any) -> Any:
    """Two epochs of five steps, in long calls; returns what was seen and the report."""
    loop = mk.train.Loop(line.strategy, line.step, steps_per_call=length)
    loop._passes.calls = line._passes.calls  # type: ignore[union-attr]  # compiled once for all
    seen = Seen()
    options = {"epochs": 2, "validate_every": 2, "validation_data": validation, "verbose": 0, **options}
    return seen, loop.fit(recipe, callbacks=[seen, *callbacks], **options), loop


@pytest.mark.slow
def test_it_validates_within_epochs_and_at_their_ends(line: Any, recipe: Any, validation: Any) -> None:
    seen, report, loop = _fit(line, recipe, validation)
    assert [steps for steps, _ in seen.seen] == [2, 4, 5, 7, 9, 10]
    assert seen.tests == 6
    assert report.history["val_loss"] == [seen.seen[2][1], seen.seen[5][1]]
    for (_, found), weights in zip(seen.seen, seen.weights, strict=True):  # of the weights after that very step
        loop.step.model.set_weights(weights)
        assert loop.evaluate(validation)["loss"] == pytest.approx(found, rel=1e-6)
    as_new(line)
    plain = _fit(line, recipe, validation, validate_every=None)[1]
    assert report.history == plain.history  # it trains the same


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"validation_freq": 2, "length": 3}, [2, 4, 7, 9, 10]),
        ({"validate_every": 5, "validation_freq": 2}, [10]),
        ({"validate_every": 9}, [5, 10]),
        ({"steps_per_epoch": 3}, [2, 3, 5, 6]),
    ],
    ids=str,
)
def test_when_it_validates(options: Any, steps: list[int], line: Any, recipe: Any, validation: Any) -> None:
    seen, report, _ = _fit(line, recipe, validation, **options)
    assert [step for step, _ in seen.seen] == steps
    assert len(report.history["loss"]) == 2


def test_data_of_unknown_length(line: Any, numbers: Any, validation: Any) -> None:
    data = plain_dataset(*numbers, batch=12).filter(lambda x, y: True)
    assert [step for step, _ in _fit(line, data, validation)[0].seen] == [2, 4, 5, 7, 9, 10]


def test_with_updates_of_several_batches_it_comes_at_the_end_of_the_update_in_which_it_falls() -> None:
    made = tf.distribute.get_strategy(), tf.data.Dataset.range(4).batch(2), None, 1, 3
    every_three = Validation(*made, averaged=False)
    assert [end for end in (2, 4, 6, 8, 10) if every_three.falls_within(end - 2, end)] == [4, 6, 10]


PLACES = {  # the hook, the steps that are done, what happens there; after how many steps it saves
    "within the validation": ("on_test_batch_begin", 4, send_sigterm, "epoch"),
    "as it begins": ("on_test_begin", 7, send_sigterm, 1),
    "killed after it": ("on_train_batch_end", 7, interrupt, "epoch"),
    "in the step before it": ("on_train_batch_begin", 3, send_sigterm, 2),
}
FAST = ("killed after it", "in the step before it")


@pytest.fixture(scope="module")
def unbroken() -> list[Any]:
    """What two epochs come to, once they were trained: what was seen, the report and the weights."""
    return []


@pytest.mark.parametrize(
    "place", [*FAST, *(pytest.param(one, marks=pytest.mark.slow) for one in PLACES if one not in FAST)]
)
def test_a_validation_is_neither_lost_nor_made_twice(
    place: str, unbroken: list[Any], line: Any, recipe: Any, validation: Any, tmp_path: Path
) -> None:
    hook, steps, act, every = PLACES[place]
    start = values_of(line)
    if not unbroken:
        unbroken += [*_fit(line, recipe, validation, length=1)[:2], values_of(line)]
        set_values(line, start)
    expected, report, weights = unbroken
    saver, leave = mk.train.Checkpoints(tmp_path, every=every), At(hook, steps, act)
    with pytest.raises(Interrupted if act is interrupt else SystemExit):
        _fit(line, recipe, validation, leave, saver, length=1)
    set_values(line, [value + 7 for value in start] if any(tmp_path.glob("*.npz")) else start)
    found, resumed, _ = _fit(line, recipe, validation, saver, length=1)
    assert found.seen == expected.seen
    assert found.tests == expected.tests
    assert resumed.history == report.history
    assert all(np.array_equal(a, b) for a, b in zip(values_of(line), weights, strict=True))


class Twice(keras.Model):  # type: ignore[name-defined, misc]
    """Updates its weights twice with each batch; its logs are those of Keras's metrics."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        for _ in range(2):
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(x, y, y_pred)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return self.compute_metrics(x, y, y_pred)


@pytest.mark.parametrize("leave", [None, At("on_test_batch_begin", 2, send_sigterm)], ids=["", "and a signal in it"])
def test_the_metrics_of_a_model_s_own_train_step_go_on_after_it(
    leave: Any, loop_over: Any, recipe: Any, validation: Any, tmp_path: Path
) -> None:
    def model() -> Any:
        inputs = keras.Input((4,))
        made = Twice(inputs, keras.layers.Dense(1)(inputs))
        made.compile("sgd", metrics=["mse"], loss="mse")
        return made

    histories = []
    for options in ({}, {"validate_every": 2, "validation_data": validation}):
        loop, saver = loop_over(model, steps_per_call=1), mk.train.Checkpoints(tmp_path / f"of {len(options)}")
        if leave and options:
            with pytest.raises(SystemExit):
                loop.fit(recipe, verbose=0, callbacks=[leave, saver], **options)
            loop = loop_over(model, steps_per_call=1)
        histories.append(loop.fit(recipe, verbose=0, callbacks=[saver], **options).history)
    loop = loop_over(model, steps_per_call=1)
    evaluates = C.LambdaCallback(on_train_batch_end=lambda batch, logs: loop.evaluate(validation, verbose=0))
    histories.append(loop.fit(recipe, verbose=0, callbacks=[evaluates]).history)
    assert histories[0]["mse"] == histories[1]["mse"] == histories[2]["mse"]
    assert histories[1]["val_mse"] != histories[1]["mse"]


def test_what_was_to_be_validated_on_may_be_gone(line: Any, recipe: Any, validation: Any, tmp_path: Path) -> None:
    saver = mk.train.Checkpoints(tmp_path)
    with pytest.raises(SystemExit):
        _fit(line, recipe, validation, saver, At("on_test_begin", 4, send_sigterm))
    _, report, _ = _fit(line, recipe, None, saver, validate_every=None)
    assert len(report.history["loss"]) == 2


def test_arguments_that_cannot_be_are_refused(line: Any, recipe: Any, validation: Any) -> None:
    with pytest.raises(StepError, match="no validation_data"):
        _fit(line, recipe, None)
    with pytest.raises(StepError, match="validate_every must be"):
        _fit(line, recipe, validation, validate_every="epoch")
