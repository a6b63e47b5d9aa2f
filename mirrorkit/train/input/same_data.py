"""Whether all workers read the same data: seen from first batches, and from examples of a set in memory.

Every worker cuts its own rows out of the same global batches. Where these differ, by a shuffle without a seed, say,
some examples are trained on twice and others never, and no number shows it.
"""

from __future__ import annotations

import zlib
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from mirrorkit.data import Batches
from mirrorkit.errors import DataError
from mirrorkit.strategy import addresses, arrays_of_all_workers

Groups: TypeAlias = dict[Any, list[str]]  # the names of the workers that hold a value, by this value

_NOTHING = -1.0
_SAMPLED = 64  # examples of a set in memory
_ROUNDING = 0.01  # of the scale of an input; other examples differ by about all of it


def require_same_data(
    strategy: tf.distribute.Strategy,
    first: Any,
    steps: int | None,
    of: str = "",
    sample: tuple[Any, np.ndarray] | None = None,
) -> None:
    """Compare the first global batch of all workers, how many they have, and a `sample`. Collective.

    `of` names the data.

    Where a batch has targets, these alone are compared: an augmentation of the inputs may draw other random numbers on
    every worker, and does no harm, since only one worker uses each row. A worker without a batch gives None as `first`.
    """
    prints, lengths, samples = _of_all(strategy, first, steps, sample)
    seen = {"the first batch": prints, "an epoch's number of batches": lengths, "the set in memory": samples}
    differing = [what for what, groups in seen.items() if len(groups) > 1]
    if not differing:
        return
    found = f"{differing[0]} is one on {_told(seen[differing[0]])}"
    if len(prints) > 1 and _NOTHING in prints:
        found = f"{', '.join(prints[_NOTHING])} found no batch, and the others did"
    raise DataError(
        f"All workers must read the same global batches{of}, and each trains on its own rows; but {found}. Set the "
        "same seed on every worker (keras.utils.set_random_seed(0), dataset.shuffle(..., seed=0)), let all read the "
        "same files in the same order, without a shard() of your own, and go on from the same checkpoint."
    )


def require_own_data(strategy: tf.distribute.Strategy, first: Any, steps: int | None, *others: Any) -> None:
    """See that workers that make data of their own begin with different batches. Collective: every worker calls it.

    A function that leaves its shard out of account gives all workers the same examples. Inputs and targets are
    compared; a worker without a batch gives None as `first`.

    `steps` is the number of batches of an epoch, which must be the same on all of them.
    """
    prints, lengths, _ = _of_all(strategy, None if first is None else [first], steps)
    if len(lengths) > 1:
        raise DataError(
            f"An epoch's number of batches is one on {_told(lengths)}. Give from_function the same "
            "steps_per_epoch on every worker: the least number of batches of all shards."
        )
    if _NOTHING in prints:
        raise DataError(
            f"{', '.join(prints[_NOTHING])} found no batch in its shard. Every shard needs a batch for each step of an "
            "epoch."
        )
    if twice := next((group for group in prints.values() if len(group) > 1), None):
        raise DataError(
            f"{' and '.join(twice)} begin with the same batch, so examples would be trained on twice. The function of "
            "from_function must give each shard other examples: dataset.shard(num_shards, shard), before any shuffle."
        )


def require_same_end(strategy: tf.distribute.Strategy, having: np.ndarray, batches: int) -> None:
    """Refuse data that ended, after so many batches, on some of the workers alone; `having` says who has another."""
    if having.all() or not having.any():
        return
    ended, others = ([n for n, has in zip(addresses(strategy), having, strict=True) if has == one] for one in (0, 1))
    raise DataError(
        f"The data ended after {batches} batches on {', '.join(ended)}, but not on {', '.join(others)}. All workers "
        "must read the same global batches, and so the same number: let all read the same files, without a shard() of "
        "your own."
    )


def sample_of(data: Batches) -> tuple[Any, np.ndarray]:
    """Return what workers compare of a whole set in memory: its size, and examples from all over it.

    Inputs in floats come as second, [inputs, examples + 1]: of each a number for each example, and their scale, since
    processors round differently.
    """
    size = len(data.split)
    places = np.linspace(0, size - 1, _SAMPLED, dtype=np.int64)
    inputs, *others = data.split[places].as_element()
    parts = tf.nest.flatten(inputs)
    exact = [part for part in parts if part.dtype.kind != "f"]
    levels = [_levels(part) for part in parts if part.dtype.kind == "f"]
    return [np.array(size), exact, *others], np.array(levels).reshape(-1, _SAMPLED + 1)


def _levels(rows: np.ndarray) -> np.ndarray:
    """Return the sums of rows over the root of their length, and the root mean square of all their elements."""
    flat = np.nan_to_num(rows.reshape(len(rows), -1).astype(np.float64), posinf=0, neginf=0)
    return np.append(flat.sum(1) / np.sqrt(flat.shape[1]), np.sqrt(np.mean(flat**2)))


def _alike(levels: np.ndarray) -> list[int]:
    """Return for each worker the first whose levels, [workers, inputs, examples + 1], are the same but for rounding."""
    first: list[int] = []
    for one in levels:
        found = (n for n, other in enumerate(levels) if np.all(np.abs(one - other) <= _ROUNDING * other[:, -1:]))
        first.append(next(found))
    return first


def _of_all(
    strategy: tf.distribute.Strategy, first: Any, steps: int | None, sample: tuple[Any, np.ndarray] | None = None
) -> list[Groups]:
    """Return the workers in groups: by their first batch, by their number of batches, and by their sample."""
    exact, levels = sample or (None, np.empty((0, _SAMPLED + 1)))
    prints = [_NOTHING if part is None else _fingerprint(part) for part in (first, exact)]
    own = np.array([prints[0], _NOTHING if steps is None else steps, prints[1], *levels.ravel()])
    found = arrays_of_all_workers(strategy, own)
    batches, lengths, samples = found[:, :3].T.tolist()
    alike = _alike(found[:, 3:].reshape(len(found), *levels.shape))
    every: list[Groups] = []
    for values in (batches, lengths, zip(samples, alike, strict=True)):
        groups: Groups = {}
        for name, value in zip(addresses(strategy), values, strict=True):
            groups.setdefault(value, []).append(name)
        every.append(groups)
    return every


def _fingerprint(batch: Any) -> float:
    compared = batch[1:] if isinstance(batch, tuple) and len(batch) > 1 else batch
    number = 0
    for leaf in tf.nest.flatten(compared, expand_composites=True):
        array = np.asarray(leaf)
        content = b"\0".join(array.ravel()) if array.dtype == object else array.tobytes()
        number = zlib.crc32(content, zlib.crc32(f"{array.dtype} {array.shape}".encode(), number))
    return float(number)


def _told(groups: Groups) -> str:
    """Name the workers that agree: "worker 0, worker 2, and another on worker 1"."""
    return ", and another on ".join(", ".join(group) for group in groups.values())
