"""A watch that says which layer made the first NaN of a training."""

from __future__ import annotations

from typing import Any, NoReturn

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.checks.non_finite import find_in_shards
from mirrorkit.errors import NonFiniteLossError, StepError
from mirrorkit.strategy import num_workers
from mirrorkit.train.update import native


class NanWatch(keras.callbacks.Callback):  # type: ignore[name-defined]
    """Says in the error about a NaN or infinite loss which layer made it, and from what.

    ```python
    loop.fit(train, epochs=10, callbacks=[mk.checks.NanWatch()])
    ```

    When the loss is found to be NaN, so are all weights, and nothing can be learnt from them. So the watch keeps a copy
    of what the step changes, made every so many steps on the first device. After the error it goes back to the copy,
    trains again up to the bad update, and looks through that one layer by layer with `find_non_finite`; then through
    the one before, whose loss may have been finite and whose gradient was not. The copy is all that it costs while
    all is well: its memory, and the time to copy it.

    After the error the weights are those before the bad update.

    A recipe gives the same batches again. A `tf.data.Dataset` of your own is read again from its beginning; when its
    order changes from time to time, the same may not happen again, and the error says so.

    Args:
        every: training steps from one copy to the next, and so the most that are trained again.

    Raises:
        NonFiniteLossError: from training, in place of the loop's own.
        StepError: `every` below 1; a step that does not say what it changes.
    """

    def __init__(self, *, every: int = 200) -> None:
        super().__init__()
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise StepError(f"NanWatch(every={every!r}): it must be a whole number of steps from 1 on.")
        self._every = every
        self._loop: Any = None
        self._copy: list[tf.Tensor] | None = None
        self._batch = 0  # of the epoch, before which the copy was made

    def set_loop(self, loop: Any) -> None:
        """Take the loop that is to be watched; Loop calls it."""
        if not getattr(loop.step, "variables", None):
            raise StepError(
                f"{type(loop.step).__name__} does not say what it changes, so NanWatch cannot go back. Give it a "
                "property `variables`: a list of all variables that its update writes."
            )
        self._loop = loop

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Forget the copy: an epoch's batches are counted from its beginning."""
        self._copy = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Make a copy when the last one is old."""
        if self._loop is not None and (self._copy is None or batch - self._batch >= self._every):
            self._batch = batch
            self._copy = [tf.identity(copies[0]) for copies in self._copies()]

    def on_train_end(self, logs: Any = None) -> None:
        """Give the memory back."""
        self._copy = None

    def on_non_finite_loss(self, error: NonFiniteLossError, feed: Any) -> NoReturn:
        """Find out what happened and raise the error that says so; Loop calls it before it raises `error`."""
        text = f"{error} {self._diagnose(error, feed)}"
        raise NonFiniteLossError(text, step=error.step, epoch=error.epoch, batch=error.batch)

    def _diagnose(self, error: NonFiniteLossError, feed: Any) -> str:
        step, calls = self._loop._step, self._loop._calls
        for copies, value in zip(self._copies(), self._copy or (), strict=True):
            for copy in copies:
                copy.assign(value)
        self._copy = None
        before = max(error.batch - step.accumulate, self._batch)
        stream = feed.epoch(error.epoch, start=self._batch, restart=True, resume=True)
        totals = tf.zeros([step.totals_size], tf.float64)
        calls.train(stream, totals, before - self._batch)
        for batch in sorted({before, error.batch}):
            rows = self._rows(feed.epoch(error.epoch, start=batch, restart=True, resume=True), step.accumulate)
            for part, shards in enumerate(rows):
                if found := find_in_shards(self._loop.step, shards, first=part * len(shards)):
                    when = "of this update" if batch == error.batch else f"of the update before (batch {batch})"
                    return f"The first number {when} that is not finite: {found}."
            if batch != error.batch:
                calls.train(stream, totals, step.accumulate)
        others = (
            "the numbers of another worker (its error says which), " if num_workers(self._loop.strategy) > 1 else ""
        )
        return (
            f"Trained again from batch {self._batch} on, all numbers here stayed finite. Look for the reason in {others}"
            "data that gave other batches this time, as a tf.data.Dataset does that shuffles anew, or an operation that "
            "is not deterministic (mk.reproducible.enable())."
        )

    def _rows(self, stream: Any, batches: int) -> list[list[Any]]:
        """Return the replicas' rows of the next batches."""
        strategy = self._loop.strategy

        @tf.function(autograph=False)
        def take(source: Any, index: tf.Tensor) -> Any:
            batch, share = stream.take(source, index, None)
            return strategy.run(share, args=(batch,))

        rows = []
        for index in range(stream.position, stream.position + min(batches, stream.left or batches)):
            nest = take(stream.source, tf.constant(index, tf.int64))
            parts = [strategy.experimental_local_results(value) for value in tf.nest.flatten(nest)]
            rows.append([tf.nest.pack_sequence_as(nest, part) for part in zip(*parts, strict=True)])
        return rows

    def _copies(self) -> list[tuple[Any, ...]]:
        strategy = self._loop.strategy
        return [strategy.experimental_local_results(native(variable)) for variable in self._loop.step.variables]
