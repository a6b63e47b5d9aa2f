"""Input: what a loop needs to know of its data, whether a recipe or the user's own `tf.data.Dataset`."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit import batching
from mirrorkit._types import Batch, Nest, Spec
from mirrorkit.data import (
    Batches,
    FromFunction,
    PreparedRecipe,
    Recipe,
    Resident,
    dataset_without_none,
    is_none,
    own_rows,
    untuned,
)
from mirrorkit.errors import StepError
from mirrorkit.strategy import input_context, is_chief, is_parameter_server, is_tpu, num_workers, of_all_workers
from mirrorkit.train.input.class_weight import ClassWeights
from mirrorkit.train.input.epoch import EpochIterator, HostIterator
from mirrorkit.train.input.order import order_of
from mirrorkit.train.input.resident import ResidentIterator, SentIterator, can_be_sent
from mirrorkit.train.input.same_data import first_rows, require_own_data, require_same_data, require_same_end
from mirrorkit.train.requirements.data import require_static_batches
from mirrorkit.train.requirements.same_rows import require_same_rows
from mirrorkit.whole import whole_number

_log = logging.getLogger("mirrorkit")

_STAND_IN_SIZE = 32  # of a dimension that the data does not tell, in a stand-in batch; per replica for the batch size


class Input:
    """The data of a fit, an evaluation or a prediction: global batches, epoch by epoch.

    Args:
        strategy: its replicas share each batch.
        data: a recipe (`mk.data.batches`, `mk.data.records`) or a `tf.data.Dataset` of global batches.
        steps: steps per epoch; needed where the data never ends. A finite data set gives all its batches by default.
        carry_on: with `steps`, an epoch of a `tf.data.Dataset` goes on where the one before stopped, and starts again
            at the end of the data, as Keras's `fit` does.
        class_weight: from class index to the weight of its examples, as in Keras's `fit`.
        of: which data it is, for errors: "of the validation".
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        data: Any,
        *,
        steps: int | None = None,
        carry_on: bool = False,
        class_weight: Mapping[int, float] | None = None,
        of: str = "",
    ) -> None:
        if not isinstance(data, (Recipe, tf.data.Dataset)):
            raise StepError(
                "Data must be a recipe such as mk.data.batches(...) or a tf.data.Dataset, found "
                f"{type(data).__name__}. Turn arrays into a recipe: "
                "mk.data.batches(mk.data.arrays(images, labels), global_batch_size=256); a generator or a keras "
                "PyDataset into a dataset: tf.data.Dataset.from_generator(..., output_signature=...)."
            )
        steps = None if steps is None else whole_number("The number of steps", steps, StepError)
        data = dataset_without_none(data) if isinstance(data, tf.data.Dataset) else data
        # Whether there are as many batches as `steps` says; a repeated dataset claims to be endless even when empty.
        self._known = isinstance(data, Recipe) or int(data.cardinality()) != tf.data.UNKNOWN_CARDINALITY
        self.num_examples = data.num_examples if isinstance(data, Recipe) else None
        self.order = order_of(data)  # see `Position`
        if carry_on and steps is not None and isinstance(data, tf.data.Dataset):
            data = data.repeat()
        self._strategy = strategy
        self._data = data
        self._compared, self._of = num_workers(strategy) == 1, of and f" {of}"
        # Each worker reads its own rows of a batch, or all of them where this is None.
        self._context = input_context(strategy) if isinstance(data, Recipe) and data.reads_own_rows else None
        # of a set in memory, until they are checked; a `map` may make others of them
        as_they_are = isinstance(data, Batches) and data.map is None and not data.one_hot
        self._labels = data.split.labels if as_they_are else None
        self.first_epoch = 0  # the epoch that begins with the first batch of endless data
        self._endless: EpochIterator | None = None
        self._next = 0  # number of the batch, of all epochs together, that it gives next
        spec = data.element_spec  # a recipe remembers it; to make a dataset for it takes 0.1 s
        if any(map(is_none, tf.nest.flatten(spec))):
            raise StepError(
                f"The data yields None among its tensors: {spec}. A batch may end in None, in place of targets or "
                "sample weights. Leave the others out in the dataset: dataset.map(...)."
            )
        self.class_weight = class_weight
        self._weigh = ClassWeights.of(class_weight, spec) if class_weight else None
        self.element_spec: Spec = self._weighed(self._dataset()).element_spec if class_weight else spec
        found = data.steps_per_epoch if isinstance(data, Recipe) else int(data.cardinality())
        if found == 0:
            raise StepError("The data set is empty. Check its path, filters and drop_remainder.")
        self._is_endless = found == tf.data.INFINITE_CARDINALITY
        if self._is_endless and steps is None:
            raise StepError(
                "The data never ends. Say how many batches to take: steps_per_epoch, validation_steps or steps."
            )
        self.steps: int | None = steps if found < 0 else found if steps is None else min(steps, found)
        size = data.global_batch_size if isinstance(data, Recipe) else tf.nest.flatten(self.element_spec)[0].shape[0]
        self.global_batch_size: int | None = size
        self.order_version = data.order_version if isinstance(data, Recipe) else 1
        self.order_workers: int | None = None  # see `Position`
        if isinstance(data, Recipe) and data.order_depends_on_workers:
            self.order_workers = 1 if self._context is None else self._context.num_input_pipelines
        if size is not None:
            batching.check_split(size, strategy.num_replicas_in_sync)
        if self._context is None and is_chief(strategy):
            _say_what_it_costs(num_workers(strategy))
        if is_tpu(strategy):
            require_static_batches(self.element_spec, strategy.num_replicas_in_sync)

    def unchecked_labels(self) -> Nest:
        """Return the labels of a set in memory, once; None where they are elsewhere."""
        labels, self._labels = self._labels, None
        return labels

    def left(self, done: int) -> int | None:
        """Return how many batches of the epoch are left after `done`; None where that is unknown."""
        return None if self.steps is None else self.steps - done

    def epoch(
        self, epoch: int, *, start: int = 0, look_at: int = 0, check: Callable[[Batch], None] | None = None
    ) -> EpochIterator:
        """Return the epoch's batches from the `start`-th on.

        Up to `look_at` batches, those of the first update, may be read before the training begins: several workers then
        see that theirs are the same, and `check` is called with the first one, which is still used for training. Where
        each worker reads its own rows alone, `check` is called with a sample that all of them read.
        """
        before = (epoch - self.first_epoch) * (self.steps or 0) + start if self._is_endless else start
        if self._endless is not None and before == self._next:
            self._endless.position = start
            iterator = self._endless
        else:
            iterator = self._iterator(epoch, start, before, look_at, check)
        if self._is_endless:
            self._endless, self._next = iterator, before - start + (self.steps or 0)
        return iterator

    def _iterator(
        self, epoch: int, start: int, before: int, look_at: int, check: Callable[[Batch], None] | None
    ) -> EpochIterator:
        if look_at and self._has_identity:
            self._compare(lambda: self._identity(epoch, start))
        if self._is_held:
            if check is not None and start != self.steps:
                check(self.first(epoch, start))
            return self._held(epoch, start)
        dataset = self._batches(epoch, start, before)
        if self._context is not None and look_at and self._has_identity:
            if check is not None and start != self.steps:
                check(self.first())
            look_at, check = 0, None
        return self._on_host(dataset, position=start, look_at=look_at, check=check)

    def batches(self) -> Iterator[tuple[Batch, int | None]]:
        """Return an iterator over the batches on the host, from the beginning, each with the size of the whole batch.

        Without a known size it is the whole batch, else this worker's rows.
        """
        whole = self._whole()
        batches = itertools.islice(iter(untuned(self._batches(0, 0, 0))), self.steps)
        for i in itertools.count():
            batch = next(batches, None)
            if i == 0:
                self._compare(lambda: self._identity(0, 0) if self._has_identity else batch)  # noqa: B023
            if not self._known:
                require_same_end(self._strategy, np.array(of_all_workers(self._strategy, batch is not None)), i)
            if batch is None:
                return
            require_same_rows(batch, i)
            yield batch, None if self._context is None else self.global_batch_size if i < whole else self._last()

    def first(self, epoch: int = 0, start: int = 0) -> Batch | None:
        """Return one batch of a recipe; None for a dataset of the user's, which to read could move a shuffle on.

        Where each worker reads its own rows alone, it is a batch that all of them can read without a shuffle.
        """
        if not isinstance(self._data, Recipe):
            return None
        if self._context is not None:
            return next(iter(untuned(self._sample())))
        return next(iter(untuned(self._batches(epoch, start, start).take(1))))

    def rehearsals(self, accumulate: int = 1) -> Iterator[tuple[EpochIterator, int]]:
        """Yield iterators that leave the data's position alone, with the number of steps to take of each.

        One for each kind of update that an epoch has: the first is as long as one likes, another holds the
        smaller update at the end of a recipe's epoch. Of a recipe they give its first batch over and over; of a
        `tf.data.Dataset` zeros, since to read it could move a shuffle on.
        """
        end = 0
        if isinstance(self._data, Recipe) and self.steps is not None:
            whole = self._whole()
            end = whole % accumulate + self.steps - whole if whole else self.steps % accumulate
        if self.steps != end:
            iterator = self._rehearsal()
            if end and self.steps is not None:
                iterator.steps = self.steps - end  # the first batch over and over has no smaller one
            yield iterator, accumulate
        if end:
            yield self._rehearsal(end), end

    @property
    def _is_held(self) -> bool:
        """Whether the examples lie where they are computed on."""
        return can_be_sent(self._data) if is_parameter_server(self._strategy) else isinstance(self._data, Resident)

    def _held(self, epoch: int, start: int) -> EpochIterator:
        assert self.steps is not None  # a recipe says so
        if is_parameter_server(self._strategy):
            return SentIterator(self._data, epoch, steps=self.steps, position=start, weigh=self._weigh)
        return ResidentIterator(self._data, self._strategy, epoch, steps=self.steps, position=start, weigh=self._weigh)

    def _sample(self) -> tf.data.Dataset:
        """Return a whole batch of a recipe, the same on every worker, as a dataset of one element."""
        data = self._data.as_written() if isinstance(self._data, PreparedRecipe) else self._data
        return self._weighed(data.dataset().take(1))

    @property
    def _has_identity(self) -> bool:
        """Whether workers compare their data without reading a batch; with `FromFunction` each reads its own."""
        recipe = isinstance(self._data, Batches) or self._context is not None
        return recipe and not isinstance(self._data, FromFunction)

    def _identity(self, epoch: int, start: int) -> Batch | None:
        """Return what tells one worker's batches from another's, without reading a shuffled batch of files."""
        if isinstance(self._data, Batches):
            return first_rows(self._data, epoch, start)
        return np.frombuffer(self._data.identity(epoch, start).encode(), np.uint8)

    def _compare(self, first: Callable[[], Batch | None]) -> None:
        """See once that all workers begin with the same batch."""
        if not self._compared:
            if isinstance(self._data, FromFunction):
                require_own_data(self._strategy, first(), self.steps)
            else:
                require_same_data(self._strategy, first(), self.steps, self._of)
            self._compared = True

    def _whole(self) -> int:
        """Return how many batches of a recipe's epoch have the global batch size."""
        if not isinstance(self._data, Recipe) or self.steps is None:
            return 0
        return min(self.steps, self._data.num_examples // self._data.global_batch_size)

    def _last(self) -> int | None:
        """Return the size of a recipe's last batch, where it is a smaller one."""
        data = self._data
        return data.num_examples % data.global_batch_size or None if isinstance(data, Recipe) else None

    def _on_host(
        self,
        dataset: tf.data.Dataset,
        *,
        position: int = 0,
        look_at: int = 0,
        check: Callable[[Batch], None] | None = None,
    ) -> EpochIterator:
        looks = look_at > 0 and not (self._compared and check is None)
        iterator = HostIterator(
            dataset,
            look_at=(look_at if self.steps is None else min(look_at, self.steps - position)) if looks else 0,
            steps=self.steps if self._known else None,
            size=self.global_batch_size if isinstance(self._data, Recipe) else None,
            whole=self._whole(),
            last=self._last(),
            position=position,
            context=self._context,
        )
        if looks:
            self._compare(lambda: iterator.first)
            require_same_rows(iterator.first, position)
            if check is not None and iterator.first is not None:
                check(iterator.first)
        return iterator

    def _dataset(self) -> tf.data.Dataset:
        return self._data.dataset(epoch=0) if isinstance(self._data, Recipe) else self._data

    def _weighed(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset if self._weigh is None else dataset.map(self._weigh, num_parallel_calls=tf.data.AUTOTUNE)

    def _batches(self, epoch: int, start: int, before: int) -> tf.data.Dataset:
        if self._context is not None:
            return self._weighed(self._data.dataset(epoch=epoch, start=start, input_context=self._context))
        if isinstance(self._data, Recipe):
            return self._weighed(self._data.dataset(epoch=epoch, start=start))
        return self._weighed(self._data.skip(before))

    def _rehearsal(self, end: int = 0) -> EpochIterator:
        """Return batches without end: a batch like the first, or of the `end` batches that are last in an epoch."""
        start = self.steps - end if end and self.steps is not None else 0
        if self._is_held:
            return self._held(0, start)
        if isinstance(self._data, Recipe):
            batch = (
                self._weighed(self._data.dataset(epoch=0).take(1)) if self._context is None else self._sample()
            ).cache()
            whole = self._own_rows_of(batch, self.global_batch_size)
            if end and self.steps != self._whole():
                whole = whole.repeat(self._whole() - start).concatenate(self._own_rows_of(batch, self._last()))
            return self._on_host(whole.repeat(), position=start)
        size = self.global_batch_size or _STAND_IN_SIZE * self._strategy.num_replicas_in_sync
        spec = self.element_spec
        zeros = tf.nest.map_structure(
            lambda s: tf.zeros([size, *(d or _STAND_IN_SIZE for d in s.shape[1:])], s.dtype), spec
        )
        return self._on_host(tf.data.Dataset.from_tensors(zeros).repeat().map(lambda *parts: _like(parts, spec)))

    def _own_rows_of(self, batch: tf.data.Dataset, size: int | None) -> tf.data.Dataset:
        """Cut what this worker would read of a batch of `size` examples out of a larger one."""
        first, end = own_rows(size or 0, self._context)
        if (first, end) == (0, self.global_batch_size):
            return batch
        return batch.map(lambda *parts: tf.nest.map_structure(lambda part: part[first:end], parts))


@functools.cache  # once
def _say_what_it_costs(workers: int) -> None:
    if workers > 1:
        _log.warning(
            "Each of the %d workers reads this data whole, and trains on its rows: %d times the reading and decoding. "
            "mk.data.batches, records and from_function let each worker read its own part alone.",
            workers,
            workers,
        )


def _like(parts: tuple[Any, ...], spec: Spec) -> Batch:
    """Forget the static batch size where the real data has none, so that the same trace serves both."""

    def forget(value: tf.Tensor, s: tf.TensorSpec) -> tf.Tensor:
        return tf.raw_ops.PlaceholderWithDefault(input=value, shape=s.shape)

    return tf.nest.map_structure(forget, parts if isinstance(spec, tuple) else parts[0], spec)
