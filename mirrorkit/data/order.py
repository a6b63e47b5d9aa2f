"""The order in which the examples of an epoch come: plain NumPy, a pure function of a key and of where examples lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

_LANES = 64


def order_of(count: int, *, shuffle: bool, key: Sequence[int]) -> np.ndarray:
    """Return the numbers of `count` examples in their order, int64 [count]; shuffled it depends on `key` alone."""
    return np.random.default_rng(key).permutation(count) if shuffle else np.arange(count)


class BlockOrder:
    """The order of shuffled examples that lie in blocks, of which a few are read at the same time.

    The blocks come in a drawn order and are divided among lanes. Every batch takes its first rows from the first lane,
    the next rows from the second, and so on, in proportion to their lengths, so that all lanes end with the epoch. What
    a lane gives to a window of batches is shuffled. So a worker, which needs some rows of every batch, reads some of
    the lanes, each block from its beginning to its end, and the order does not depend on the number of workers.

    The last, smaller batch takes the first examples of the lanes: to reach them nobody has to read a block to its end.

    Args:
        counts: the number of examples in each block; these are consecutive.
        size: the number of examples in a batch.
        key: what the order depends on.
        most: how many lanes there may be, at most 64.
    """

    def __init__(self, counts: Sequence[int], size: int, key: Sequence[int], most: int = _LANES) -> None:
        sizes = np.asarray(counts)
        total = int(sizes.sum())
        self._key, self._steps, self._rest = key, *divmod(total, size)
        blocks = np.random.default_rng(key).permutation(np.flatnonzero(sizes))
        self._firsts = (np.cumsum(sizes) - sizes)[blocks]  # the number of the first example of each
        self._ends = np.cumsum([0, *sizes[blocks]])  # where each begins, laid end to end
        # Every lane has a row in most batches: of each example in the last batch and of one more in each whole one.
        least = max(-(-total * (self._steps + 1) // (self._steps * size)), -(-total // min(most, _LANES)))
        edges = [0]
        for end in self._ends.tolist():  # lanes have whole blocks
            if end - edges[-1] >= least and total - end >= least:
                edges.append(end)
        self._edges = np.array([*edges, total])
        # For each number of lanes from 0 on, what those lanes give to the last batch, and to all whole ones.
        self._to_last = self._edges * self._rest // total
        self._to_whole = self._edges - self._to_last

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return len(self._edges) - 1

    def windows(self, start: int, together: int, steps: int) -> Iterator[np.ndarray]:
        """Yield the numbers of the examples in the batches from `start` to `steps`, [batches, rows].

        Windows have up to `together` batches; the last, smaller batch is one by itself.
        """
        for first in range(start // together * together, self._steps, together):
            window = self._drawn(self._to_whole, self._steps, first, min(first + together, self._steps))
            if len(rest := window[max(0, start - first) :]):
                yield rest
        if start <= self._steps < steps:
            yield self._drawn(self._to_last, 1, 0, 1)

    def _drawn(self, totals: np.ndarray, steps: int, first: int, end: int) -> np.ndarray:
        """Return the examples of the batches from `first` to `end`, of `steps` to which the lanes give these totals."""
        # First how many rows each lane gives to each batch, then the lane of each row, [batches times rows]; then each
        # lane's stretch of examples, in the order laid end to end, is dealt to its rows at random; at last a place in
        # that order becomes the number of an example.
        is_last = totals is self._to_last
        begins = self._edges[:-1] + (0 if is_last else np.diff(self._to_last))
        taken = np.multiply.outer(totals, np.arange(first, end + 1)) // steps  # [lanes + 1, batches + 1]
        given = np.diff(taken, axis=0)  # by each lane, before each batch
        rows = np.diff(given).T  # of each batch, from each lane
        lane = np.repeat(np.tile(np.arange(self.lanes), end - first), rows.ravel())  # of each row
        rng = np.random.default_rng([*self._key, self._steps if is_last else first])
        shuffled = np.lexsort((rng.random(len(lane)), lane))  # those of one lane together
        found = np.empty_like(lane)
        spans = zip(begins + given[:, 0], begins + given[:, -1], strict=True)
        found[shuffled] = np.concatenate([np.arange(*span) for span in spans])
        block = np.searchsorted(self._ends, found, side="right") - 1
        return (found - self._ends[block] + self._firsts[block]).reshape(end - first, -1)
