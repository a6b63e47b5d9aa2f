"""The order of examples in files: streams, of which every batch takes its next rows. Plain NumPy.

The examples of an epoch are cut into streams: consecutive examples of the files, which come in an order drawn for the
epoch. Every batch takes its first rows from the first stream, the next rows from the second, and so on, in proportion
to their lengths, so that all streams end with the epoch. A worker that needs some rows of every batch therefore reads
some of the streams, and the order does not depend on the number of workers.
"""

from __future__ import annotations

import bisect
import collections
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MOST = 64  # streams


class FileRange(NamedTuple):
    """Consecutive examples of one file."""

    file: int
    first: int
    size: int


@dataclass(frozen=True, eq=False)
class EqualBatches:
    """Batches of one size, and what they take from the streams.

    Attributes:
        number: the number of batches.
        totals: for each number of streams from 0 on, how many examples those streams give to all these batches.
    """

    number: int
    totals: np.ndarray

    def taken(self, batches: np.ndarray) -> np.ndarray:
        """How many examples the streams before each one have given to the first batches, [streams + 1, ...]."""
        return np.multiply.outer(self.totals, batches) // self.number

    def streams_of(self, first: int, end: int) -> range:
        """The streams that have one of these rows in some batch."""
        begins, ends = self.totals[:-1] // self.number, -(-self.totals[1:] // self.number)
        found = np.flatnonzero((begins < end) & (ends > first))
        return range(int(found[0]), int(found[-1]) + 1) if len(found) else range(0)


@dataclass(frozen=True, eq=False)
class Streams:
    """The streams of an epoch.

    The first few examples of each stream are for the last, smaller batch: to reach them there nobody has to read a
    compressed file to its end.

    Attributes:
        pieces: for each stream, its examples.
        last: the last, smaller batch, of which there may be none.
        whole: the whole batches.
    """

    pieces: tuple[tuple[FileRange, ...], ...]
    last: EqualBatches
    whole: EqualBatches


def between(pieces: Sequence[FileRange], first: int, end: int) -> Iterator[FileRange]:
    """Yield the examples from `first` to `end` of pieces that are laid end to end."""
    for piece in pieces:
        begin, stop = max(first, 0), min(end, piece.size)
        if begin < stop:
            yield FileRange(piece.file, piece.first + begin, stop - begin)
        first, end = first - piece.size, end - piece.size


def draw_streams(
    counts: Sequence[int], *, batch_size: int, seed: int, epoch: int, seekable: bool, most: int = MOST
) -> Streams:
    """Cut the examples of an epoch into streams.

    Args:
        counts: the number of examples in each file.
        batch_size: the size of a global batch.
        seed: with `epoch`, what the order depends on.
        epoch: the number of the epoch.
        seekable: whether a file can be read from any example on. If not, a stream has whole files.
        most: how many streams there may be.
    """
    total = sum(counts)
    batches, rest = divmod(total, batch_size)
    rng = np.random.default_rng([seed, epoch])
    files = [FileRange(int(file), 0, counts[file]) for file in rng.permutation(len(counts)) if counts[file]]
    # every stream has a row in most batches: of each example in the last batch and of one more in each whole one
    least = max(-(-total * (batches + 1) // (batches * batch_size)), -(-total // most))
    if seekable:
        pieces = _ranges(files, int(rng.integers(total)), max(1, total // least))
        pieces = [pieces[place] for place in rng.permutation(len(pieces))]
    else:
        pieces = _groups(files, least)
    ends = np.cumsum([0, *(sum(piece.size for piece in stream) for stream in pieces)])
    # Python integers do not overflow
    last = np.array([int(end) * rest // total for end in ends], np.int64)
    return Streams(tuple(map(tuple, pieces)), EqualBatches(1, last), EqualBatches(batches, ends - last))


def _ranges(files: Sequence[FileRange], offset: int, streams: int) -> list[list[FileRange]]:
    """Lay the files end to end as a ring, and cut it from an offset on into ranges of equal length within one."""
    total = sum(file.size for file in files)
    ring = [*files, *files]
    begins = np.cumsum([0, *(file.size for file in ring)]).tolist()

    def range_of(begin: int, end: int) -> Iterator[FileRange]:
        for at in range(bisect.bisect_right(begins, begin) - 1, bisect.bisect_left(begins, end)):
            first = max(begin - begins[at], 0)
            yield FileRange(ring[at].file, first, min(end - begins[at], ring[at].size) - first)

    cuts = [offset + stream * total // streams for stream in range(streams + 1)]
    return [list(range_of(*cut)) for cut in itertools.pairwise(cuts)]


def _groups(files: Sequence[FileRange], least: int) -> list[list[FileRange]]:
    """Group consecutive files, so that each group has at least so many examples."""
    groups: list[list[FileRange]] = [[]]
    for file in files:
        if sum(piece.size for piece in groups[-1]) >= least:
            groups.append([])
        groups[-1].append(file)
    if len(groups) > 1 and sum(piece.size for piece in groups[-1]) < least:
        short = groups.pop()
        groups[-1] += short
    return groups


def remaining(counts: Sequence[int], together: int, given: int) -> list[FileRange]:
    """What is left of files that are interleaved, `together` at a time, after so many examples.

    `tf.data.Dataset.interleave` of these pieces goes on as that of the files does. It takes one example of each open
    file in turn; a file that has ended misses its turn, and at the next one another file is open in its place.
    """
    taken = [0] * len(counts)
    left = collections.deque(range(len(counts)))  # files that have not been opened
    slots: list[int | None] = [None] * min(together, len(counts))
    turn = 0
    while given:
        file = slots[turn]
        if file is None and left:
            file = left.popleft()
        if file is None or taken[file] == counts[file]:
            slots[turn] = None
        else:
            slots[turn] = file
            taken[file] += 1
            given -= 1
        turn = (turn + 1) % len(slots)
    order = []
    for file in [*slots[turn:], *slots[:turn]]:
        if file is not None:
            order.append(file)
        elif left:
            order.append(left.popleft())
    return [FileRange(file, taken[file], counts[file] - taken[file]) for file in [*order, *left]]
