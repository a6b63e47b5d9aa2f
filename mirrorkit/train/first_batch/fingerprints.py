"""Few numbers that tell tensors apart: compared between workers in place of all their values."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

from mirrorkit._types import TensorLike

_GOLDEN = (5**0.5 - 1) / 2
_ROW = 4096  # as far as float32 may add


def fingerprints(values: Iterable[TensorLike], *, exact: bool = False) -> np.ndarray:
    """Return two numbers for each tensor, float64 [tensors, 2]: its norm, and a sum in which every place has a weight.

    Where numbers differ by a share of the norm, so do these, by about as much. `exact` ones are a checksum of the bits.
    They are computed by NumPy, one tensor after the other: so there is neither a copy of all nor a graph to trace.
    """
    found = [(_checksum if exact else _norm_and_sum)(np.asarray(value).ravel()) for value in values]
    return np.array(found, np.float64).reshape(-1, 2)


def _checksum(flat: np.ndarray) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(flat.view(np.uint8).data, digest_size=8).digest(), np.uint32)


def _norm_and_sum(flat: np.ndarray) -> tuple[float, float]:
    if np.iscomplexobj(flat):
        flat = flat.view(flat.real.dtype)
    if flat.dtype != np.float32:  # whole numbers stay exact
        flat = flat.astype(np.float64)
    columns = _weights(_ROW).astype(flat.dtype)
    rows, rest = np.split(flat, [flat.size // _ROW * _ROW])
    table = rows.reshape(-1, _ROW)
    squares = np.einsum("ij,ij->i", table, table).sum(dtype=np.float64) + np.dot(rest, rest)
    sums = np.append(table @ columns, np.dot(rest, columns[: rest.size])).astype(np.float64)
    return float(np.sqrt(squares)), float(np.dot(sums, 1 + _weights(sums.size) / 2))


@functools.cache
def _weights(size: int) -> np.ndarray:
    """Return numbers from -1 to 1 of which no two are alike (Weyl's sequence)."""
    return 2 * (np.arange(1, size + 1) * _GOLDEN % 1) - 1


def parted(rows: np.ndarray, rounding: np.ndarray | float) -> Iterator[tuple[int, list[int]]]:
    """Yield each tensor whose fingerprint is not the same on all workers, and the workers that differ from the most.

    Args:
        rows: fingerprints of all workers, [workers, tensors, 2].
        rounding: by how much they may differ, [tensors] or one number for all.
    """
    same = _same(rows[:, None], rows[None], np.expand_dims(rounding, -1))  # [workers, workers, tensors]
    for index in np.flatnonzero(~same.all((0, 1))):
        usual = int(np.argmax(same[:, :, index].sum(1)))  # the chief, where no more workers agree with another
        yield int(index), [int(worker) for worker in np.flatnonzero(~same[usual, :, index])]


def _same(one: np.ndarray, other: np.ndarray, rounding: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # infinite ones, where equal, differ by NaN
        close = np.abs(one - other) <= rounding
    return np.asarray((close | (one == other) | (np.isnan(one) & np.isnan(other))).all(-1))
