"""Checkpoints: save a run now and then, go on from the newest one, save and leave when the machine is taken away.

```python
report = loop.fit(train, epochs=90, callbacks=[mk.train.Checkpoints("runs/first", keep=3)])
```

Started again after it was interrupted, the same script finishes the epochs that it was asked for.
"""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.errors import CheckpointError
from mirrorkit.train import checkpoint_file, saved_variables
from mirrorkit.train.position import Position
from mirrorkit.train.preemption import StopSignals, agreed_signal

_log = logging.getLogger("mirrorkit")


class Checkpoints(keras.callbacks.Callback):  # type: ignore[name-defined]
    """Saves all that a run of `mk.train.Loop` needs to go on, and goes on from there.

    At the beginning of `fit` the newest whole checkpoint in the folder is restored, if there is one: weights, optimizer
    slots, averages, loss scale, seeds of Dropout and augmentation, the position in the data, the epoch's sums and the
    history. A run whose epochs are all done trains nothing more and returns its history. Saving copies the state off
    the device; a thread writes it while training goes on. At the end of the training it is saved once more.

    SIGTERM and Ctrl-C during `fit` (in the main thread) let the present call end, save, and leave: SIGTERM by
    `SystemExit(exit_code)`, Ctrl-C by `KeyboardInterrupt`.

    The state of other callbacks (the patience of EarlyStopping, say) is not saved.

    Args:
        folder: one run's checkpoints; made when it is not there.
        keep: how many of the newest ones stay.
        every: "epoch" saves at the end of every epoch; a number saves after so many training steps (with
            `accumulate`, at the end of the update in which they fall).
        exit_code: after SIGTERM; some schedulers start a job again by its exit code.

    Raises:
        CheckpointError: at the beginning of `fit` when the folder cannot be written to, holds no whole checkpoint
            among damaged ones, or one of another model; later when a checkpoint could not be written. Older ones stay.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, keep: int = 3, every: int | str = "epoch", exit_code: int = 143
    ) -> None:
        super().__init__()
        if not isinstance(keep, int) or keep < 1:
            raise CheckpointError(f"keep must be a whole number from 1 on, found {keep!r}.")
        if every != "epoch" and (not isinstance(every, int) or every < 1):
            raise CheckpointError(f"every must be 'epoch' or a number of training steps from 1 on, found {every!r}.")
        self.folder = _local(folder)
        self.keep = keep
        self.every = every
        self.exit_code = exit_code
        self._loop: Any = None
        self._writer: _Writer | None = None
        self._signals = StopSignals()
        self._began = self._saved = (0, 0, 0)  # place (see `_place`) where this training began, and of the last save

    def set_loop(self, loop: Any) -> None:
        """Called by Loop before the training begins."""
        self._loop = loop

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the newest checkpoint, if there is one."""
        if self._loop is None:
            raise CheckpointError(
                "mk.train.Checkpoints works with mk.train.Loop. With model.fit use keras.callbacks.BackupAndRestore."
            )
        require_variables(self._loop.step)
        _make_writable(self.folder)
        checkpoint_file.remove_unfinished(self.folder)
        if checkpoint_file.find(self.folder):
            self._loop.restore(self.folder)
        self._writer = _Writer(self.folder, self.keep)
        self._began = self._saved = self._place()
        self._signals.install()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save when it is time; come to know of a write that failed."""
        assert self._writer is not None
        self._writer.raise_failure()
        if isinstance(self.every, int) and self._loop.position.steps // self.every > self._saved[0] // self.every:
            self._save()
        self._leave_if_asked()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Leave when asked to; a validation begins anew after that."""
        if self._writer is not None:
            self._leave_if_asked()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save the epoch."""
        if self.every == "epoch":
            self._save()
        self._leave_if_asked()

    def on_train_end(self, logs: Any = None) -> None:
        """Save the end of the training, with what other callbacks did to the weights."""
        assert self._writer is not None
        if self._place() != self._began:
            self._save(again=True)
        self._writer.wait()
        self._leave_if_asked()

    def release(self) -> None:
        """Wait for the last write and give the signals back; Loop calls it however the training ended."""
        self._signals.restore()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _place(self) -> tuple[int, int, int]:
        position = self._loop.position
        return position.steps, position.epoch, position.batch

    def _save(self, *, again: bool = False) -> None:
        assert self._writer is not None
        if self._place() == self._saved and not again:
            return
        self._writer.wait()
        position, variables = self._loop.position, self._loop.step.variables
        about = {"variables": saved_variables.describe(variables), "position": position.as_json()}
        self._writer.start(position.steps, saved_variables.capture(self._loop.strategy, variables), about)
        self._saved = self._place()

    def _leave_if_asked(self) -> None:
        number = agreed_signal(self._loop.strategy, self._signals)
        if number:
            self._save()
            self._leave(number)

    def _leave(self, number: int) -> NoReturn:
        assert self._writer is not None
        self._writer.wait()
        _log.warning("%s: saved in %s; start again to go on.", signal.Signals(number).name, self.folder)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(self.exit_code)


def restore_newest(
    folder: str | os.PathLike[str], strategy: tf.distribute.Strategy, variables: Sequence[Any]
) -> Position:
    """Write the newest whole checkpoint of a folder into the variables; return its position in the run.

    A damaged one is named in a warning, and the one before it taken.

    Raises:
        CheckpointError: there is none, none is whole, or it is of another model; then no variable was written.
    """
    place = _local(folder)
    files = checkpoint_file.find(place)
    if not files:
        raise CheckpointError(f"There is no checkpoint in {place}. Checkpoints are files step-<number>.npz.")
    damaged = []
    for file in files:
        try:
            about, values = checkpoint_file.read(file)
        except checkpoint_file.DamagedError as error:
            damaged.append(str(error))
            continue
        saved_variables.require_same(file, about["variables"], saved_variables.describe(variables))
        if damaged:
            warnings.warn(f"Damaged checkpoint, the one before it is used: {'; '.join(damaged)}.", stacklevel=3)
        saved_variables.assign(strategy, variables, values)
        position = Position.from_json(about["position"])
        _log.info("%s: goes on in epoch %d at batch %d.", file, position.epoch, position.batch)
        return position
    raise CheckpointError(
        f"No checkpoint in {place} is whole: {'; '.join(damaged)}. To begin anew, use another folder or move these "
        "files away."
    )


def require_variables(step: Any) -> list[Any]:
    """Return the variables of a step.

    Raises:
        CheckpointError: it does not say which they are.
    """
    variables = list(getattr(step, "variables", []))
    if not variables:
        raise CheckpointError(
            f"{type(step).__name__} does not say what it changes, so a checkpoint would be empty. Give it a property "
            "`variables`: a list of all variables that its update writes."
        )
    return variables


class _Writer:
    """Writes one checkpoint at a time, in a thread of its own."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def start(self, steps: int, values: list[np.ndarray], about: dict[str, Any]) -> None:
        """Begin to write; call `wait` first."""
        self._pending = self._thread.submit(self._write, checkpoint_file.path_of(self._folder, steps), values, about)

    def wait(self) -> None:
        """Wait until the last one is written.

        Raises:
            CheckpointError: it could not be written.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def raise_failure(self) -> None:
        """Raise what `wait` would, if the last write is over."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def close(self) -> None:
        """Wait for the last write and end the thread; a failure that nobody has seen yet becomes a warning."""
        try:
            self.wait()
        except CheckpointError as error:
            warnings.warn(str(error), stacklevel=2)
        self._thread.shutdown()

    def _write(self, path: Path, values: list[np.ndarray], about: dict[str, Any]) -> None:
        try:
            checkpoint_file.write(path, values, about)
            checkpoint_file.keep_newest(path, self._keep)
        except Exception as error:
            size = sum(value.nbytes for value in values) / 2**20
            raise CheckpointError(
                f"{path} could not be written: {type(error).__name__}: {error}. It needs {size:.1f} MiB. The "
                "checkpoints before it are whole: make room or mend the folder, then start again to go on from there."
            ) from error


def _local(folder: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(folder):
        raise CheckpointError(f"Checkpoints need a folder of the file system, found {folder}. Mount the storage.")
    return Path(folder)


def _make_writable(folder: Path) -> None:
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"checkpoints can be written here")
        probe.unlink()
    except OSError as error:
        raise CheckpointError(
            f"Checkpoints cannot be written to {folder}: {error}. Choose a folder in which you may create files."
        ) from error
