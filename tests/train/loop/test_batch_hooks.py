"""Callbacks that act on every batch: a Loop gives them each step, as Keras's fit does, unless the user chose calls."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest
from loop_helpers import calls_of
from training_helpers import as_new, largest_difference, line_net

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.loop.callbacks import acting_on_batches

STEPS = 5  # of 12 examples, in an epoch


class Falling(keras.callbacks.Callback):
    """Sets the learning rate before every batch, and remembers the batches it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.seen.append(batch)
        self.model.optimizer.learning_rate = 0.1 / (1 + len(self.seen))


class Ends(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(batch)


class OwnSaver(mk.train.Checkpoints):
    """Overrides no batch hook."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)


def from_a_function(seen: list[int]) -> Any:
    return keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))


def set_afterwards(seen: list[int]) -> Any:
    callback = keras.callbacks.Callback()
    callback.on_train_batch_end = functools.partial(lambda seen, batch, logs=None: seen.append(batch), seen)
    return callback


def count_calls(loop: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets the number of steps of every training call."""
    counted: list[int] = []
    call = loop._passes.calls.call

    def counting(what: str, stream: Any, totals: Any, steps: int) -> Any:
        counted.append(steps)
        return call(what, stream, totals, steps)

    monkeypatch.setattr(loop._passes.calls, "call", counting)
    return counted


@pytest.fixture
def auto(line: Any) -> Callable[..., Any]:
    """`auto()`: `line` as new, with calls as long as it finds right, or as `auto(3)` says."""

    def make(steps_per_call: int | str = "auto") -> mk.train.Loop:
        return calls_of(as_new(line), steps_per_call)

    return make


def test_a_learning_rate_per_batch_trains_what_keras_fit_trains(auto: Any, recipe: Any) -> None:
    loop = auto()
    twin = line_net()
    twin.set_weights(loop.step.model.get_weights())
    twin.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse")
    ours, theirs = Falling(), Falling()
    loop.warm_up(recipe)
    loop.fit(recipe, epochs=3, callbacks=[ours], verbose=0)
    twin.fit(recipe.epochs(3), epochs=3, steps_per_epoch=STEPS, callbacks=[theirs], verbose=0)
    assert ours.seen == theirs.seen == 3 * list(range(STEPS))
    assert largest_difference(loop.step.model.get_weights(), twin.get_weights()) < 1e-6
    spoiled = auto(STEPS)
    spoiled.fit(recipe, epochs=3, callbacks=[Falling()], verbose=0)
    assert largest_difference(spoiled.step.model.get_weights(), twin.get_weights()) > 1e-3


def test_the_message_comes_once_and_names_the_callback_and_the_cure(auto: Any, recipe: Any, caplog: Any) -> None:
    loop = auto()
    with caplog.at_level(logging.WARNING, logger="mirrorkit"):
        loop.fit(recipe, callbacks=[Falling(), Ends()], verbose=0)
        loop.fit(recipe, callbacks=[Falling()], verbose=0)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "Falling, Ends" in message
    assert "Loop(..., steps_per_call=50)" in message


def test_a_later_fit_without_it_takes_long_calls_again(auto: Any, recipe: Any, monkeypatch: Any) -> None:
    loop = auto()
    loop.warm_up(recipe)
    length = loop.steps_per_call
    assert length > STEPS
    loop.fit(recipe, callbacks=[Falling()], verbose=0)
    assert loop.steps_per_call == length  # calls of one step teach nothing of how long calls should be
    counted = count_calls(loop, monkeypatch)
    loop.fit(recipe, epochs=2, verbose=0)
    assert counted == [STEPS, STEPS]


def test_passive_callbacks_keep_long_calls(
    auto: Any, recipe: Any, tmp_path: Any, caplog: Any, monkeypatch: Any
) -> None:
    callbacks = [
        keras.callbacks.TensorBoard(tmp_path, write_graph=False),
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_freq=4, save_weights_only=True),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
        mk.timing.profile(tmp_path / "profile", steps=(900, 901)),
        mk.checks.InSync(every=4),
        mk.checks.NanWatch(),
        OwnSaver(tmp_path / "saved", every=4),
    ]
    assert not acting_on_batches(callbacks)
    loop = auto()
    loop.warm_up(recipe)
    counted = count_calls(loop, monkeypatch)
    with caplog.at_level(logging.WARNING, logger="mirrorkit"):
        loop.fit(recipe, callbacks=callbacks, verbose=1)
    assert counted == [4, 1]  # as `every=4` wants it
    assert not [record for record in caplog.records if "batch" in record.getMessage()]


def test_keras_saves_and_writes_after_as_many_batches_as_asked(
    auto: Any, recipe: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    """Calls end where ModelCheckpoint saves, counted over the epochs; TensorBoard counts its hooks by itself."""
    loop = auto()
    loop.warm_up(recipe)
    counted = count_calls(loop, monkeypatch)
    path = tmp_path / "{epoch}-{batch}.weights.h5"
    saver = keras.callbacks.ModelCheckpoint(path, save_freq=2, save_weights_only=True)
    loop.fit(recipe, epochs=2, callbacks=[saver], verbose=0)
    assert counted == [2, 2, 1, 1, 2, 2]
    found = sorted(path.name.partition(".")[0] for path in tmp_path.iterdir())
    assert found == ["1-2", "1-4", "2-1", "2-3", "2-5"]
    assert acting_on_batches([keras.callbacks.TensorBoard(tmp_path, update_freq=2)]) == ["TensorBoard"]


@pytest.mark.parametrize("hook", ["on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end"])
def test_each_of_the_hooks_counts_and_those_of_evaluation_do_not(hook: str) -> None:
    own = type("Own", (keras.callbacks.History,), {hook: lambda self, batch, logs=None: None})
    inherited = type("Inherited", (own,), {})
    assert acting_on_batches([own(), keras.callbacks.History(), inherited()]) == ["Own", "Inherited"]
    own_functions = [from_a_function([]), set_afterwards([])]
    assert acting_on_batches(own_functions) == [type(one).__name__ for one in own_functions]
    tested = type("Tested", (keras.callbacks.Callback,), {hook.replace("train_", "").replace("on_", "on_test_"): None})
    assert not acting_on_batches([tested()])
