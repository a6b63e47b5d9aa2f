"""What Keras's `fit` takes as data, as a recipe or a `tf.data.Dataset`: arrays, a `PyDataset`, a generator."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Batch, Nest, Spec
from mirrorkit.arguments import whole_number
from mirrorkit.data import Batches, Recipe, Split, order_of
from mirrorkit.errors import DataError, StepError
from mirrorkit.strategy import num_workers, of_all_workers

_log = logging.getLogger("mirrorkit")

Data: TypeAlias = Recipe | tf.data.Dataset  # what a loop reads


def keras_data(
    strategy: tf.distribute.Strategy,
    x: Any,
    y: Nest = None,
    sample_weight: Nest = None,
    *,
    batch_size: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    steps: int | None = None,
) -> Any:
    """Return arrays, a PyDataset or a generator as a recipe or a dataset, and anything else as it is.

    Raises:
        StepError: arguments that only arrays take; what does not fit several workers.
        DataError: arrays that are none, or differ in length.
    """
    if batch_size is not None:
        batch_size = whole_number("batch_size", batch_size, StepError)
    if are_arrays(x):
        arrays = keras.tree.map_structure(_array, (x, y, sample_weight))
        inputs, labels, weights = keras.tree.lists_to_tuples(arrays)
        split = Split(inputs, labels, sample_weight=weights)
        lengths = {len(array) for array in tf.nest.flatten(split.as_element())}
        if len(lengths) > 1:
            raise DataError(f"x, y and sample_weight must have as many examples each; found {sorted(lengths)}.")
        size = batch_size or (-(-len(split) // steps) if steps else 32)  # as Keras
        return Batches(split, global_batch_size=size, shuffle=shuffle, seed=seed)
    given = {"y": y, "sample_weight": sample_weight, "batch_size": batch_size}
    if wrong := [name for name, value in given.items() if value is not None]:
        raise StepError(
            f"{', '.join(wrong)} can be given with arrays only, and x is a {type(x).__name__}. Leave out what its "
            "batches hold; turn a list of numbers into an array, np.asarray(x)."
        )
    if isinstance(x, keras.utils.PyDataset):
        if x.num_batches is not None:
            return PyBatches(x, shuffle, seed)
        x = map(x.__getitem__, itertools.count())
    if not isinstance(x, Iterator):
        return x
    if num_workers(strategy) > 1:
        raise StepError(
            "A generator can be read once, and each worker would read its own. Give a keras.utils.PyDataset, or "
            "mk.data.from_function with a dataset for each worker."
        )
    x = map(_standard, x)
    first = list(itertools.islice(x, 2))
    read = itertools.chain(first, x)
    made = tf.data.Dataset.from_generator(lambda: itertools.islice(read, steps), output_signature=_spec_of(first))
    return made.prefetch(tf.data.AUTOTUNE)  # of these `steps` alone: what comes after them is for the next pass


class PyBatches(Recipe):
    """The batches of a `keras.utils.PyDataset` of known length; shuffled, their order depends on (seed, epoch).

    Attributes:
        first_epoch: that of the fit. One that goes on later tells the source of the epochs since then.
    """

    global_batch_size = num_examples = None  # type: ignore[assignment]  # of any size
    first_epoch = 0

    def __init__(self, source: Any, shuffle: bool, seed: int) -> None:
        self._source, self._shuffle, self._seed = source, shuffle, seed
        self.element_spec = _spec_of([_standard(source[number]) for number in range(min(2, source.num_batches))])
        source.on_epoch_end()  # as Keras calls it before the first epoch
        self._steps, self._ended = int(source.num_batches), 0  # batches of an epoch; epochs of the fit that have ended

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches."""
        return self._steps

    @property
    def order_in_words(self) -> str:
        """See `Recipe`."""
        return f"{self.steps_per_epoch} batches of a PyDataset, " + (f"seed={self._seed}" * self._shuffle or "in order")

    def dataset(
        self, epoch: int = 0, start: int = 0, *, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        """The batches `start`, `start + 1`, ... of `epoch`."""
        return self.joined(range(epoch, epoch + 1), start).prefetch(tf.data.AUTOTUNE)

    def joined(
        self, epochs: range, start: int = 0, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        """See `Recipe`. Nothing is read ahead: the source may change where an epoch ends, of which a part is left."""
        parts = map(self._batches_of, epochs, itertools.chain([start], itertools.repeat(0)))
        return functools.reduce(tf.data.Dataset.concatenate, parts)

    def _batches_of(self, epoch: int, start: int) -> tf.data.Dataset:
        numbers = order_of(self.steps_per_epoch, shuffle=self._shuffle, key=[self._seed, epoch])[start:]

        def read() -> Iterator[Batch]:
            self._tell_of_epochs(epoch - self.first_epoch)
            if self._source.num_batches != self._steps:
                raise DataError(
                    f"{type(self._source).__name__} had {self._steps} batches when the fit began, and has "
                    f"{self._source.num_batches} in epoch {epoch} (counted from 0). Let it keep its length during a "
                    "fit, and call fit again for another."
                )
            self._source.on_epoch_begin()
            for count, number in enumerate(numbers, 1):
                batch = _standard(self._source[int(number)])
                if count == len(numbers):
                    # before the last one is given away, after which the next epoch may begin to read
                    self._source.on_epoch_end()
                    self._ended = epoch - self.first_epoch + 1
                yield batch

        made = tf.data.Dataset.from_generator(read, output_signature=self.element_spec)
        return made.apply(tf.data.experimental.assert_cardinality(len(numbers)))

    def _tell_of_epochs(self, epochs: int) -> None:
        """Tell the source of so many epochs of the fit, which it was not told of in a run that goes on."""
        if self._ended < epochs and type(self._source).on_epoch_end is not keras.utils.PyDataset.on_epoch_end:
            _log.warning(
                "%s.on_epoch_end is called now for each epoch before this run went on (%d). What it draws from NumPy's "
                "global generator need not be what it was then; give the dataset a generator of its own.",
                type(self._source).__name__,
                epochs - self._ended,
            )
        for _ in range(self._ended, epochs):
            self._source.on_epoch_begin()
            self._source.on_epoch_end()
        self._ended = max(self._ended, epochs)


class CarriedOn(Recipe):
    """Epochs of so many batches of a recipe; each goes on where the one before ended, as in Keras's `fit`.

    Attributes:
        first_epoch: that of the fit, which begins with the recipe's first batch.
    """

    global_batch_size = num_examples = None  # type: ignore[assignment]  # one of them may be smaller
    first_epoch = 0

    def __init__(self, recipe: Recipe, steps: int) -> None:
        self._recipe, self._steps = recipe, steps
        self.element_spec, self.order_version = recipe.element_spec, recipe.order_version

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches."""
        return self._steps

    @property
    def order_in_words(self) -> str:
        """See `Recipe`."""
        examples, size = self._recipe.num_examples, self._recipe.global_batch_size
        of = "" if examples is None else f"{examples} examples in batches of {size}, "
        return f"{of}{self._recipe.order_in_words}, {self._steps} steps per epoch"

    def dataset(
        self, epoch: int = 0, start: int = 0, *, input_context: tf.distribute.InputContext | None = None
    ) -> tf.data.Dataset:
        """The batches `start`, `start + 1`, ... of `epoch`."""
        # `done` and `left` count batches: since the fit began, and to the end of this epoch. They are `whole` epochs of
        # the recipe and `skipped` batches of the next one; that one, and as many as follow, give what is left.
        if isinstance(self._recipe, PyBatches):
            self._recipe.first_epoch = self.first_epoch
        done, left = (epoch - self.first_epoch) * self._steps + start, self._steps - start
        whole, skipped = divmod(done, self._recipe.steps_per_epoch)
        end = max(whole + 1, -(-(done + left) // self._recipe.steps_per_epoch))
        found = self._recipe.joined(range(self.first_epoch + whole, self.first_epoch + end), skipped)
        return found.take(left).prefetch(tf.data.AUTOTUNE)


def data_of_fit(
    strategy: tf.distribute.Strategy,
    train: tuple[Any, Nest, Nest],
    validation: Any,
    *,
    batch_size: int | None,
    validation_batch_size: int | None,
    validation_split: float,
    steps: int | None,
    validation_steps: int | None,
    shuffle: bool | None,
    seed: int | None,
) -> tuple[Any, Any, int | None]:
    """Return the data of a fit, that of its validation, and the seed of its order if it is shuffled here."""
    x = train[0]
    if validation_split:
        if validation is not None or not are_arrays(x):
            raise StepError(
                "validation_split needs arrays, and no validation_data: it takes the last examples of x and y."
            )
        train, validation = _split(train, validation_split)
    if shuffle and not takes_order(x):
        raise StepError(
            "shuffle goes with arrays and PyDatasets. Shuffle the data: dataset.shuffle(...), or mk.data.batches(..., "
            "shuffle=True)."
        )
    if takes_order(x) and shuffle is not False:
        if seed is None:  # NumPy's generator, which keras.utils.set_random_seed sets; on all workers the chief's
            seed = int(of_all_workers(strategy, np.random.randint(2**31))[0])
        seed = whole_number("seed", seed, StepError, least=0)
    else:
        seed = None
    data = keras_data(strategy, *train, batch_size=batch_size, shuffle=seed is not None, seed=seed or 0, steps=steps)
    if validation is not None:
        parts = keras.utils.unpack_x_y_sample_weight(validation)
        size = validation_batch_size or (batch_size if are_arrays(parts[0]) else None)
        validation = keras_data(strategy, *parts, batch_size=size, steps=validation_steps)
    return data, validation, seed


def takes_order(x: Any) -> bool:
    """Whether a fit shuffles it, and goes on with it from epoch to epoch where the steps of one are given."""
    return are_arrays(x) or isinstance(x, keras.utils.PyDataset)


def are_arrays(x: Any) -> bool:
    """Whether it is arrays [N, ...], or a nest of them."""
    return all(getattr(leaf, "shape", ()) != () for leaf in keras.tree.flatten(x)) and x is not None


def _array(value: Any) -> Any:
    """Return an array as Keras takes it: floats are its floatx."""
    if value is None:
        return None
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)) or hasattr(value, "tocsr"):
        raise DataError(f"{type(value).__name__} is not taken. Pad it, or make it dense: value.to_tensor(), toarray().")
    array = np.asarray(value)
    if not array.ndim:
        raise DataError(f"x, y and sample_weight must be arrays [N, ...], found {value!r}.")
    return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array


def _split(train: tuple[Any, Nest, Nest], part: float) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split off the last part of each array, as Keras does."""
    number = len(keras.tree.flatten(train)[0])
    at = int(number * (1 - part))
    if not 0 < at < number:
        raise StepError(f"validation_split={part} of {number} examples leaves none on one side.")

    def rows(of: slice) -> tuple[Any, ...]:
        return tuple(keras.tree.map_structure(lambda array: None if array is None else array[of], train))

    return rows(slice(at)), rows(slice(at, None))


def _standard(batch: Any) -> Batch:
    """Return a batch of Python's as one of tf.data: tuples of arrays."""
    batch = batch if isinstance(batch, (tuple, list)) else (batch,)
    kept = itertools.takewhile(lambda part: part is not None, batch)
    return tuple(keras.tree.map_structure(np.asarray, keras.tree.lists_to_tuples(part)) for part in kept)


def _spec_of(first: Sequence[Batch]) -> Spec:
    """Return what the first batches have in common; where they differ a dimension is unknown, as that of the rows."""

    def common(*arrays: np.ndarray) -> tf.TensorSpec:
        sizes = zip(*(array.shape[1:] for array in arrays), strict=True)
        known = [size[0] if len(set(size)) == 1 else None for size in sizes]
        return tf.TensorSpec([None, *known], arrays[0].dtype)

    if not first:
        raise DataError("The data holds no batch.")
    return keras.tree.map_structure(common, *first)
