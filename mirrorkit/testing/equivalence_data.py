"""The global batches that `assert_equivalent` trains on, held as NumPy arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data import Recipe
from mirrorkit.errors import StepError


def global_batches(data: Any, *, steps: int, size: int | None, uneven_for: Sequence[int]) -> list[Any]:
    """Read `steps` global batches as NumPy nests, repeating the data as often as needed."""
    if isinstance(data, (Recipe, tf.data.Dataset)):
        if size is not None:
            raise StepError("global_batch_size is for arrays; this data is already batched. Leave it out.")
    elif size is None or not isinstance(data, (tuple, list)):
        raise StepError(
            "Data must be a recipe such as mk.data.batches(...), a tf.data.Dataset of global batches, or a tuple of "
            f"arrays (x, y) with global_batch_size=...; found {type(data).__name__}."
        )
    batches: list[Any] = []
    for epoch in itertools.count():
        before = len(batches)
        batches += itertools.islice(_epoch(data, epoch, size), steps - before)
        if len(batches) == steps:
            break
        if len(batches) == before:
            raise StepError("The data set is empty. Check its path, filters and drop_remainder.")
    for i in range(1, steps, 2):
        count = size_of(batches[i])
        if count > 1 and any(n > 1 and count % n == 0 for n in uneven_for):
            batches[i] = tf.nest.map_structure(lambda part, count=count: part[: count - 1], batches[i])
    return batches


def _epoch(data: Any, epoch: int, size: int | None) -> Any:
    if isinstance(data, (Recipe, tf.data.Dataset)):
        dataset = data.dataset(epoch=epoch) if isinstance(data, Recipe) else data
        return (tf.nest.map_structure(np.asarray, batch) for batch in dataset)
    whole = tf.nest.map_structure(np.asarray, tuple(data))
    starts = range(0, size_of(whole), size or 1)
    return (tf.nest.map_structure(lambda part, i=i: part[i : i + size], whole) for i in starts)


def permuted(batches: Sequence[Any], *, seed: int) -> list[Any]:
    """Return the batches with their examples in another order."""
    rng = np.random.default_rng(seed)
    places = [rng.permutation(size_of(batch)) for batch in batches]
    pairs = zip(batches, places, strict=True)
    return [tf.nest.map_structure(lambda part, order=order: part[order], batch) for batch, order in pairs]


def cut(batch: Any, shards: int) -> list[Any]:
    """Split a batch as N replicas would share it."""
    share = -(-size_of(batch) // shards)
    return [tf.nest.map_structure(lambda t, i=i: t[i * share : (i + 1) * share], batch) for i in range(shards)]


def as_dataset(batches: Sequence[Any]) -> tf.data.Dataset:
    """Return a dataset of these global batches."""
    spec = tf.nest.map_structure(lambda part: tf.TensorSpec((None, *part.shape[1:]), part.dtype), batches[0])
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))


def size_of(batch: Any) -> int:
    """Return the number of examples."""
    return len(tf.nest.flatten(batch)[0])
