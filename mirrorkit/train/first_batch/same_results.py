"""Whether all workers compute the same: loss and gradient of the same few rows, before the first step.

What workers are made of is compared by name (`settings.py`). Code that differs, in a layer or in a loss function, has
the same names; then weights would not part, since all workers apply the same update, but it would be that of no model.
"""

from __future__ import annotations

import io
import logging

import numpy as np
import tensorflow as tf

from mirrorkit._types import Nest
from mirrorkit.errors import ClusterError, StepError
from mirrorkit.strategy import addresses, arrays_of_all_workers, num_workers, of_chief, require_same
from mirrorkit.train.first_batch.compared import SIXTEEN, multiplies_coarsely, rounding_of
from mirrorkit.train.first_batch.fingerprints import fingerprints, parted
from mirrorkit.train.first_batch.running import PureRuns
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import path, unchanged

_log = logging.getLogger("mirrorkit")

_ROWS = 4


def require_same_results(step: Supervised, parts: Nest, *, training: bool) -> None:
    """Refuse workers that compute different numbers for the same rows. Collective.

    Each worker computes alone, on its first device. Numbers may differ by what processors round differently.

    Args:
        step: the step.
        parts: the chief's rows, taken apart, of which a few are looked at.
        training: whether to compare gradients too.
    """
    strategy = step.strategy
    if num_workers(strategy) == 1:
        return
    weights = step.functions.weights if training else []
    own = np.zeros([1 + len(weights), 2])
    try:
        rows = tf.nest.map_structure(lambda one: one[:_ROWS], parts)
        with unchanged([]):  # a layer may draw from Python's or NumPy's generator
            ran = outside_replica(lambda: PureRuns(step, rows, "train" if training else "test").whole())
        own[0] = ran.logs["loss"]
        own[1:] = fingerprints(*ran.gradients)
    except StepError:
        raise
    except Exception as error:  # whatever a user's layer may raise
        _log.warning("Whether all workers compute the same could not be seen: %s: %s", type(error).__name__, error)
        own[:] = np.nan
    every = arrays_of_all_workers(strategy, own)
    if np.isnan(every).all((1, 2)).any():
        return  # one of them could not see it
    share = SIXTEEN if multiplies_coarsely() else rounding_of(step.model)
    # The sum of what rows give may be near 0, and a gradient that should be 0 is nothing but rounding.
    sizes = np.full(len(own), np.nanmax(every[:, 1:], initial=0.0))
    sizes[0] = max(_ROWS, np.nanmax(np.abs(every[:, 0])))
    for index, workers in parted(every, share * sizes):
        what = f"the gradient of {path(weights[index - 1])!r}" if index else "the loss"
        raise ClusterError(_said(list(addresses(strategy)), workers, what, every[:, index, 0]))


def rows_of_chief(strategy: tf.distribute.Strategy, batch: Nest, count: int) -> Nest | None:
    """Return the first rows of the chief's batch on every worker; None where they are not all numbers.

    A single worker has the whole batch.
    """
    if num_workers(strategy) == 1:
        return batch
    flat = tf.nest.flatten(batch)
    kinds = [f"{type(one).__name__} {one.dtype.name} of rank {one.shape.rank}" for one in flat]
    require_same(strategy, "first batch", {f"tensor {number}": kind for number, kind in enumerate(kinds)})
    if not all(isinstance(one, tf.Tensor) and _is_number(one.dtype) for one in flat):  # ragged, sparse, strings
        return None
    own = io.BytesIO()
    np.savez(own, *(np.asarray(tensor[:count]) for tensor in flat))
    rows = np.load(io.BytesIO(of_chief(strategy, own.getvalue()))).values()
    # NumPy keeps of bfloat16 no more than its size.
    tensors = [tf.constant(array.view(one.dtype.as_numpy_dtype)) for array, one in zip(rows, flat, strict=True)]
    return tf.nest.pack_sequence_as(batch, tensors)


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
