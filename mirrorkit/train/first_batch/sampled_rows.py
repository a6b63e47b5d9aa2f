"""The rows with which a step is checked before it trains: those of a batch, parts of them, and other values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit._types import Nest, TensorLike
from mirrorkit.train.first_batch.compared import LARGEST
from mirrorkit.train.totals.losses import mask_of

ROWS = 16  # that are looked at, at least: of a smaller batch some are taken twice
FEW = 3  # of a model whose rows hold more numbers
ENOUGH = 2**26  # numbers that a pass may hold in all its tensors
_LABEL = 64  # numbers in a target, at most, that may be a class; more are a picture, and no two are alike


def parts_of(count: int, replicas: int, parts: int = 2) -> list[int]:
    """Return the sizes of parts of so many rows, of which the first is smaller than a replica's share of them.

    So each number of rows that all of them reach, and not each share, lies between all of them and that part. Parts are
    unequal, since equal ones hide a mean that is taken for a sum.
    """
    first = max(count // (max(replicas, 2) + 1), 1)
    return [first, *map(len, np.array_split(range(count - first), parts - 1))]


def size_of(batch: Nest) -> int:
    """Return how many rows there are."""
    return int(tf.nest.flatten(batch)[0].shape[0])


def rows_to_see(size: int, numbers: int, least: int = FEW) -> int:
    """Return how many rows of a batch to look at, where each takes so many numbers: all that memory allows."""
    return min(max(size, ROWS), max(ENOUGH // max(numbers, 1), least))


def spread(batch: Nest, count: int) -> Nest:
    """Take so many rows from all over a batch; of a smaller one, some of them twice."""

    def rows(tensor: tf.Tensor) -> tf.Tensor:
        size = size_of(tensor)
        places = np.linspace(0, size - 1, count).astype(int) if size >= count else np.arange(count) % size
        return tf.gather(tensor, places)

    return _each(rows, batch)


def is_telling(rows: Nest) -> bool:
    """Return whether rows of x, (x, y) or (x, y, sample_weight) differ, and any counts: equal ones show no mixing."""
    is_several = isinstance(rows, (tuple, list))
    inputs = map(np.asarray, tf.nest.flatten(rows[0] if is_several else rows))
    weights = tf.nest.flatten(rows[2:]) if is_several else []
    return any(np.any(one != one[:1]) for one in inputs) and (not weights or any(map(np.any, weights)))


class Rows(NamedTuple):
    """Targets, predictions, the masks that Keras has put on these, in flat order, and weights; None where none are."""

    y: Nest
    y_pred: Nest
    masks: list[tf.Tensor | None]
    weight: Nest


def take(nest: Nest, rows: TensorLike) -> Nest:
    """Return these rows of each tensor in a nest."""
    return _each(lambda one: tf.gather(one, rows), nest)


def _each(change: Callable[[tf.Tensor], tf.Tensor], nest: Nest) -> Nest:
    return tf.nest.map_structure(lambda one: None if one is None else change(one), nest)


def variants_of(y: Nest, y_pred: Nest, weight: Nest, count: int, *, as_they_are: bool) -> Iterator[Rows]:
    """Yield rows with other targets, predictions, weights and masks than the batch has, then with zeros as targets.

    Args:
        y: the targets of the batch; None for none.
        y_pred: predictions for rows from all over it, of which some are repeated.
        weight: the weights; None for none.
        count: how many rows there are to be.
        as_they_are: whether to begin with the rows of the batch.
    """
    rng = np.random.default_rng(0)
    masks = _each(mask_of, tf.nest.flatten(y_pred))
    rows = Rows(*(spread(part, count) for part in (y, y_pred, masks, weight)))
    if as_they_are:
        yield rows
    rows = rows._replace(y=_each(lambda one: tf.constant(rng.choice(kinds_of(one), count), one.dtype), y))

    def weighed(one: tf.Tensor) -> tf.Tensor:
        return tf.cast(one, tf.float32) * rng.uniform(0.5, 1.5, one.shape).astype("float32")

    def with_zeros(one: tf.Tensor) -> tf.Tensor:  # as padding is; shares that add up to 1, as of classes, still do
        if one.shape.rank > 1 and one.shape[-1] > 1 and np.ptp(np.sum(one, -1)) < LARGEST:
            return one
        return tf.where(rng.uniform(size=one.shape) < 0.7, one, tf.zeros_like(one))

    masks = _each(lambda one: tf.constant(rng.uniform(size=one.shape) < 0.6), rows.masks)
    rows = rows._replace(masks=masks, weight=_each(weighed, weight))
    for share in (0.5, 1.0):
        changed = functools.partial(_other_predictions, rng, share)
        y = rows.y if share < 1 else _each(with_zeros, rows.y)
        yield rows._replace(y=y, y_pred=_each(changed, rows.y_pred))


def kinds_of(y: tf.Tensor) -> np.ndarray:
    """Return each target of the batch once, so that rare ones are drawn as often as others."""
    targets = np.asarray(y)
    return targets if np.size(targets[0]) > _LABEL else np.unique(targets, axis=0)


def _other_predictions(rng: np.random.Generator, share: float, given: tf.Tensor) -> tf.Tensor:
    """Give other classes to a share of the rows; with a single column let them change sides (1 - p, or -z)."""
    y_pred = np.asarray(tf.cast(given, tf.float32))
    turned = rng.uniform(size=[len(y_pred), *[1] * (y_pred.ndim - 1)]) < share
    if y_pred.ndim > 1 and y_pred.shape[-1] > 1:
        other = np.roll(y_pred, 1, axis=-1)
    else:
        is_share = y_pred.size and np.min(y_pred) >= 0 and np.max(y_pred) <= 1
        other = 1 - y_pred if is_share else -y_pred
    return tf.cast(np.where(turned, other, y_pred), given.dtype)
