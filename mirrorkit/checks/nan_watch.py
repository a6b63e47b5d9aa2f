"""A watch that says which layer made the first NaN of a training."""

from __future__ import annotations

from typing import Any, NoReturn

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.checks.non_finite import find_in_shards
from mirrorkit.errors import NonFiniteLossError, StepError
from mirrorkit.strategy import is_parameter_server, num_workers
from mirrorkit.variables import assign, copies
from mirrorkit.whole import is_whole


class NanWatch(keras.callbacks.Callback):  # type: ignore[name-defined]
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
        self._loop: Any = None
        self._epoch = 0
        self._batch = 0  # of the epoch, before which the copy was made
        self._done = 0  # batches of the epoch
        self._copy: list[tf.Tensor] | None = None

    def set_loop(self, loop: Any) -> None:
        """Take the loop that is to be watched; Loop calls it."""
        if is_parameter_server(loop.strategy):
            raise StepError(
                "NanWatch trains again update by update, which the asynchronous workers of parameter servers cannot. "
                "Look at a batch with mk.checks.find_non_finite(step, batch), or rehearse under 'one_device'."
            )
        if not getattr(loop.step, "variables", None):
            raise StepError(
                f"{type(loop.step).__name__} does not say what it changes, so NanWatch cannot go back. Give it a "
                "property `variables`: a list of all variables that its update writes."
            )
        self._loop = loop

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse to watch in vain."""
        if self._loop is None:
            raise StepError(
                "NanWatch goes back with the help of mk.train.Loop. In Keras's own fit, stop with "
                "keras.callbacks.TerminateOnNaN and look at a batch with mk.checks.find_non_finite(model, batch)."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin anew: an epoch's batches are counted from its beginning."""
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

    def on_non_finite_loss(self, error: NonFiniteLossError, feed: Any) -> NoReturn:
        """Find out what happened and raise the error that says so; Loop calls it before it raises `error`."""
        _, text = self._diagnose(feed, error.batch + 1)
        raise NonFiniteLossError(f"{error} {text}", step=error.step, epoch=error.epoch, batch=error.batch)

    def _check(self) -> None:
        if _all_finite(self._values()):
            return
        if self._copy is None:
            raise StepError(
                "Weights or optimizer slots are NaN or infinite before training. Look at where they come from."
            )
        batch, text = self._diagnose(self._loop.feed, self._done)
        step = self._loop.position.steps - self._done + batch
        raise NonFiniteLossError(
            f"Weights or optimizer slots became NaN or infinite at training step {step} (epoch {self._epoch}, batch "
            f"{batch} of it; all counted from 0), though the loss stayed finite. {text}",
            step=step,
            epoch=self._epoch,
            batch=batch,
        )

    def _diagnose(self, feed: Any, end: int) -> tuple[int, str]:
        """Train again from the copy to the first bad update, or to the last that begins before batch `end`."""
        update, calls = self._loop._step, self._loop._calls
        self._restore(self._copy or [])
        totals = tf.zeros([update.totals_size], tf.float64)
        stream = self._stream(feed, self._batch)
        batch, steps = self._batch, 1
        while steps:
            batch, before = stream.position, self._values()
            steps = calls.train(stream, totals, min(update.accumulate, stream.left or update.accumulate)).steps
            if stream.position >= end or not _all_finite(self._values()):
                break
        self._restore(before)
        rows = self._rows(self._stream(feed, batch)) if steps else []  # the data may have ended earlier this time
        for part, shards in enumerate(rows):
            try:
                found = find_in_shards(self._loop.step, shards, first=part * len(shards))
            except tf.errors.InvalidArgumentError as refused:  # what XLA, which checks nothing, had made NaN of
                return batch, f"Looked through layer by layer, batch {batch} is refused: {refused.message}"
            if found:
                return batch, f"The first number that is not finite comes in batch {batch}: {found}."
        elsewhere = "another worker's rows (its error says more), " if num_workers(self._loop.strategy) > 1 else ""
        return batch, (
            f"Trained again from batch {self._batch} on, all numbers here stayed finite. Look for the reason in "
            f"{elsewhere}data that gave other batches this time, as a tf.data.Dataset does that shuffles anew, an "
            "operation that is not deterministic (mk.reproducible.enable()), or random numbers, which are others here "
            "than in a Loop(jit_compile=True)."
        )

    def _stream(self, feed: Any, batch: int) -> Any:
        return feed.epoch(self._epoch, start=batch, restart=True, resume=True)

    def _rows(self, stream: Any) -> list[list[Any]]:
        """Return the replicas' rows of the batches of the next update."""
        strategy = self._loop.strategy

        @tf.function(autograph=False)
        def take(source: Any, index: tf.Tensor, size: int | None) -> Any:
            batch, share = stream.take(source, index, size)
            return strategy.run(share, args=(batch,))

        rows = []
        count = self._loop._step.accumulate
        for index in range(stream.position, stream.position + min(count, stream.left or count)):
            nest = take(stream.source, tf.constant(index), stream.size_of(index))
            parts = [strategy.experimental_local_results(value) for value in tf.nest.flatten(nest)]
            rows.append([tf.nest.pack_sequence_as(nest, part) for part in zip(*parts, strict=True)])
        return rows

    def _values(self) -> list[tf.Tensor]:
        return [tf.identity(copies(variable)[0]) for variable in self._loop.step.variables]

    def _restore(self, values: list[tf.Tensor]) -> None:
        for variable, value in zip(self._loop.step.variables, values, strict=True):
            assign(variable, value)


@tf.function(autograph=False)
def _all_finite(values: list[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values if value.dtype.is_floating])
