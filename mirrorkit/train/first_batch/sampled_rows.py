"""The rows with which a step is checked before it trains: a few of a batch, parts of them, and other values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from mirrorkit import private
from mirrorkit._types import Nest, TensorLike
from mirrorkit.train.keras_model.outputs import Output, UnpackedBatch
from mirrorkit.train.totals.losses import mask_of

SEEN = 3  # rows that the model itself sees: of a large model a row costs as much as all the rest
ROWS = 16  # rows for everything else; the outputs for the three are repeated
CUT = [np.arange(5), np.arange(5, ROWS)]
OTHER_ORDER = np.random.default_rng(1).permutation(ROWS)
_LABEL = 64  # numbers in a target, at most, that may be a class; more are a picture, and no two are alike


def some_rows(batch: UnpackedBatch) -> UnpackedBatch:
    """Take rows from all over the batch; of a small batch, some of them twice."""
    size = tf.nest.flatten(batch.x)[0].shape[0]
    rows = np.linspace(0, size - 1, ROWS).astype(int) if size >= ROWS else np.arange(ROWS) % size
    return UnpackedBatch(*[None if part is None else take(part, rows) for part in batch])


def take(nest: Nest, rows: TensorLike) -> Nest:
    """Return these rows of each tensor in a nest."""
    return tf.nest.map_structure(lambda tensor: None if tensor is None else tf.gather(tensor, rows), nest)


def variants_of(output: Output, targets: np.ndarray | None) -> Iterator[Output]:
    """Yield the output as it is, with other targets of the batch, and with other predictions, weights and masks."""
    if output.y_pred is None or output.y_pred.shape[:1] != [SEEN]:  # its rows are not examples
        return
    output = output._replace(y_pred=_rows_of(output.y_pred, np.arange(ROWS) % SEEN))
    yield output
    rng = np.random.default_rng(0)
    y = None if targets is None else tf.constant(rng.choice(targets, ROWS), output.y.dtype)
    yield output._replace(y=y)
    weight, mask = output.weight, mask_of(output.y_pred)
    if weight is not None:
        weight = tf.cast(weight, tf.float32) * rng.uniform(0.5, 1.5, weight.shape).astype("float32")
    predicted = np.asarray(tf.cast(output.y_pred, tf.float32))
    for share in (0.5, 1.0):
        y_pred = tf.cast(_other_predictions(predicted, rng, share), output.y_pred.dtype)
        if mask is not None:
            private.get("masking.set_keras_mask")(y_pred, tf.constant(rng.uniform(size=mask.shape) < 0.6))
        yield output._replace(y=y, y_pred=y_pred, weight=weight)


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


def _rows_of(tensor: tf.Tensor | None, rows: np.ndarray) -> tf.Tensor | None:
    """Take rows of a tensor and of its mask."""
    if tensor is None:
        return None
    taken = tf.gather(tensor, rows)
    if mask_of(tensor) is not None:
        private.get("masking.set_keras_mask")(taken, tf.gather(mask_of(tensor), rows))
    return taken


def part_of(output: Output, rows: np.ndarray) -> Output:
    """Return these rows of an output, its targets, weights and mask."""
    y, y_pred, weight = (_rows_of(tensor, rows) for tensor in (output.y, output.y_pred, output.weight))
    return output._replace(y=y, y_pred=y_pred, weight=weight)
