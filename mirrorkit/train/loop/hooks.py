"""The Keras callbacks of a loop: in which order they are called, and what they may know of the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.strategy import is_chief, of_all_workers
from mirrorkit.train.checkpoints import Checkpoints

_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def callback_list(
    loop: Any, model: Any, callbacks: Sequence[Any] | None, *, verbose: int = 0, history: bool = False, **params: Any
) -> Any:
    """Return a `keras.callbacks.CallbackList`: the user's callbacks in their order, then what Keras adds, then savers.

    A checkpoint holds what the other callbacks did (a learning rate, the history), so it comes after them. A callback
    that has `set_loop` is given the loop. On several workers all of them see the same logs and run the same callbacks;
    the progress bar, and those of Keras that write files, are the chief's alone.

    Args:
        loop: the loop.
        model: what the callbacks get as their `model`.
        callbacks: the user's.
        verbose: 0 for no progress bar.
        history: add a `keras.callbacks.History`.
        **params: for the callbacks' `params`: epochs, steps.

    Raises:
        StepError: BackupAndRestore, which only Keras's own `fit` obeys.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    given = keras.tree.flatten(callbacks or [])
    if any(isinstance(callback, keras.callbacks.BackupAndRestore) for callback in given):
        raise StepError(
            "BackupAndRestore asks Keras's fit to leave epochs out, which a Loop does not see: all of them would be "
            "trained again, on the restored weights. Use mk.train.Checkpoints(folder), which also goes on within an "
            "epoch."
        )
    if not is_chief(loop.strategy):
        given, verbose = [callback for callback in given if not isinstance(callback, _WRITERS)], 0
    if history and not any(isinstance(c, keras.callbacks.History) for c in given):
        given.append(keras.callbacks.History())
    if verbose and not any(isinstance(c, keras.callbacks.ProgbarLogger) for c in given):
        given.append(keras.callbacks.ProgbarLogger())
    given.sort(key=lambda callback: isinstance(callback, Checkpoints))
    for callback in given:
        if hasattr(callback, "set_loop"):
            callback.set_loop(loop)
    return keras.callbacks.CallbackList(given, model=model, verbose=verbose, **params)


def choose_modes(hooks: Any, modes: Mapping[str, str]) -> None:
    """Tell callbacks whether the log that they watch is to rise or to fall, where they leave it to Keras to find out.

    Keras asks the model's own metrics, which only its own training fills.

    Args:
        hooks: what `callback_list` returned.
        modes: for each log name "max" or "min".
    """
    for callback in hooks.callbacks:
        watched = getattr(callback, "monitor", None)
        if isinstance(watched, str) and getattr(callback, "mode", None) == "auto":
            callback.mode = modes.get(watched.removeprefix("val_"), "auto")


def agree_to_stop(strategy: tf.distribute.Strategy, model: Any) -> None:
    """Let all workers stop when a callback of one of them wants to: a clock, say, differs between them.

    A worker that stopped alone would leave the others waiting for it.
    """
    model.stop_training = bool(max(of_all_workers(strategy, bool(model.stop_training))))


def periods(hooks: Any) -> list[int]:
    """Return after how many training steps callbacks want a call to end: `every` of those that have `set_loop`."""
    wanted = [getattr(callback, "every", None) for callback in hooks.callbacks if hasattr(callback, "set_loop")]
    return [every for every in wanted if isinstance(every, int)]


def release(hooks: Any) -> None:
    """Let the savers finish and give back signals, however the training ended."""
    for callback in reversed(hooks.callbacks):  # the last one to install handlers gives them back first
        if isinstance(callback, Checkpoints):
            callback.release()
