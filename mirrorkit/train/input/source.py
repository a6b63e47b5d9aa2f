"""What an `Input` asks of its data: one class for each kind of recipe, and one for `tf.data.Dataset`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._types import Batch
from mirrorkit.data import Batches, FromFunction, PreparedRecipe, Recipe, Resident, of_user, untuned
from mirrorkit.errors import StepError
from mirrorkit.strategy import is_parameter_server
from mirrorkit.train.input.epoch import EpochIterator
from mirrorkit.train.input.resident import ResidentIterator, SentIterator
from mirrorkit.train.input.same_data import require_own_data, require_same_data, sample_of

_LARGEST_ARRAY = 2**31 - 2**20  # bytes that fit into one message between tasks


class Source:
    """Any recipe.

    Attributes:
        can_be_read_twice: whether reading it changes nothing.
        is_endless: whether it never ends.
        starts_over: whether a resumed run reads and skips what came before, in an order that may be another one.
        has_known_end: whether the number of batches that it states can be relied on.
        steps: batches of an epoch; None where that is unknown.
        num_examples: examples of an epoch; None where that is unknown.
        global_batch_size: examples in a batch, but perhaps the last; None where that is unknown.
        order: what decides which examples are in which batch, as `Recipe.order_in_words`.
        order_version, order_depends_on_workers, reads_own_rows: as of `Recipe`.
        samples_all: whether a sample is of examples from all over the set.
        require: refuses workers whose data are not what they must be; see `same_data.py`.
    """

    can_be_read_twice = has_known_end = True
    is_endless = starts_over = samples_all = False
    require: Callable[..., None] = staticmethod(require_same_data)

    def __init__(self, data: Recipe) -> None:
        self.data = data
        self.steps: int | None = data.steps_per_epoch
        self.num_examples: int | None = data.num_examples
        self.global_batch_size: int | None = data.global_batch_size
        self.order, self.order_version = data.order_in_words, data.order_version
        self.order_depends_on_workers, self.reads_own_rows = data.order_depends_on_workers, data.reads_own_rows

    @property
    def has_identity(self) -> bool:
        """Whether workers compare `identity` rather than the first batch that each of them reads."""
        return self.reads_own_rows

    def size_of(self, batch: int) -> int | None:
        """Return how many examples the batch of this number in an epoch has; None where that is unknown."""
        if self.num_examples is None or self.global_batch_size is None:
            return None
        return min(self.global_batch_size, self.num_examples - batch * self.global_batch_size)

    def batches(
        self, epoch: int, start: int, before: int, context: tf.distribute.InputContext | None
    ) -> tf.data.Dataset:
        """Return the batches of an epoch from number `start` on; `before` others precede it, counted over all epochs.

        With `context` they hold this worker's rows alone.
        """
        own = {} if context is None else {"input_context": context}
        return self.data.dataset(epoch=epoch, start=start, **own)

    def sample(self) -> tf.data.Dataset:
        """Return a whole batch, the same on every worker, as a dataset of one element."""
        return self.data.dataset().take(1)

    def identity(self, epoch: int, start: int) -> Batch | None:
        """Return what workers compare to see that they read the same data; where `has_identity`."""
        return next(iter(untuned(self.sample())))

    def of_all(self) -> tuple[Any, np.ndarray] | None:
        """Return what workers compare of a whole set in memory."""
        return None

    def held(self, strategy: tf.distribute.Strategy, epoch: int, **place: Any) -> EpochIterator | None:
        """Return an epoch of data that lies on the devices; None for data that is read on the host."""
        return None


class PreparedSource(Source):
    """Files of records, or an object that gives its examples by number."""

    data: PreparedRecipe

    def sample(self) -> tf.data.Dataset:
        """Return the first examples as they lie, without a shuffle."""
        return self.data.as_written().dataset().take(1)

    def identity(self, epoch: int, start: int) -> Batch | None:
        """Return what the recipe says of itself."""
        return np.frombuffer(self.data.identity(epoch, start).encode(), np.uint8)


class BatchesSource(PreparedSource):
    """A set in memory; under parameter servers a small one is sent to every worker."""

    data: Batches
    samples_all = True

    def sample(self) -> tf.data.Dataset:
        """Return a batch of examples from all over the set."""
        return self.data.spread()

    def identity(self, epoch: int, start: int) -> Batch | None:
        """Return the examples of the batch as they lie in the split."""
        size = self.data.global_batch_size
        places = self.data.order(epoch)[start * size :][:size]
        return self.data.split[places].as_element() if len(places) else None

    def of_all(self) -> tuple[Any, np.ndarray]:
        """See `Source`."""
        return sample_of(self.data)

    def held(self, strategy: tf.distribute.Strategy, epoch: int, **place: Any) -> EpochIterator | None:
        """See `Source`."""
        fits = all(array.nbytes <= _LARGEST_ARRAY for array in tf.nest.flatten(self.data.split.as_element()))
        return SentIterator(self.data, epoch, **place) if fits and is_parameter_server(strategy) else None


class ResidentSource(BatchesSource):
    """A set that lies on the devices."""

    data: Resident

    def held(self, strategy: tf.distribute.Strategy, epoch: int, **place: Any) -> EpochIterator | None:
        """See `Source`."""
        if is_parameter_server(strategy):
            return super().held(strategy, epoch, **place)
        return ResidentIterator(self.data, strategy, epoch, **place)


class FunctionSource(Source):
    """A dataset of each worker's own, so that their first batches must differ."""

    has_identity = False
    require = staticmethod(require_own_data)


class DatasetSource(Source):
    """A `tf.data.Dataset` of the user's: reading it could advance a shuffle or a generator.

    With `repeats` an epoch goes on where the one before stopped, and starts again at the end of the data.
    """

    data: Any
    can_be_read_twice = has_identity = False
    order_depends_on_workers = reads_own_rows = False
    num_examples = None
    order_version = 1

    def __init__(self, data: tf.data.Dataset, *, repeats: bool) -> None:
        data = of_user(data)
        batches = int(data.cardinality())
        # A repeated dataset claims to be endless even when it is empty.
        self.has_known_end = batches != tf.data.UNKNOWN_CARDINALITY
        self.order = f"{batches} batches of a tf.data.Dataset" if batches >= 0 else None
        self.data = data.repeat() if repeats else data
        batches = int(self.data.cardinality())
        self.is_endless = batches == tf.data.INFINITE_CARDINALITY
        self.steps = batches if batches >= 0 else None
        self.starts_over = not self.is_endless
        # `Input` refuses what has no shape.
        self.global_batch_size = getattr(tf.nest.flatten(self.data.element_spec)[0], "shape", [None])[0]

    def batches(
        self, epoch: int, start: int, before: int, context: tf.distribute.InputContext | None
    ) -> tf.data.Dataset:
        """Return what comes after `before` others."""
        return self.data.skip(before)


_SOURCES = {  # the first that fits
    Resident: ResidentSource,
    Batches: BatchesSource,
    PreparedRecipe: PreparedSource,
    FromFunction: FunctionSource,
    Recipe: Source,
}


def source_of(data: Any, *, repeats: bool = False) -> Source:
    """Wrap what a user gives as data; `repeats` is for a `tf.data.Dataset`."""
    if isinstance(data, tf.data.Dataset):
        return DatasetSource(data, repeats=repeats)
    for kind, source in _SOURCES.items():
        if isinstance(data, kind):
            return source(data)
    raise StepError(
        "Data must be arrays, a keras.utils.PyDataset, a generator, a tf.data.Dataset, or a recipe such as "
        f"mk.data.batches(...); found {type(data).__name__}. For an object that gives examples by number there is "
        "mk.data.source(examples, global_batch_size=256)."
    )
