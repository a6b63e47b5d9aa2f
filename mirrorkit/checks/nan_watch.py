"""A watch that says which layer made the first NaN of a training."""

from __future__ import annotations

from typing import Any, NoReturn

import tensorflow as tf

from mirrorkit._types import Variable
from mirrorkit.checks.non_finite import find_in_shards
from mirrorkit.errors import NonFiniteLossError, StepError
from mirrorkit.strategy import is_parameter_server, num_workers
from mirrorkit.train import Loop, LoopCallback, Replay
from mirrorkit.variables import assign, copies
from mirrorkit.whole import is_whole


class NanWatch(LoopCallback):
    """Says which layer made a loss or a weight NaN or infinite, in which batch, and from what.

    ```python
    loop.fit(train, epochs=10, callbacks=[mk.checks.NanWatch()])
    ```

    When the loss is found to be NaN, so are all weights, and nothing can be learnt from them. So the watch keeps a copy
    of what the step changes, made every so many steps on the first device. After the error it goes back to the copy,
    trains again update by update until a variable is no longer finite, and looks through that update layer by layer
    with `find_non_finite`. The weights are then left as they were before it.

    Every copy, and the end of every epoch, is also checked: weights can be NaN while the loss stays finite, since where
    TensorFlow uses oneDNN on the CPU, a ReLU behind a product makes 0 of NaN, and max pooling a finite number. This and
    the copy are all that it costs while all is well.

    A recipe gives the same batches again. A `tf.data.Dataset` of your own is read again from its beginning; when its
    order changes from time to time, the same may not happen again, and the error says so.

    Args:
        every: training steps from one copy to the next, and so the most that are trained again.

    Raises:
        NonFiniteLossError: from training, in place of the loop's own.
        StepError: `every` below 1; a step that does not say what it changes; parameter servers; Keras's fit.
    """

    def __init__(self, *, every: int = 200) -> None:
        super().__init__()
        if not is_whole(every):
            raise StepError(f"NanWatch(every={every!r}): it must be a whole number of steps from 1 on.")
        self._every = int(every)
        self._epoch = 0
        self._batch = 0  # of the epoch, before which the copy was made
        self._done = 0  # batches of the epoch
        self._copy: list[tf.Tensor] | None = None

    def set_loop(self, loop: Loop) -> None:
        """Take the loop that is to be watched; Loop calls it."""
        if is_parameter_server(loop.strategy):
            raise StepError(
                "NanWatch trains again update by update, which the asynchronous workers of parameter servers cannot. "
                "Look at a batch with mk.checks.find_non_finite(step, batch), or rehearse under 'one_device'."
            )
        self._variables: list[Variable] = list(getattr(loop.step, "variables", []))
        if not self._variables:
            raise StepError(
                f"{type(loop.step).__name__} does not say what it changes, so NanWatch cannot go back. Give it a "
                "property `variables`: a list of all variables that its update writes."
            )
        super().set_loop(loop)

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse to watch in vain."""
        if self._loop is None:
            raise StepError(
                "NanWatch goes back with the help of mk.train.Loop. In Keras's own fit, stop with "
                "keras.callbacks.TerminateOnNaN and look at a batch with mk.checks.find_non_finite(model, batch)."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start again: an epoch's batches are counted from its beginning."""
        self._epoch, self._copy = epoch, None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Check and make a copy when the last one is old."""
        if self._copy is None or batch - self._batch >= self._every:
            self._check()
            self._batch, self._copy = batch, self._values()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Remember how far the epoch is."""
        self._done = batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Check the epoch's last updates."""
        if self._copy is not None:
            self._check()
            self._copy = None

    def on_non_finite_loss(self, error: NonFiniteLossError) -> NoReturn:
        """Find out what happened and raise the error that says so; Loop calls it before it raises `error`."""
        _, text = self._diagnose(error.batch + 1)
        raise NonFiniteLossError(f"{error} {text}", step=error.step, epoch=error.epoch, batch=error.batch)

    def _check(self) -> None:
        if _all_finite(self._values()):
            return
        if self._copy is None:
            raise StepError(
                "Weights or optimizer slots are NaN or infinite before training. Look at where they come from."
            )
        batch, text = self._diagnose(self._done)
        step = self.loop.position.steps - self._done + batch
        raise NonFiniteLossError(
            f"Weights or optimizer slots became NaN or infinite at training step {step} (epoch {self._epoch}, batch "
            f"{batch} of it; all counted from 0), though the loss stayed finite. {text}",
            step=step,
            epoch=self._epoch,
            batch=batch,
        )

    def _diagnose(self, end: int) -> tuple[int, str]:
        """Train again from the copy to the first bad update, or to the last that begins before batch `end`."""
        self._restore(self._copy or [])
        replay = self._replay(self._batch)
        goes_on = True
        while goes_on:
            batch, before = replay.batch, self._values()
            goes_on = replay.update()
            if replay.batch >= end or not _all_finite(self._values()):
                break
        self._restore(before)
        rows = self._replay(batch).rows() if goes_on else []  # the data may have ended earlier this time
        for part, shards in enumerate(rows):
            try:
                found = find_in_shards(self.loop.step, shards, first=part * len(shards))
            except tf.errors.InvalidArgumentError as refused:  # what XLA, which checks nothing, had made NaN of
                return batch, f"Looked through layer by layer, batch {batch} is refused: {refused.message}"
            if found:
                return batch, f"The first number that is not finite comes in batch {batch}: {found}."
        elsewhere = "another worker's rows (its error says more), " if num_workers(self.loop.strategy) > 1 else ""
        return batch, (
            f"Trained again from batch {self._batch} on, all numbers here stayed finite. Look for the reason in "
            f"{elsewhere}data that gave other batches this time, as a tf.data.Dataset does that shuffles each time, an "
            "operation that is not deterministic (mk.reproducible.enable()), or random numbers, which are others here "
            "than in a Loop(jit_compile=True)."
        )

    def _replay(self, batch: int) -> Replay:
        return self.loop.replay(self._epoch, batch)

    def _values(self) -> list[tf.Tensor]:
        return [tf.identity(copies(variable)[0]) for variable in self._variables]

    def _restore(self, values: list[tf.Tensor]) -> None:
        for variable, value in zip(self._variables, values, strict=True):
            assign(variable, value)


@tf.function(autograph=False)
def _all_finite(values: list[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values if value.dtype.is_floating])
