"""Few numbers that tell tensors apart: compared between workers in place of all their values."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable, Iterator

import numpy as np

from mirrorkit._types import TensorLike

_GOLDEN = (5**0.5 - 1) / 2
_PART = 2**20  # numbers, of which a copy is made


def fingerprints(values: Iterable[TensorLike], *, exact: bool = False) -> np.ndarray:
    """Return two numbers for each tensor, float64 [tensors, 2]: its norm, and a sum in which every place has a weight.

    Where numbers differ by a share of the norm, so do these, by about as much. `exact` ones are a checksum of the bits.
    They are computed by NumPy, one tensor after the other: so there is neither a copy of all nor a graph to trace.
    """
    found = [(_checksum if exact else _norm_and_sum)(np.asarray(value).ravel()) for value in values]
    return np.array(found, np.float64).reshape(-1, 2)


def _checksum(flat: np.ndarray) -> tuple[int, int]:
    return zlib.crc32(flat.view(np.uint8).data), flat.size


def _norm_and_sum(flat: np.ndarray) -> tuple[float, float]:
    if np.iscomplexobj(flat):
        flat = flat.view(flat.real.dtype)
    squares = total = 0.0
    for number, part in enumerate(np.split(flat, range(_PART, flat.size, _PART))):
        values = part.astype(np.float64)
        squares += float(values @ values)
        total += (1 + number * _GOLDEN % 1) * float(values @ _weights()[: values.size])
    return float(np.sqrt(squares)), total


@functools.cache
def _weights() -> np.ndarray:
    """Return numbers from -1 to 1 of which no two are alike (Weyl's sequence)."""
    return 2 * (np.arange(1, _PART + 1) * _GOLDEN % 1) - 1


def parted(rows: np.ndarray, rounding: np.ndarray | float) -> Iterator[tuple[int, list[int]]]:
    """Yield each tensor whose fingerprint is not the same on all workers, and the workers that differ from the most.

    Args:
        rows: fingerprints of all workers, [workers, tensors, 2].
        rounding: by how much they may differ, [tensors] or one number for all.
    """
    numbers = np.nan_to_num(rows, nan=1e300, posinf=1e301, neginf=-1e301)  # alike where both are not finite
    apart = np.abs(numbers[:, None] - numbers[None])
    same = (apart <= np.expand_dims(rounding, -1)).all(-1)  # [workers, workers, tensors]
    for index in np.flatnonzero(~same.all((0, 1))):
        usual = int(np.argmax(same[:, :, index].sum(1)))  # the chief, where no more workers agree with another
        yield int(index), [int(worker) for worker in np.flatnonzero(~same[usual, :, index])]
