"""The rows with which a step is checked before it trains: a few of a batch, parts of them, and other values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit._types import KerasModel, Nest, TensorLike
from mirrorkit.train.totals.losses import mask_of

ROWS = 16  # that are looked at
SEEN = 3  # rows that a large model itself sees, of which each costs as much as all the rest; its outputs are repeated
_WORK = 2**34  # rows times numbers in a row times weights: as much takes less than a second
OTHER_ORDER = np.random.default_rng(1).permutation(ROWS)
_LABEL = 64  # numbers in a target, at most, that may be a class; more are a picture, and no two are alike


def parts_of(count: int, parts: int = 2) -> list[int]:
    """Return the sizes of parts of so many rows: unequal, since equal ones hide a mean that is taken for a sum."""
    first = max(count // (parts + 1), 1)
    return [first, *map(len, np.array_split(range(count - first), parts - 1))]


def seen_by(model: KerasModel, rows: Nest) -> int:
    """Return how many rows a model itself is to see."""
    numbers = sum(int(np.prod(tensor.shape[1:])) for tensor in tf.nest.flatten(rows))
    weights = sum(int(np.prod(variable.shape)) for variable in model.variables)
    return ROWS if ROWS * numbers * weights <= _WORK else SEEN


def few_rows(model: KerasModel, parts: Nest) -> Nest:
    """Take as many rows as a model is to see, from all over a batch."""
    some = some_rows(parts)
    return take(some, np.linspace(0, ROWS - 1, seen_by(model, some)).astype(int))


def some_rows(parts: Nest) -> Nest:
    """Take rows from all over a batch; of a small batch, some of them twice."""
    size = tf.nest.flatten(parts)[0].shape[0]
    return take(parts, np.linspace(0, size - 1, ROWS).astype(int) if size >= ROWS else np.arange(ROWS) % size)


def is_telling(parts: Nest) -> bool:
    """Return whether rows of x, (x, y) or (x, y, sample_weight) differ, and any counts: equal ones show no mixing."""
    some = some_rows(parts)
    first = np.asarray(tf.nest.flatten(some)[0])
    weights = tf.nest.flatten(some[2:]) if isinstance(some, (tuple, list)) else []
    return bool(np.any(first != first[:1])) and (not weights or any(map(np.any, weights)))


class Rows(NamedTuple):
    """Targets, predictions, the masks that Keras has put on these, in flat order, and weights; None where none are."""

    y: Nest
    y_pred: Nest
    masks: list[tf.Tensor | None]
    weight: Nest

    @property
    def present(self) -> list[tf.Tensor]:
        """All tensors."""
        return [one for one in tf.nest.flatten(tuple(self)) if one is not None]

    @property
    def size(self) -> int:
        """How many rows there are."""
        return int(self.present[0].shape[0])

    def like(self, present: list[tf.Tensor]) -> Rows:
        """Return others in the same structure."""
        rest = iter(present)
        flat = [None if one is None else next(rest) for one in tf.nest.flatten(tuple(self))]
        return Rows(*tf.nest.pack_sequence_as(tuple(self), flat))

    def taken(self, rows: TensorLike) -> Rows:
        """Return these rows."""
        return self.like(take(self.present, rows))


def take(nest: Nest, rows: TensorLike) -> Nest:
    """Return these rows of each tensor in a nest."""
    return tf.nest.map_structure(lambda tensor: None if tensor is None else tf.gather(tensor, rows), nest)


def variants_of(y: Nest, y_pred: Nest, weight: Nest, seen: int) -> Iterator[Rows]:
    """Yield rows as they are, with other targets of the batch, and with other predictions, weights, masks and zeros.

    Args:
        y: the targets of `ROWS` rows; None for none.
        y_pred: predictions for `seen` of them, which are repeated.
        weight: the weights; None for none.
        seen: how many rows the model has seen.
    """
    given = [one for one in tf.nest.flatten(y_pred) if one is not None]
    if any(one.shape[:1] != [seen] for one in given):  # its rows are not examples
        return
    every, rng = np.arange(ROWS) % seen, np.random.default_rng(0)
    masks = [None if one is None else mask_of(one) for one in tf.nest.flatten(y_pred)]
    masks = [None if mask is None else tf.gather(mask, every) for mask in masks]
    rows = Rows(y, take(y_pred, every), masks, weight)
    yield rows

    def drawn(one: tf.Tensor | None) -> tf.Tensor | None:
        return None if one is None else tf.constant(rng.choice(kinds_of(one), ROWS), one.dtype)

    def with_zeros(one: tf.Tensor | None) -> tf.Tensor | None:
        return None if one is None else tf.where(rng.uniform(size=one.shape) < 0.7, one, tf.zeros_like(one))

    rows = rows._replace(y=tf.nest.map_structure(drawn, y))
    yield rows
    if weight is not None:
        weight = tf.nest.map_structure(
            lambda one: tf.cast(one, tf.float32) * rng.uniform(0.5, 1.5, one.shape).astype("float32"), weight
        )
    masks = [None if mask is None else tf.constant(rng.uniform(size=mask.shape) < 0.6) for mask in masks]
    for share in (0.5, 1.0):

        def changed(one: tf.Tensor | None, share: float = share) -> tf.Tensor | None:
            if one is None:
                return None
            return tf.cast(_other_predictions(np.asarray(tf.cast(one, tf.float32)), rng, share), one.dtype)

        y = rows.y if share < 1 else tf.nest.map_structure(with_zeros, rows.y)  # as padding is
        yield rows._replace(y=y, y_pred=tf.nest.map_structure(changed, rows.y_pred), masks=masks, weight=weight)


def kinds_of(y: tf.Tensor) -> np.ndarray:
    """Return each target of the batch once, so that rare ones are drawn as often as others."""
    targets = np.asarray(y)
    return targets if np.size(targets[0]) > _LABEL else np.unique(targets, axis=0)


def _other_predictions(y_pred: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Give other classes to a share of the rows; with a single column let them change sides (1 - p, or -z)."""
    turned = rng.uniform(size=[len(y_pred), *[1] * (y_pred.ndim - 1)]) < share
    if y_pred.ndim > 1 and y_pred.shape[-1] > 1:
        turns = rng.integers(1, y_pred.shape[-1], len(y_pred))
        other = np.stack([np.roll(row, turn, axis=-1) for row, turn in zip(y_pred, turns, strict=True)])
    else:
        is_share = y_pred.size and np.min(y_pred) >= 0 and np.max(y_pred) <= 1
        other = 1 - y_pred if is_share else -y_pred
    return np.where(turned, other, y_pred)
