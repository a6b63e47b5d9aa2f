"""Feed: what a loop needs to know of its data, whether a recipe or the user's own `tf.data.Dataset`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from mirrorkit import batching
from mirrorkit.data import Recipe
from mirrorkit.data.distribute import untuned
from mirrorkit.errors import StepError
from mirrorkit.train.outputs import unpack_batch

_STAND_IN_SIZE = 32  # of a dimension that the data does not tell, in a stand-in batch; per replica for the batch size


class Feed:
    """Global batches on the host, epoch by epoch.

    Args:
        strategy: its replicas share each batch.
        data: a recipe (`mk.data.batches`, `mk.data.records`) or a `tf.data.Dataset` of global batches.
        steps: steps per epoch; needed where the data never ends. A finite data set gives all its batches by default.
        carry_on: with `steps`, an epoch of a `tf.data.Dataset` goes on where the one before stopped, and starts anew
            at the end of the data, as Keras's `fit` does.
        class_weight: from class index to the weight of its examples, as in Keras's `fit`.

    Raises:
        StepError: data of another kind, empty or endless data, class weights beside sample weights.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        data: Any,
        *,
        steps: int | None = None,
        carry_on: bool = False,
        class_weight: Mapping[int, float] | None = None,
    ) -> None:
        if not isinstance(data, (Recipe, tf.data.Dataset)):
            raise StepError(
                "Data must be a recipe such as mk.data.batches(...) or a tf.data.Dataset, found "
                f"{type(data).__name__}. Turn arrays into a recipe: "
                "mk.data.batches(mk.data.arrays(images, labels), global_batch_size=256)."
            )
        if steps is not None and (not isinstance(steps, int) or steps < 1):
            raise StepError(f"The number of steps must be a whole number from 1 on, found {steps!r}.")
        if carry_on and steps is not None and isinstance(data, tf.data.Dataset):
            data = data.repeat()
        self._strategy = strategy
        self._data = data
        self._class_weight = class_weight
        self._endless: Iterator[Any] | None = None
        self.element_spec = _weigh(self._dataset(), class_weight).element_spec
        found = data.steps_per_epoch if isinstance(data, Recipe) else int(data.cardinality())
        if found == 0:
            raise StepError("The data set is empty. Check its path, filters and drop_remainder.")
        self._is_endless = found == tf.data.INFINITE_CARDINALITY
        if self._is_endless and steps is None:
            raise StepError(
                "The data never ends. Say how many batches to take: steps_per_epoch, validation_steps or steps."
            )
        self.steps: int | None = steps if found < 0 else found if steps is None else min(steps, found)
        size = data.global_batch_size if isinstance(data, Recipe) else _batch_size(self.element_spec)
        self.global_batch_size: int | None = size
        if size is not None:
            batching.check_split(size, strategy.num_replicas_in_sync)

    def left(self, done: int) -> int | None:
        """Return how many batches of the epoch are left after `done`; None where nobody knows."""
        return None if self.steps is None else self.steps - done

    def _dataset(self, epoch: int = 0) -> tf.data.Dataset:
        return self._data.dataset(epoch=epoch) if isinstance(self._data, Recipe) else self._data

    def epoch(self, epoch: int, *, restart: bool = False) -> Iterator[Any]:
        """Return an iterator over the epoch's batches; endless data goes on where it was, unless it is to `restart`."""
        if self._endless is not None and not restart:
            return self._endless
        dataset = _weigh(self._dataset(epoch), self._class_weight)
        iterator = iter(untuned(dataset))
        if self._is_endless:
            self._endless = iterator
        return iterator

    def rehearsal(self) -> Iterator[Any]:
        """Return an endless iterator over one batch of the real shape, which leaves the data's position alone.

        A recipe's first batch; zeros for a `tf.data.Dataset`, since to read it could move a shuffle on.
        """
        if isinstance(self._data, Recipe):
            batch = self._data.dataset(epoch=0).take(1)
            dataset = _weigh(batch, self._class_weight).cache().repeat()
        else:
            size = self.global_batch_size or _STAND_IN_SIZE * self._strategy.num_replicas_in_sync
            spec = self.element_spec
            zeros = tf.nest.map_structure(
                lambda s: tf.zeros([size, *(d or _STAND_IN_SIZE for d in s.shape[1:])], s.dtype), spec
            )
            dataset = tf.data.Dataset.from_tensors(zeros).repeat().map(lambda *parts: _like(parts, spec))
        return iter(untuned(dataset))


def _like(parts: tuple[Any, ...], spec: Any) -> Any:
    """Forget the static batch size where the real data has none, so that the same trace serves both."""

    def forget(value: tf.Tensor, s: tf.TensorSpec) -> tf.Tensor:
        return tf.raw_ops.PlaceholderWithDefault(input=value, shape=s.shape)

    return tf.nest.map_structure(forget, parts if isinstance(spec, tuple) else parts[0], spec)


def _batch_size(element_spec: Any) -> int | None:
    return tf.nest.flatten(unpack_batch(element_spec).x)[0].shape[0]


def _weigh(dataset: tf.data.Dataset, class_weight: Mapping[int, float] | None) -> tf.data.Dataset:
    """Turn class weights into sample weights."""
    if not class_weight:
        return dataset
    spec = unpack_batch(dataset.element_spec)
    if spec.weight is not None or not isinstance(spec.y, tf.TypeSpec):
        raise StepError(
            "class_weight needs elements (x, y) with a single target: classes or one-hot. "
            "With sample weights in the data, multiply the class weights into them."
        )
    if not all(isinstance(index, int) and index >= 0 for index in class_weight):
        raise StepError(f"class_weight maps class indices (whole numbers from 0 on) to weights, found {class_weight}.")
    classes = max(class_weight) + 1
    table = tf.constant([float(class_weight.get(index, 1.0)) for index in range(classes)])

    def weigh(x: Any, y: tf.Tensor) -> tuple[Any, tf.Tensor, tf.Tensor]:
        one_hot = len(y.shape) == 2 and y.shape[-1] != 1
        index = tf.argmax(y, -1) if one_hot else tf.reshape(tf.cast(y, tf.int64), [-1])
        weight = tf.where(index < classes, tf.gather(table, tf.minimum(index, classes - 1)), 1.0)
        return x, y, weight

    return dataset.map(weigh, num_parallel_calls=tf.data.AUTOTUNE)
