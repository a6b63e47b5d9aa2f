"""Whether all workers compute the same: loss and gradient of the same few rows, before the first step.

What workers are made of is compared by name (`settings.py`). Code that differs, in a layer or in a loss function, has
the same names; then weights would not part, since all workers apply the same update, but it would be that of no model.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Nest
from mirrorkit.errors import ClusterError, StepError
from mirrorkit.strategy import addresses, arrays_of_all_workers, num_workers, of_chief, require_same
from mirrorkit.train.first_batch.compared import SIXTEEN, multiplies_coarsely, rounding_of
from mirrorkit.train.first_batch.fingerprints import fingerprints, parted
from mirrorkit.train.keras_model.layer_state import layers_of
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import path, unchanged

_log = logging.getLogger("mirrorkit")

_ROWS = 4


def require_same_results(step: Supervised, batch: Nest, *, training: bool) -> None:
    """Refuse workers that compute different numbers for the chief's first rows. Collective.

    Each worker computes alone, on its first device. Numbers may differ by what processors round differently.

    Args:
        step: the step.
        batch: a global batch; only the chief's is looked at.
        training: whether to compare gradients too.
    """
    strategy = step.strategy
    if num_workers(strategy) == 1:
        return
    rows = rows_of_chief(strategy, batch, _ROWS)
    if rows is None:
        return
    weights = step.values().weights if training else []
    try:
        with unchanged([]):  # a layer may draw from Python's or NumPy's generator
            own = outside_replica(lambda: _computed(step, rows, training))
    except StepError:
        raise
    except Exception as error:  # whatever a user's layer may raise
        _log.warning("Whether all workers compute the same could not be seen: %s: %s", type(error).__name__, error)
        own = np.full([1 + len(weights), 2], np.nan)
    every = arrays_of_all_workers(strategy, own)
    if np.isnan(every).all((1, 2)).any():
        return  # one of them could not see it
    share = SIXTEEN if multiplies_coarsely() else rounding_of(step.model)
    # The sum of what rows give may be near 0, and a gradient that should be 0 is nothing but rounding.
    sizes = np.full(1 + len(weights), np.nanmax(every[:, 1:], initial=0.0))
    sizes[0] = max(_ROWS, np.nanmax(np.abs(every[:, 0])))
    for index, workers in parted(every, share * sizes):
        what = f"the gradient of {path(step.variables[index - 1])!r}" if index else "the loss"
        raise ClusterError(_said(list(addresses(strategy)), workers, what, every[:, index, 0]))


def _computed(step: Supervised, rows: Nest, training: bool) -> np.ndarray:
    """Return the loss, twice, and the fingerprints of its gradient."""

    def compute(weights: list[tf.Tensor], state: list[tf.Tensor], rows: Nest) -> tuple[tf.Tensor, list[Any]]:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = step.objective(weights, state, rows, 0, training=training)
        return loss, tape.gradient(loss, weights) if training else []

    if any(isinstance(layer, keras.layers.RNN) for layer in layers_of(step.model)):
        compute = tf.function(compute, autograph=False)  # each time step would take as long as a layer
    values = step.values()
    loss, gradients = compute(list(values.weights), list(values.state), rows)
    dense = [tf.zeros([1]) if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
    return np.concatenate([np.full([1, 2], float(loss)), fingerprints(dense)])


def rows_of_chief(strategy: tf.distribute.Strategy, batch: Nest, count: int) -> Nest | None:
    """Return the first rows of the chief's batch on every worker; None where they are not all numbers."""
    flat = tf.nest.flatten(batch)
    kinds = [f"{type(one).__name__} {one.dtype.name} of rank {one.shape.rank}" for one in flat]
    require_same(strategy, "first batch", {f"tensor {number}": kind for number, kind in enumerate(kinds)})
    if not all(isinstance(one, tf.Tensor) and _is_number(one.dtype) for one in flat):  # ragged, sparse, strings
        return None
    own = [np.asarray(tensor[:count]) for tensor in flat]
    shapes = json.loads(of_chief(strategy, json.dumps([array.shape for array in own]).encode()))
    data = of_chief(strategy, b"".join(array.tobytes() for array in own))
    rows, begin = [], 0
    for array, shape in zip(own, shapes, strict=True):
        size = int(np.prod(shape)) * array.itemsize
        rows.append(tf.constant(np.frombuffer(data[begin : begin + size], array.dtype).reshape(shape)))
        begin += size
    return tf.nest.pack_sequence_as(batch, rows)


def _is_number(dtype: tf.DType) -> bool:
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)


def _said(names: list[str], workers: list[int], what: str, values: np.ndarray) -> str:
    other = next(number for number in range(len(names)) if number not in workers)
    return (
        f"The workers do not compute the same: for the same {_ROWS} rows of the first batch, {what} is "
        f"{values[workers[0]]:.7g} on {', '.join(names[number] for number in workers)} and {values[other]:.7g} on "
        f"{names[other]}. All workers must run the same script with the same packages: look for a layer or a loss "
        "whose code differs."
    )
