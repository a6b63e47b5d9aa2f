"""The callback that saves a run and resumes it."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
from types import FrameType
from typing import Any

import numpy as np

from mirrorkit import stop_signals
from mirrorkit.arguments import checks_arguments, whole_number
from mirrorkit.errors import ArgumentError, CheckpointError, NonFiniteLossError
from mirrorkit.strategy import waiting_for_the_chief
from mirrorkit.train.callback import LoopCallback
from mirrorkit.train.checkpoints.locating import folder_of, place_of
from mirrorkit.train.checkpoints.restore import require_variables
from mirrorkit.train.checkpoints.shared import require_shared
from mirrorkit.train.checkpoints.variables import describe
from mirrorkit.train.checkpoints.writer import Writer
from mirrorkit.train.step.sharded_slots import are_collective, whole_values
from mirrorkit.variables import copies, path

_log = logging.getLogger("mirrorkit")


class Checkpoints(LoopCallback):
    """Saves the complete state of a run of `mk.train.Loop`, and resumes it.

    ```python
    loop.fit(train, epochs=3, callbacks=[mk.train.Checkpoints("runs/first", keep=2)])
    ```

    At the beginning of `fit` the newest whole checkpoint in the folder is restored, if there is one: weights, optimizer
    slots, averages, loss scale, seeds of Dropout and augmentation, the position in the data, the epoch's sums, the
    history, and what the other callbacks remember (the patience of EarlyStopping, say). A run whose epochs are all done
    trains nothing more and returns its history. Saving copies the state off the device; a thread writes it while
    training goes on. At the end of the training it is saved once more.

    On SIGTERM or Ctrl-C, `fit` (in the main thread) ends the current call, saves, and raises `SystemExit(exit_code)` or
    `KeyboardInterrupt`.

    Nothing that is NaN or infinite is saved, unless it was so when `fit` began. If the loss or a variable becomes NaN
    or infinite, the newest checkpoint is from before, even if `keras.callbacks.TerminateOnNaN` ends the training.

    The state of a callback with `get_state()` and `set_state(state)` may be None, numbers, strings, NumPy arrays, and
    lists, tuples and dicts of them; None means no state. Of Keras's own callbacks, the counts and best values are
    saved. No other attribute is: a callback without `get_state` whose attributes have changed is named in a warning.
    States are restored after `on_train_begin`.

    A folder belongs to one run at a time. While a run is alive on this machine, another one with the same folder is
    refused. If they run on different machines, the later one takes the folder over, and the earlier one stops at its
    next save.

    Args:
        folder: one run's checkpoints; created if it does not exist.
        keep: how many of the newest checkpoints to keep.
        every: "epoch" saves at the end of every epoch; a number saves every so many training steps (with `accumulate`,
            at the end of the update in which they fall).
        exit_code: the exit code after SIGTERM; some schedulers restart a job by its exit code.

    Raises:
        CheckpointError: at the beginning of `fit`, if another run writes to the folder, a worker does not see the
            chief's files in it, all its checkpoints are damaged, or one is of another model; later, if another run took
            the folder over.
        FileError: the folder or a checkpoint could not be written. Older ones stay.
    """

    @checks_arguments(ArgumentError)
    def __init__(
        self, folder: str | os.PathLike[str], *, keep: int = 3, every: int | str = "epoch", exit_code: int = 143
    ) -> None:
        super().__init__()
        self.keep = whole_number("keep", keep, ArgumentError)
        or_else = ", a number of training steps, or 'epoch'"
        self.every = every if every == "epoch" else whole_number("every", every, ArgumentError, or_else=or_else)
        self.exit_code = whole_number("exit_code", exit_code, ArgumentError, least=0, most=255)
        self.folder = folder_of(folder)
        self._process, self._place = os.getpid(), place_of(self.folder)  # of each training a new one
        self._writer: Writer | None = None
        self._handlers: dict[int, Any] = {}  # what handled stop signals before
        self._is_bad = False  # whether the loss is NaN or infinite, and with it the weights
        self._began = self._saved = (0, 0, 0)  # place (see `_at`) where this training began, and of the last save
        self._has_stopped = False
        self._read: dict[int, bytes] = {}  # the last value of each variable that is in no checkpoint

    def set_loop(self, loop: Any) -> None:
        """Take the loop; refuse another one during training."""
        if self._writer is not None and loop is not self.loop:
            raise CheckpointError(
                "These mk.train.Checkpoints belong to a fit that is running. Give another fit its own Checkpoints and "
                "folder."
            )
        super().set_loop(loop)

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the newest checkpoint, if there is one."""
        if self.loop is None:
            raise CheckpointError(
                "mk.train.Checkpoints works with mk.train.Loop. With model.fit use keras.callbacks.BackupAndRestore."
            )
        require_variables(self.loop.step)
        self._process, self._place = os.getpid(), place_of(self.folder)
        with waiting_for_the_chief(self.loop.strategy, f"write checkpoints to {self.folder}"):
            if self._writes:
                self._place.take()
        require_shared(self.loop.strategy, self._place)
        if self._place.find():
            position, epochs = self.loop.restore(self.folder), self.params["epochs"]
            if max(position.epoch, position.ended) >= epochs:
                _log.warning(
                    "%s: %d epochs are done, and a fit of %d trains no more. Ask for more epochs, or start over in "
                    "another folder.",
                    *(self.folder, position.epoch, epochs),
                )
            elif self.params.get("verbose"):  # of other workers than the chief it is 0
                within = f", after batch {position.batch}" if position.batch else ""
                print(f"Resumed at step {position.steps}: epoch {position.epoch + 1}/{epochs}{within}", flush=True)
        self._is_bad = False
        self._writer = Writer(self._place, self.keep)
        self._began = self._saved = self._at()
        self._has_stopped = self.loop.position.stopping  # before its end, which is still to be saved
        if not self._handlers:
            self.stop_signal = 0
            self._handlers = stop_signals.catch((signal.SIGTERM, signal.SIGINT), self._receive)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save when it is due; raise the error of an earlier write that failed."""
        assert self._writer is not None
        self._writer.raise_failure()
        if isinstance(self.every, int) and self.loop.position.steps // self.every > self._saved[0] // self.every:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save the epoch."""
        if self.every == "epoch":
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        """Save the end of the training, with what other callbacks did to the weights."""
        assert self._writer is not None
        if self._at() != self._began or self._has_stopped:
            self._save(again=True)
        self._writer.wait()

    def on_non_finite_loss(self, error: NonFiniteLossError) -> None:
        """Save no more: what was saved before is better."""
        self._is_bad = True

    def release(self) -> None:
        """Wait for the last write and restore the signal handlers; Loop calls it however the training ended."""
        stop_signals.put_back(self._handlers)
        self.stop_signal = None
        if self._process != os.getpid():  # a forked child that leaves `fit`: thread and folder are its parent's
            return
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        finally:
            self._place.release()

    @property
    def _writes(self) -> bool:
        return bool(self.loop.strategy.extended.should_checkpoint)  # the chief of a cluster; all of its workers restore

    def get_state(self) -> None:
        """Return None: it has no other state."""

    def _at(self) -> tuple[int, int, int]:
        position = self.loop.position
        return position.steps, position.epoch, position.batch

    def _save(self, *, again: bool = False) -> None:
        assert self._writer is not None
        if self._is_bad or (self._at() == self._saved and not again):
            return
        is_averaged = getattr(self.loop.step, "is_averaged", False)  # in a validation on the averages
        with self.loop.step.supervised(self.loop.strategy).as_trained() if is_averaged else contextlib.nullcontext():
            self.loop.running.finite.require()  # what is newer than the last whole checkpoint is not to replace it
            variables = require_variables(self.loop.step)
            if self._writes:
                self._writer.wait()
            if self._writes or are_collective(variables):
                values = whole_values(variables)  # of sharded slots other workers have a part
            if self._writes:
                self._tell_of_unsaved()
                position = self.loop.position
                position.stopping = bool(self.model.stop_training) and not again  # at the end it has stopped
                states, arrays = self.loop.running.states.saved()
                about = {"variables": describe(variables), "position": position.as_json(), **states}
                self._writer.start(position.steps, [*values, *arrays], about)
            self._saved = self._at()

    def _tell_of_unsaved(self) -> None:
        """Warn of a variable of a callback that the step reads: no checkpoint holds it."""
        known: set[int] = set()
        for variable in self.loop.step.variables:
            known |= {id(variable), *map(id, copies(variable))}
        for one in self.loop.running.passes.step.only_read:
            if id(one) in known:
                continue
            value = np.asarray(copies(one)[0]).tobytes()
            if self._read.get(id(one), value) != value:
                _warn_of_unsaved(path(one))
            self._read[id(one)] = value

    def on_stop_signal(self, number: int) -> None:
        """Save and leave; a validation starts again after that."""
        self._save()
        assert self._writer is not None
        self._writer.wait()
        _log.warning("%s: saved in %s; start again to go on.", signal.Signals(number).name, self.folder)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(self.exit_code)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Remember a signal until the run can save; a second Ctrl-C interrupts at once."""
        if number == signal.SIGINT and self.stop_signal == signal.SIGINT:
            signal.default_int_handler(number, frame)
        # not print: the signal may have come in the middle of one
        again = " (Ctrl-C again interrupts at once)" if number == signal.SIGINT else ""
        os.write(2, f"\n{signal.Signals(number).name}: saving a checkpoint after this call{again}\n".encode())
        self.stop_signal = number


@functools.cache  # once
def _warn_of_unsaved(name: str) -> None:
    _log.warning(
        "The training reads the variable %s, which changes and is in no checkpoint: a run that goes on begins with the "
        "value that the script gives it. Make it an attribute of the model (model.name = variable). Nothing is lost "
        "where a callback sets it again at the beginning of each epoch.",
        name,
    )
