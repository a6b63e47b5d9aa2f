"""Input: what a loop needs to know about its data, whether a recipe or the user's own `tf.data.Dataset`."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit import batching
from mirrorkit._types import Batch, Spec
from mirrorkit.arguments import whole_number
from mirrorkit.data import untuned
from mirrorkit.errors import StepError
from mirrorkit.strategy import input_context, is_chief, is_tpu, num_workers, of_all_workers
from mirrorkit.train.input.class_weight import ClassWeights
from mirrorkit.train.input.epoch import EpochIterator, HostIterator
from mirrorkit.train.input.same_data import require_same_end
from mirrorkit.train.input.source import source_of
from mirrorkit.train.requirements.data import require_same_rows, require_static_batches

_log = logging.getLogger("mirrorkit")

_TENSORS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)
_STAND_INS = 2**20  # updates of a rehearsal on stand-in batches, which have no end
_STAND_IN_SIZE = 32  # of a dimension that the data does not tell, in a stand-in batch; per replica for the batch size
_FURTHER = 8  # batches that are looked at, at most, after a first one that cannot tell a difference


class Input:
    """The data of a fit, an evaluation or a prediction: global batches, epoch by epoch.

    Args:
        strategy: its replicas share each batch.
        data: a recipe (`mk.data.batches`, `mk.data.records`) or a `tf.data.Dataset` of global batches; see `Source`.
        steps: steps per epoch; needed where the data never ends. A finite data set gives all its batches by default.
        carry_on: with `steps`, an epoch of a `tf.data.Dataset` goes on where the one before stopped, and starts again
            at the end of the data, as Keras's `fit` does.
        rehearses: whether it serves `rehearsals` alone.
        class_weight: a mapping from class index to the weight of its examples, as in Keras's `fit`.
        of: what to call the data in errors, such as "of the validation".

    Attributes:
        given_spec: shapes and dtypes of the batches; `element_spec` is that of weighed ones, with `class_weight`.
        order: what the order of an epoch's examples depends on, as a `Position` names it.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        data: Any,
        *,
        steps: int | None = None,
        carry_on: bool = False,
        rehearses: bool = False,
        class_weight: Mapping[int, float] | None = None,
        of: str = "",
    ) -> None:
        steps = None if steps is None else whole_number("The number of steps", steps, StepError)
        source = source_of(data, repeats=carry_on and steps is not None)
        if rehearses and not source.can_be_read_twice:  # it may never end, and zeros stand in for it anyway
            steps = 1
        self._strategy, self._source, self._of = strategy, source, of and f" {of}"
        self._compared = num_workers(strategy) == 1
        # Each worker reads its own rows of a batch, or all of them where this is None.
        self._context = input_context(strategy) if source.reads_own_rows else None
        self.first_epoch = 0  # the epoch that begins with the first batch of endless data
        self._endless: HostIterator | None = None
        self._next = 0  # number of the batch, of all epochs together, that it gives next
        self._seen: Batch | None = None  # the last that was looked at
        spec = source.data.element_spec
        if any(not isinstance(part, _TENSORS) for part in tf.nest.flatten(spec)):
            raise StepError(
                f"The data yields None, or datasets, among its tensors: {spec}. A batch may end in None, in place of "
                "targets or sample weights; leave the others out in the dataset: dataset.map(...). Batch the windows: "
                "dataset.window(12).flat_map(lambda x, y: tf.data.Dataset.zip((x, y)).batch(12))."
            )
        self.class_weight, self.given_spec = class_weight, spec
        self._weigh = ClassWeights.of(class_weight, spec) if class_weight else None
        self.element_spec: Spec = self._weighed(source.batches(0, 0, 0, None)).element_spec if class_weight else spec
        if source.steps == 0:
            raise StepError("The data set is empty. Check its path, filters and drop_remainder.")
        if source.is_endless and steps is None:
            raise StepError(
                "The data never ends. Say how many batches to take: steps_per_epoch, validation_steps or steps."
            )
        given = [number for number in (steps, source.steps) if number is not None]
        self.steps: int | None = min(given, default=None)
        self.global_batch_size, self.starts_over = source.global_batch_size, source.starts_over
        workers = 1 if self._context is None else self._context.num_input_pipelines
        self.order = {
            "global_batch_size": source.global_batch_size,
            "num_examples": source.num_examples,
            "order": source.order,
            "order_version": source.order_version,
            "order_workers": workers if source.order_depends_on_workers else None,
        }
        if self.global_batch_size is not None:
            batching.check_split(self.global_batch_size, strategy.num_replicas_in_sync)
        if self._context is None and is_chief(strategy):
            _say_what_it_costs(num_workers(strategy))
        if is_tpu(strategy):
            require_static_batches(self.element_spec, strategy.num_replicas_in_sync)

    def left(self, done: int) -> int | None:
        """Return how many batches of the epoch are left after `done`; None where that is unknown."""
        return None if self.steps is None else self.steps - done

    def epoch(
        self, epoch: int, *, start: int = 0, look_at: int = 0, check: Callable[[Batch], bool] | None = None
    ) -> EpochIterator:
        """Return the epoch's batches from the `start`-th on.

        Up to `look_at` batches, those of the first update, may be read before it: several workers then see that theirs
        are the same, and `check` is called with the first one, which is still used for training. Where each worker
        reads its own rows alone, this is done once, and `check` is called with a sample that all of them read; of a set
        in memory always with a sample.
        """
        before = (epoch - self.first_epoch) * (self.steps or 0) + start if self._source.is_endless else start
        if look_at and self._source.has_identity:
            self._compare(lambda: self._source.identity(epoch, start), epoch)
        held = self._held(epoch, start)
        if held or (self._is_sampled and look_at and self._source.has_identity):
            if check is not None and start != self.steps:
                check(self.first())
            look_at, check = 0, None
        if held:
            return held
        if self._endless is not None and before == self._next:
            iterator, check = self._endless, None
            iterator.position = start
        else:
            iterator = self._on_host(self._batches(epoch, start, before), start)
        self._look(iterator, epoch, look_at, check)
        if self._source.is_endless:
            self._endless, self._next = iterator, before - start + (self.steps or 0)
        return iterator

    def batches(self, check: Callable[[Batch], bool] | None) -> Iterator[tuple[Batch, int | None]]:
        """Return an iterator over the batches on the host, from the beginning, each with the size of the whole batch.

        Without a known size it is the whole batch, else this worker's rows. `check` is called with the first one.
        """
        iterator = self._on_host(self._batches(0, 0, 0))
        if self._source.has_identity:
            self._compare(lambda: self._source.identity(0, 0))
        self._look(iterator, 0, 1, check)
        for number in itertools.count():
            batch = None if number == self.steps else iterator.read(number)
            if not self._source.has_known_end:
                self._require_same_end(batch, number)
            if batch is None:
                return
            require_same_rows(batch, number)
            yield batch, None if self._context is None else iterator.size_of(number)

    def first(self) -> Batch | None:
        """Return one batch of a recipe; None for a dataset of the user's, which to read could move a shuffle on.

        Where each worker reads its own rows alone, it is a batch that all of them can read without a shuffle; of a set
        in memory, examples from all over it.
        """
        if not self._source.can_be_read_twice:
            return None
        found = self._weighed(self._source.sample()) if self._is_sampled else self._batches(0, 0, 0).take(1)
        return next(iter(untuned(found)))

    def at_hand(self, iterator: EpochIterator, look_at: int) -> Batch | None:
        """Return a batch for a check between two updates: the next one, which stays the next, or the last looked at.

        The next update takes `look_at` batches. Of a set in memory it is a sample.
        """
        if isinstance(iterator, HostIterator) and not self._source.samples_all:
            seen = iterator.look_at(look_at, self.left(iterator.position))
            self._seen = self._seen if seen is None else seen
        return self.first() if self._seen is None else self._seen

    @property
    def _is_sampled(self) -> bool:
        return self._context is not None or self._source.samples_all

    def rehearsals(self, accumulate: int = 1) -> Iterator[tuple[EpochIterator, int]]:
        """Yield iterators that leave the data's position alone, with how many steps to take from each at most.

        There is one for each kind of update in an epoch: a second one where a recipe's last update is a smaller one.
        Of a `tf.data.Dataset` they give zeros, since reading it could advance a shuffle.
        """
        reads = self._source.can_be_read_twice
        steps = (self.steps if reads else None) or _STAND_INS * accumulate
        for run in EpochIterator(None, **self._place(0)).parts(steps, accumulate):
            if not (batches := self._held(0, run.first)):
                dataset = self._batches(0, run.first, run.first).take(run.batches) if reads else self._zeros()
                batches = self._on_host(dataset.repeat(), run.first)
            yield batches, run.batches

    def _compare(self, first: Callable[[], Batch | None], epoch: int = 0) -> None:
        """Check that all workers begin with the same batch: in each epoch of what all of them read whole, else once."""
        if not self._compared:
            of = self._of or (f" in epoch {epoch} (counted from 0)" if epoch else "")
            self._source.require(self._strategy, first(), self.steps, of, self._source.of_all())
            self._compared = self._source.reads_own_rows

    def _place(self, position: int) -> dict[str, Any]:
        """Return the arguments that all kinds of `EpochIterator` take."""
        steps = self.steps if self._source.has_known_end else None
        return {"steps": steps, "size_of": self._source.size_of, "position": position}

    def _held(self, epoch: int, start: int) -> EpochIterator | None:
        """Return an epoch of examples that lie where they are computed on; None where they are read."""
        return self._source.held(self._strategy, epoch, weigh=self._weigh, **self._place(start))

    def _on_host(self, dataset: tf.data.Dataset, position: int = 0) -> HostIterator:
        return HostIterator(dataset, context=self._context, **self._place(position))

    def _look(self, iterator: HostIterator, epoch: int, look_at: int, check: Callable[[Batch], bool] | None) -> None:
        if not look_at or iterator.left == 0 or (self._compared and check is None and self._seen is not None):
            return
        first = self._seen = iterator.look_at(look_at, self.left(iterator.position))
        self._compare(lambda: first, epoch)
        require_same_rows(first, iterator.position)
        batch, left = first, self.left(iterator.position)
        further = _FURTHER if left is None else min(_FURTHER, left - look_at)
        while check is not None and batch is not None and not check(batch) and further > 0:
            batch, further = iterator.look_on(), further - 1
            self._require_same_end(batch, iterator.position + _FURTHER - further)

    def _require_same_end(self, batch: Batch | None, number: int) -> None:
        """Refuse data that has no batch of this number on some of the workers alone."""
        having = of_all_workers(self._strategy, batch is not None)
        require_same_end(self._strategy, np.array(having), number)

    def _weighed(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset if self._weigh is None else dataset.map(self._weigh, num_parallel_calls=tf.data.AUTOTUNE)

    def _batches(self, epoch: int, start: int, before: int) -> tf.data.Dataset:
        return self._weighed(self._source.batches(epoch, start, before, self._context))

    def _zeros(self) -> tf.data.Dataset:
        """Return a batch of zeros, of the static shapes that the data has, so that a trace serves both."""
        size = self.global_batch_size or _STAND_IN_SIZE * self._strategy.num_replicas_in_sync
        batch = tf.nest.map_structure(
            lambda s: tf.zeros([size, *(d or _STAND_IN_SIZE for d in s.shape[1:])], s.dtype), self.element_spec
        )
        return tf.data.Dataset.from_generator(lambda: iter([batch]), output_signature=self.element_spec)


@functools.cache  # once
def _say_what_it_costs(workers: int) -> None:
    if workers > 1:
        _log.warning(
            "Each of the %d workers reads this data whole, and trains on its rows: %d times the reading and decoding. "
            "mk.data.batches, records, source and from_function let each worker read its own part alone.",
            workers,
            workers,
        )
