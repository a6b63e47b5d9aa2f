"""Whether all workers compute the same: losses and gradients of the same rows, before the first step.

What workers are made of is compared by name (`settings.py`). Code that differs, in a layer or in a loss function, has
the same names; then weights would not part, since all workers apply the same update, but it would be that of no model.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from mirrorkit._types import KerasModel, Nest
from mirrorkit.errors import ClusterError
from mirrorkit.strategy import addresses, arrays_of_all_workers, num_workers, of_chief, require_same
from mirrorkit.train.first_batch.compared import SIXTEEN, Ran, is_loss, multiplies_coarsely, rounding_of
from mirrorkit.train.first_batch.fingerprints import fingerprints, parted


def require_same_results(
    strategy: tf.distribute.Strategy, model: KerasModel, ran: Ran, weights: Sequence[str], rows: int
) -> None:
    """Refuse workers that compute different numbers for the same rows. Collective.

    Each worker has computed alone. Numbers may differ by what processors round differently.

    Args:
        strategy: the strategy.
        model: the model.
        ran: what this worker has come to.
        weights: the names of the weights whose gradients these are; none where they are not known.
        rows: how many rows these were.
    """
    losses = {repr(name): value for name, value in ran.logs.items() if is_loss(name)}
    gradients = ran.gradients[0] if ran.gradients else []
    named = map(repr, weights) if weights else ["a weight"] * len(gradients)
    names = [*losses, *(f"the gradient of {name}" for name in named)]
    if num_workers(strategy) == 1 or not names:
        return
    values = np.array([float(value) for value in losses.values()]).reshape(-1, 1).repeat(2, axis=1)
    every = arrays_of_all_workers(strategy, np.concatenate([values, fingerprints(gradients)]))
    known = np.abs(np.nan_to_num(every))
    # The sum of what rows give may be near 0, and a gradient that should be 0 is nothing but rounding.
    sizes = np.full(len(names), np.max(known[:, len(losses) :], initial=0.0))
    sizes[: len(losses)] = np.maximum(1, known[:, : len(losses), 0].max(0))
    share = SIXTEEN if multiplies_coarsely() else rounding_of(model)
    for index, workers in parted(every, share * sizes):
        where, found = list(addresses(strategy)), every[:, index, 0]
        other = next(number for number in range(len(where)) if number not in workers)
        raise ClusterError(
            f"The workers do not compute the same: for the same {rows} rows of the batch, {names[index]} is "
            f"{found[workers[0]]:.7g} on {', '.join(where[number] for number in workers)} and {found[other]:.7g} on "
            f"{where[other]}. All workers must run the same script with the same packages: look for a layer or a loss "
            "whose code differs."
        )


def rows_of_chief(strategy: tf.distribute.Strategy, batch: Nest, count: int) -> Nest | None:
    """Return the first rows of the chief's batch on every worker; None where they are not all numbers.

    A single worker has the whole batch.
    """
    if num_workers(strategy) == 1:
        return batch
    flat = tf.nest.flatten(batch)
    kinds = [f"{type(one).__name__} {one.dtype.name} of rank {one.shape.rank}" for one in flat]
    require_same(strategy, "first batch", {f"tensor {number}": kind for number, kind in enumerate(kinds)})
    if not all(isinstance(one, tf.Tensor) and one.dtype != tf.string for one in flat):  # ragged, sparse
        return None
    own = io.BytesIO()
    np.savez(own, *(np.asarray(tensor[:count]) for tensor in flat))
    rows = np.load(io.BytesIO(of_chief(strategy, own.getvalue()))).values()
    # NumPy keeps of bfloat16 no more than its size.
    tensors = [tf.constant(array.view(one.dtype.as_numpy_dtype)) for array, one in zip(rows, flat, strict=True)]
    return tf.nest.pack_sequence_as(batch, tensors)
