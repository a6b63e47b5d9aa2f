"""A callback that finds the layer that produced the first NaN in training."""

from __future__ import annotations

from typing import Any, NoReturn

import tensorflow as tf

from mirrorkit.arguments import whole_number
from mirrorkit.checks.non_finite import find_in_shards
from mirrorkit.errors import NonFiniteLossError, StepError
from mirrorkit.strategy import is_parameter_server, num_workers, worker_index
from mirrorkit.train import Loop, LoopCallback, Replay, variables_of
from mirrorkit.variables import Snapshot


class NanWatch(LoopCallback):
    """Finds the layer that made a loss or a weight NaN or infinite, and the batch in which it happened.

    ```python
    loop.fit(train, epochs=10, callbacks=[mk.checks.NanWatch()])
    ```

    By the time the loss is NaN, all weights are NaN too and show nothing. So every `every` steps, the callback copies
    the variables that the step changes, on each device. After the error it restores the copy, trains again update
    by update until a variable is no longer finite, and checks that update layer by layer with `find_non_finite`. It
    leaves the weights as they were before that update.

    It also checks the variables at every copy, as `Loop` does now and then and at the end of every epoch. Weights can
    be NaN while the loss stays finite: where TensorFlow uses oneDNN on the CPU, a ReLU after a matrix product turns NaN
    into 0, and max pooling turns it into a finite number. As long as all values are finite, this check and the copy are
    the only cost.

    A recipe yields the same batches again. Your own `tf.data.Dataset` is read again from its beginning; if its order
    changes between reads, the problem may not occur again, and the error says so. A generator cannot be read again.

    Args:
        every: training steps from one copy to the next, rounded up to the end of a call; so many are trained again.

    Raises:
        NonFiniteLossError: during training, in place of the loop's own error.
        StepError: `every` below 1; a step that does not say what it changes; parameter servers; Keras's fit.
    """

    def __init__(self, *, every: int = 200) -> None:
        super().__init__()
        self._every = whole_number("every", every, StepError)
        self._batch = 0  # the copy was made before this batch of the epoch
        self._copy: Snapshot | None = None

    def set_loop(self, loop: Loop) -> None:
        """Set the loop to watch; Loop calls it."""
        if is_parameter_server(loop.strategy):
            raise StepError(
                "NanWatch trains again update by update, which asynchronous workers cannot do under parameter servers. "
                "Check a batch with mk.checks.find_non_finite(step, batch), or train under 'one_device'."
            )
        self._variables = variables_of(loop.step, "NanWatch could not restore it")
        super().set_loop(loop)

    def on_train_begin(self, logs: Any = None) -> None:
        """Raise an error if there is no loop to watch."""
        if self.loop is None:
            raise StepError(
                "NanWatch needs mk.train.Loop to train again. In Keras's own fit, stop with "
                "keras.callbacks.TerminateOnNaN and check a batch with mk.checks.find_non_finite(model, batch)."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Discard the copy: batches are counted from 0 in each epoch."""
        self._copy = None
        if began := self._finite.began_with_nan:
            raise StepError(f"NaN before training in {', '.join(began)}. Check where it comes from.")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Check the variables and copy them, if the last copy is old."""
        if self._copy is None or batch - self._batch >= self._every:
            self._finite.require()
            self._batch, self._copy = batch, Snapshot(self._variables)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Discard the copy; the loop has checked the last updates."""
        self._copy = None

    def on_non_finite_loss(self, error: NonFiniteLossError) -> NoReturn:
        """Find the cause and raise an error that names it; Loop calls this before it raises `error`."""
        if self._copy is None:  # between two epochs: a callback wrote it
            raise error
        batch, cause = self._diagnose(self._copy, error)
        what, step = str(error), error.step
        if error.variable is None or batch is None:
            batch = error.batch
        else:
            step += batch - error.batch
            what = (
                f"The variable {error.variable} became NaN or infinite at training step {step} (epoch {error.epoch}, "
                f"batch {batch} of it; all counted from 0), though the loss stayed finite."
            )
        raise NonFiniteLossError(f"{what} {cause}", step=step, epoch=error.epoch, batch=batch, variable=error.variable)

    def get_state(self) -> None:
        """Return None: the copies are not saved."""

    def _diagnose(self, copy: Snapshot, error: NonFiniteLossError) -> tuple[int | None, str]:
        """Train again from the copy to the first bad update, or to the last one that begins with the error's batch.

        Returns the batch of that update, None where the data ended before it, and what was found.
        """
        copy.put_back()
        replay = Replay(self.loop.running, error.epoch, self._batch)
        goes_on = True
        while goes_on:
            batch, before = replay.batch, Snapshot(self._variables)
            goes_on = replay.update()
            if replay.batch > error.batch or self._finite.found() is not None:
                break
        before.put_back()
        if not goes_on:
            return None, (
                f"To find the cause, the loop trained again from batch {self._batch} on, but this time the data ended "
                f"before batch {batch}. A generator can be read only once: give a keras.utils.PyDataset or a recipe."
            )
        rows = Replay(self.loop.running, error.epoch, batch).rows()
        strategy = self.loop.strategy
        for part, shards in enumerate(rows):  # of this worker's replicas, with the numbers that the step gave them
            first = part * strategy.num_replicas_in_sync + worker_index(strategy) * len(shards)
            try:
                found = find_in_shards(self.loop.step, shards, first=first, variables=self._finite.watched)
            except tf.errors.InvalidArgumentError as refused:  # XLA does not check values and gave NaN
                return batch, f"The search layer by layer raised an error in batch {batch}: {refused.message}"
            if found:
                return batch, f"The first number that is not finite comes in batch {batch}: {found}."
        elsewhere = "another worker's rows (its error says more), " if num_workers(strategy) > 1 else ""
        return batch, (
            f"When the loop trained again from batch {self._batch} on, all numbers here stayed finite. Possible causes "
            f"are {elsewhere}data that gave other batches this time (a generator, a tf.data.Dataset that reshuffles), "
            "an operation that is not deterministic (mk.reproducible.enable()), or random numbers, which differ from "
            "those of a Step(jit_compile=True)."
        )

    @property
    def _finite(self) -> Any:
        return self.loop.running.finite
