"""The Keras callbacks of a loop: the order of their calls, and what they may know about the loop."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.object_storage import require_local
from mirrorkit.strategy import (
    arrays_of_all_workers,
    is_chief,
    is_parameter_server,
    num_workers,
    of_all_workers,
    place,
    require_same,
)
from mirrorkit.train.callback import LoopCallback, call_periods
from mirrorkit.train.checkpoints import Checkpoints, Restored
from mirrorkit.train.checkpoints.callback_states import CallbackStates
from mirrorkit.train.loop.journal import journals
from mirrorkit.train.loop.same_workers import SameWorkers
from mirrorkit.train.requirements.settings import plain
from mirrorkit.train.step.custom import Custom
from mirrorkit.train.step.loop_step import LoopStep

_log = logging.getLogger("mirrorkit")

_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")
_PASSIVE = ("keras", "mirrorkit")  # their own batch hooks only look, or know of calls of many steps

_OF_HOOKS = {  # whether under parameter servers: what comes of such hooks, and what else could be asked
    True: ": under parameter servers it comes once per call of many steps, since workers take steps at the same time. "
    "Loop(..., steps_per_call=1) calls it at every step, and then one worker at a time is busy.",
    False: ", so every step is a call by itself, as in Keras's fit. This costs a fraction of a millisecond per step, "
    "which a small model notices. If the callback only looks, Loop(..., steps_per_call=50), or with mk.fit "
    "compile(steps_per_execution=50), calls it once per 50 steps.",
}

_PATHS = {  # the attribute of a callback that says where it writes
    keras.callbacks.TensorBoard: "log_dir",
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.CSVLogger: "filename",
}
_INSTEAD = (
    "Name a local path, and copy it to the address at the end of each epoch; docs/watching.md shows how: "
    "'Logs at an address'."
)

_WRITERS = tuple(
    getattr(keras.callbacks, name)
    for name in ("CSVLogger", "ModelCheckpoint", "OrbaxCheckpoint", "ProgbarLogger", "RemoteMonitor", "TensorBoard")
    if hasattr(keras.callbacks, name)  # OrbaxCheckpoint is younger than the oldest Keras that mirrorkit takes
)


def callback_list(
    loop: Any,
    model: Any,
    callbacks: Sequence[Any] | None,
    *,
    verbose: int | str = 0,
    history: bool = False,
    **params: Any,
) -> Any:
    """Return a `keras.callbacks.CallbackList`: the user's callbacks in their order, then what Keras adds, then savers.

    A checkpoint holds what the other callbacks did (a learning rate, the history), so it comes after them. A callback
    that has `set_loop` is given the loop. On several workers all of them see the same logs and run the same callbacks;
    the progress bar, those of Keras that write files, and those with `chief_only = True` are the chief's alone.
    """
    given, verbose = _flat(callbacks), verbosity(verbose)
    if any(isinstance(callback, keras.callbacks.BackupAndRestore) for callback in given):
        raise StepError(
            "BackupAndRestore tells Keras's fit to skip epochs, which a Loop does not see: all epochs would be trained "
            "again, on the restored weights. Use mk.train.Checkpoints(folder), which also goes on within an epoch."
        )
    require_writable(given)
    periods = call_periods(given)  # those of the chief alone, too
    if not is_chief(loop.strategy):
        given, verbose = [callback for callback in given if not _is_chiefs(callback)], 0
    if history and not any(isinstance(c, keras.callbacks.History) for c in given):
        given.append(keras.callbacks.History())
    if verbose and not any(isinstance(c, keras.callbacks.ProgbarLogger) for c in given):
        given.append(keras.callbacks.ProgbarLogger())
    if history and num_workers(loop.strategy) > 1:
        # A callback that waits for the other workers' would wait for ever where one of them has none.
        asked = {
            "the list of callbacks that know the loop (not those with chief_only = True)": (
                ", ".join(filter(None, map(_collective, given))) or "none"
            ),
            "steps after which callbacks act (every, save_freq)": periods,
            "epochs": params.get("epochs"),
            "class_weight": params.get("class_weight"),
            "validation (its frequency, batch size, batches, steps within an epoch)": params.get("validation"),
        }
        require_same(loop.strategy, "fit", plain(asked))
        given.append(SameWorkers(values=not any(getattr(c, "compares_replicas", False) for c in given)))
    given.sort(key=lambda callback: isinstance(callback, Checkpoints))
    if history:
        given += journals(loop.strategy, given)
    for callback in given:
        if hasattr(callback, "set_loop"):
            callback.set_loop(loop)
    hooks = keras.callbacks.CallbackList(given, model=model, verbose=verbose, **params)
    hooks.call_periods = periods
    return hooks


def require_writable(callbacks: Sequence[Any]) -> None:
    """Refuse addresses that TensorFlow cannot open, which would fail within the training, or at its end."""
    for callback in callbacks:
        for kind, attribute in _PATHS.items():
            if isinstance(callback, kind):
                # CSVLogger closes its file as only Python's own can be closed.
                schemes = [] if kind is keras.callbacks.CSVLogger else tf.io.gfile.get_registered_schemes()
                path = getattr(callback, attribute, "")
                require_local(type(callback).__name__, path, schemes=schemes, cure=_INSTEAD)


def choose_modes(hooks: Any, modes: Mapping[str, str]) -> None:
    """Tell callbacks whether the log that they watch is to rise or to fall, where they leave it to Keras to find out.

    Keras asks the model's own metrics, which only its own training fills. `modes` has "max" or "min" for each log name.
    """
    for callback in hooks.callbacks:
        watched = getattr(callback, "monitor", None)
        if isinstance(watched, str) and getattr(callback, "mode", None) == "auto":
            callback.mode = modes.get(watched.removeprefix("val_"), "auto")
        # Private to Keras: it turns the sign of `min_delta`, once, at the end of the first epoch. A resumed run that
        # was given the turned one would turn it back; so it is turned before what changes in the run is noted.
        if hasattr(callback, "_set_monitor_op") and getattr(callback, "monitor_op", callback) is None:
            with contextlib.suppress(ValueError):  # no such log; Keras says so at the end of the first epoch
                callback._set_monitor_op()


@contextlib.contextmanager
def keras_calls_guarded(strategy: tf.distribute.Strategy, model: Any) -> Iterator[None]:
    """Within the block, an error names workers of which only some call Keras's own `evaluate` or `predict`.

    Without it, these would wait for the others, as in a callback with `chief_only`. A callback that has changed an
    attribute, and lets Keras trace again, is refused: the step was traced already.
    """
    names = [name for name in ("evaluate", "predict") if num_workers(strategy) > 1 and hasattr(model, name)]

    def together(name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with place(f"Model.{name}"):
            of_all_workers(strategy, 0)
        return method(*args, **options)

    def make_train_function(force: bool = False) -> None:
        raise StepError(
            "A callback called make_train_function, as train_on_batch does, so that Keras traces again. The step is "
            "traced once, and would not see what has changed: keep it in a keras.Variable, or compile the model again, "
            "or call train_on_batch, between two fits."
        )

    methods: dict[str, Any] = {name: functools.partial(together, name, getattr(model, name)) for name in names}
    methods |= {"make_train_function": make_train_function}
    before = {name: method for name, method in vars(model).items() if name in methods}  # of a fit around this one
    vars(model).update(methods)  # not by assignment, which Keras would track
    try:
        yield
    finally:
        for name in methods:
            del vars(model)[name]
        vars(model).update(before)


def _collective(callback: Any) -> str | None:
    """Name a callback that may wait for the same one of the other workers, or makes calls end where it wants."""
    periods = [f" every {period} steps" for period in call_periods([callback])]
    if _is_chiefs(callback) or not (periods or isinstance(callback, LoopCallback)):
        return None
    return "".join([type(callback).__name__, *periods])


def _is_chiefs(callback: Any) -> bool:
    return isinstance(callback, _WRITERS) or getattr(callback, "chief_only", False)


def verbosity(verbose: int | str) -> int:
    """Return 0, 1 or 2 for what `fit` was given: with "auto" a bar where someone looks at it, else a line per epoch."""
    if verbose not in ("auto", 0, 1, 2):
        raise StepError(f"verbose must be 0, 1, 2 or 'auto'; found {verbose!r}.")
    # Keras 3 itself takes "auto" for 1 everywhere; the control characters of a bar spoil a log file.
    if verbose != "auto":
        return int(verbose)
    return 1 if (sys.stdout and sys.stdout.isatty()) or "ipykernel" in sys.modules else 2


def acting_on_batches(callbacks: Any) -> list[str]:
    """Return the class names of the callbacks that have a hook of the user's own for training batches, or count them.

    Such a hook may set a learning rate for the next batch, so it is to come at every step, as in Keras's `fit`. It is
    the user's where a class that is neither Keras's nor mirrorkit's defines it, or where it was set on the instance, as
    LambdaCallback does.
    """
    return [type(callback).__name__ for callback in filter(_acts_on_batches, _flat(callbacks))]


def _acts_on_batches(callback: Any) -> bool:
    if isinstance(callback, keras.callbacks.TensorBoard) and callback.update_freq != "epoch":
        return True  # it counts the calls of its hook, to write after so many batches
    return any(_is_users(callback, hook) for hook in _BATCH_HOOKS)


def some_act_on_batches(strategy: tf.distribute.Strategy, callbacks: Any, *, tell: bool) -> bool:
    """Return whether a callback of any worker does; with `tell` its own worker logs what comes of it."""
    names = acting_on_batches(callbacks)
    if names and tell:
        has = "has a hook" if len(names) == 1 else "have hooks"
        _log.warning("%s %s for each batch%s", ", ".join(names), has, _OF_HOOKS[is_parameter_server(strategy)])
    return bool(max(of_all_workers(strategy, bool(names))))


def some_act_on_test_batches(strategy: tf.distribute.Strategy, hooks: Any) -> bool:
    """Return whether a callback of any worker has a hook of the user's own for the batches of an evaluation."""
    pairs = itertools.product(hooks.callbacks, _TEST_HOOKS)
    is_own = any(itertools.starmap(_is_users, pairs))
    return bool(max(of_all_workers(strategy, is_own)))


def _is_users(callback: Any, hook: str) -> bool:
    if hook in getattr(callback, "__dict__", ()):
        return True
    owner = next((kind for kind in type(callback).__mro__ if hook in vars(kind)), object)
    return owner is not object and owner.__module__.partition(".")[0] not in _PASSIVE


def _flat(callbacks: Any) -> list[Any]:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    return list(keras.tree.flatten(callbacks or []))


def begin_states(loop: Any, model: Any, hooks: Any, callbacks: Any, restored: Restored | None) -> CallbackStates:
    """Return what the user's callbacks remember; give them what they remembered in a checkpoint that was restored.

    To be called when `on_train_begin` has returned, in which Keras's callbacks begin afresh.
    """
    given, position = _flat(callbacks), loop.position
    model.history.history = position.history
    model.history.epoch = list(range(position.first_epoch, position.epoch))  # none of a fit that begins
    is_saved = restored is not None or any(isinstance(callback, Checkpoints) for callback in given)
    own = [callback for callback in hooks.callbacks if is_saved and any(callback is one for one in given)]
    states = CallbackStates(own, position.history, tells=is_chief(loop.strategy))
    if restored is not None:
        states.restore(restored.states)
        model.stop_training |= position.stopping
    return states


def agree_to_stop(
    strategy: tf.distribute.Strategy, model: Any, hooks: Any, *due: bool, before: Callable[[], None] = lambda: None
) -> Any:
    """Let all workers stop when a callback of one of them wants to, or when one has received a signal.

    A clock, say, differs between them, and a worker that stopped alone would leave the others waiting for it. Returns
    for all else that may be `due` whether it is so on one of them: 1 or 0. All of it travels in one message. `before`
    is called before the run is saved and left.
    """
    own = [max(_stop_signals(hooks), default=0), bool(model.stop_training), *due]
    number, stop, *others = arrays_of_all_workers(strategy, np.array(own, float)).max(axis=0)
    model.stop_training = bool(stop)
    if number:
        before()
        with contextlib.ExitStack() as leaving:  # each one saves, though the first one raises
            for callback in reversed(hooks.callbacks):
                if isinstance(callback, LoopCallback):
                    leaving.callback(callback.on_stop_signal, int(number))
    return others


def end_training(strategy: tf.distribute.Strategy, step: LoopStep, hooks: Any, logs: Mapping[str, float]) -> None:
    """Let the optimizer write what the weights are at last, as `use_ema` does its averages, and tell the callbacks.

    Keras's `fit` does so too; a custom step has its own ways.
    """
    optimizer = None if isinstance(step, Custom) else step.model.optimizer
    if optimizer is not None and int(optimizer.iterations.numpy()) > 0:
        with strategy.scope():
            optimizer.finalize_variable_values(getattr(step, "trained", step.model).trainable_variables)
    hooks.on_train_end(logs)
    leave_on_signal(strategy, step.model, hooks)


def leave_on_signal(
    strategy: tf.distribute.Strategy, model: Any, hooks: Any, *, before: Callable[[], None] = lambda: None
) -> None:
    """Agree where nothing else makes the workers agree, if a callback catches signals."""
    if _stop_signals(hooks):
        agree_to_stop(strategy, model, hooks, before=before)


def _stop_signals(hooks: Any) -> list[int]:
    caught = [callback.stop_signal for callback in hooks.callbacks if isinstance(callback, LoopCallback)]
    return [number for number in caught if number is not None]


def release(hooks: Any) -> None:
    """Let the savers finish and give back signals, however the training ended."""
    for callback in reversed(hooks.callbacks):  # the last one to install handlers gives them back first
        is_ours = any(kind.__module__.startswith("mirrorkit.") for kind in type(callback).__mro__)
        if is_ours and hasattr(callback, "release"):
            callback.release()
