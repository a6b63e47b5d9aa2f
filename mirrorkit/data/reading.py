"""Recipes of sets that are read: from files larger than memory, or from an object that gives examples by number."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.arguments import whole_number
from mirrorkit.data.generated import from_generator
from mirrorkit.data.nests import pick
from mirrorkit.data.order import BlockOrder
from mirrorkit.data.preparation import PreparedRecipe
from mirrorkit.data.remote_files import in_parallel, size_of, versions
from mirrorkit.errors import RecipeError
from mirrorkit.fetching import index_of

_OPEN = 128  # blocks that are kept open at least

Arrays = tuple[np.ndarray, ...]  # one for each column


class Reader:
    """Reads the examples of a set, which have numbers from 0 on.

    A new format is one of these, which has `specs` and either `read` or, where `by_number` is False, `read_block`.

    What reads raises a DataError for a file that is damaged, holds fewer examples than was said, or values that are not
    allowed, and a FileError for one that cannot be read.

    Attributes:
        blocks: the number of examples in each block. They are consecutive, and cheap to read one after the other; see
            `order.BlockOrder`. None where any example is as cheap as another: then the whole set is shuffled.
        most: how many blocks may be read side by side, so that memory holds them.
        by_number: whether any example can be read without those before it in its block.
        together: how many examples memory holds where no `shuffle_buffer` says it.
    """

    blocks: Sequence[int] | None
    most = 64
    by_number = True
    together = 0

    def specs(self, rows: int | None) -> Any:
        """Return the specs of what is read for a batch of so many examples; None where that is unknown."""
        raise NotImplementedError

    def read(self, numbers: np.ndarray) -> Arrays:
        """Return the examples of these numbers, which ascend."""
        raise NotImplementedError

    def read_block(self, block: int, first: int) -> tuple[int, Iterator[Arrays]]:
        """Read a block from an example in it on, or from one before.

        Returns the number of that example in the block, and what is read from there on, several examples at a time.
        """
        raise NotImplementedError

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers of the examples at some places of the unshuffled set."""
        return places

    def opened(self) -> AbstractContextManager[Callable[[np.ndarray], Any]]:
        """Give what `read` is to one iterator; the block ends with it."""
        return nullcontext(self.read if self.by_number else BlockReading(self.blocks or (), self.read_block))

    def batches(self, windows: Iterator[np.ndarray]) -> Iterator[Any]:
        """Yield what is read for each batch, of the form of `specs`.

        `windows` are the numbers of the examples of some batches that are read together, [batches, rows]. While those
        of a window are given out, a thread reads the next one.
        """

        def next_one() -> tuple[Any, np.ndarray] | None:
            if (numbers := next(windows, None)) is None:
                return None
            wanted, places = np.unique(numbers, return_inverse=True)
            return read(wanted), places.reshape(numbers.shape)

        # At the end what is being read is waited for, unless `opened` has ended that.
        with ThreadPoolExecutor(1, thread_name_prefix="mirrorkit-read") as thread, self.opened() as read:
            coming = thread.submit(next_one)
            while (window := coming.result()) is not None:
                coming = thread.submit(next_one)
                columns, batches = window
                for places in batches:
                    yield pick(columns, places)


class BlockReading:
    """Reads blocks that can be read only from their beginning on; goes on in each of them where the last call stopped.

    Args:
        counts: the number of examples in each block.
        opened: returns for a block and an example in it the number of an example up to there, and what is read from
            that one on, several examples at a time.
    """

    def __init__(self, counts: Sequence[int], opened: Callable[[int, int], tuple[int, Iterator[Arrays]]]) -> None:
        self._counts, self._opened = counts, opened
        self._firsts = np.cumsum(counts) - counts
        self._left: dict[int, tuple[int, Arrays, Iterator[Arrays]]] = {}  # of open blocks: the last part, what follows

    def __call__(self, numbers: np.ndarray) -> Arrays:
        """Read the examples of these numbers, which ascend; several blocks at the same time."""
        asked = by_block(self._firsts, numbers)
        parts = itertools.chain(*in_parallel(self._of_block, asked))
        # A worker may leave a block before its last example. What is asked for seldom is opened again.
        for block in list(self._left)[: -max(_OPEN, 2 * len(asked))]:
            del self._left[block]
        return tuple(map(np.concatenate, zip(*parts, strict=True)))

    def _of_block(self, asked: tuple[int, np.ndarray]) -> list[Arrays]:
        block, numbers = asked
        is_done = numbers[-1] == self._counts[block] - 1
        first, part, rest = self._left.pop(block, (sys.maxsize, (), iter(())))
        if numbers[0] < first:
            first, rest = self._opened(block, int(numbers[0]))
            part = next(rest)
        found = []
        while True:
            end = first + len(part[0])
            here, numbers = np.split(numbers, [np.searchsorted(numbers, end)])
            rows = index_of(here - first)
            found.append(tuple(column[rows] for column in part))
            if not len(numbers):
                break
            first, part = end, next(rest)  # which has raised where there are fewer
        if not is_done:
            self._left[block] = first, part, rest
        return found


def by_block(firsts: np.ndarray, numbers: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return which of the examples of these numbers, which ascend, lie in which block, counted from its first one.

    `firsts` are the numbers of the first example of each block.
    """
    blocks, begins = np.unique(np.searchsorted(firsts, numbers, side="right") - 1, return_index=True)
    parts = np.split(numbers, begins[1:])
    return [(int(block), part - firsts[block]) for block, part in zip(blocks, parts, strict=True)]


class OfReader(PreparedRecipe):
    """A recipe whose examples a `Reader` reads, from files or from elsewhere.

    Attributes:
        shuffle_buffer: how many examples memory holds, divided among the workers; None for those of a few batches.
        files: the files, with their paths.
    """

    _reader: Reader
    shuffle_buffer: int | None = None
    files: Any = ()

    @property
    def layout(self) -> object:
        """See `PreparedRecipe`: the blocks, and how many may be read side by side where memory holds fewer."""
        if not self.shuffle:
            return None
        blocks, most = self._reader.blocks, self._reader.most
        return blocks if most >= Reader.most else (blocks, most)

    def order(self, epoch: int) -> np.ndarray:
        """The numbers of the examples in the order of `epoch`, counted as they lie in the set, int64 [N]."""
        if not self._in_lanes:
            return self._reader.numbers(super().order(epoch))
        return np.concatenate([window.ravel() for window in self._windows(epoch, 0)])

    def identity(self, epoch: int, start: int) -> str:
        """Return what must be the same on all workers; see `PreparedRecipe.identity`."""
        files = [(os.path.basename(file), size_of(file)) for file in self.files]
        return f"{super().identity(epoch, start)} {self.shuffle_buffer} {files} {versions(self.files)}"

    def _settle(self, num_examples: int, shape: Sequence[int | None] | None, **options: Any) -> None:
        if self.shuffle_buffer is not None:
            self._set(shuffle_buffer=whole_number("shuffle_buffer", self.shuffle_buffer, RecipeError))
        super()._settle(num_examples, shape, **options)
        if self.weights is not None and not self._reader.by_number:
            raise RecipeError(
                f"weights need examples that can be read one by one, and those of {self.files[0]} are read in blocks. "
                "Write uncompressed TFRecord files on this machine (mk.data.write_records), or use mk.data.source."
            )

    def _first_examples(self, number: int) -> tuple[Any, ...]:
        bare = self._with(shuffle=False, map=None, augment=(), one_hot=False, global_batch_size=number)
        return next(bare.dataset().as_numpy_iterator())

    def _dataset(self, epoch: int, start: int, context: tf.distribute.InputContext | None) -> tf.data.Dataset:
        usual, last = self._rows_of_both(context)
        sizes = usual.made_end - usual.made_first, last.made_end - last.made_first
        length = None if last.size else sizes[0]

        def own_windows() -> Iterator[np.ndarray]:
            for window in self._windows(epoch, start):
                rows = usual if window.shape[1] == self.global_batch_size else last
                yield window[:, rows.made_first : rows.made_end]

        def batch(step: tf.Tensor, gathered: tuple[Any, ...]) -> Any:
            rows = None if context is None else self.rows_of(step, context)
            return self.finish(self._element(*gathered), epoch=epoch, step=step, rows=rows)

        options = tf.data.Options()  # what it reads is not TensorFlow's to divide
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        steps = self.steps_per_epoch - start
        gathered = from_generator(lambda: self._reader.batches(own_windows()), self._reader.specs(length), steps)
        gathered = self._decoded(gathered, sizes, start)
        return self._made(gathered.enumerate(start), batch).with_options(options)

    def _decoded(self, read: tf.data.Dataset, sizes: tuple[int, int], start: int) -> tf.data.Dataset:
        """Decode what was read, where that is not done by the batch.

        `sizes` are the rows that are read of a batch, and of the last, smaller one; the first has the number `start`.
        """
        return read

    @property
    def _in_lanes(self) -> bool:
        return self.shuffle and self.weights is None and self._reader.blocks is not None

    def _windows(self, epoch: int, start: int) -> Iterator[np.ndarray]:
        """Yield the numbers of the examples in each batch, [batches, rows]: of several if they are read together."""
        size, steps = self.global_batch_size, self.steps_per_epoch
        whole = self.num_examples // size
        most = max(1, min((self.shuffle_buffer or self._reader.together) // 2 // size, whole))
        if self._in_lanes:
            lanes = BlockOrder(self._reader.blocks or (), size, (self.seed, epoch), self._reader.most)
            yield from lanes.windows(start, most, steps)
            return
        order = super().order(epoch) if self.shuffle else None
        together = 1  # the first batch comes soon
        while start < steps:
            end = min(start + together, whole) if start < whole else steps
            places = np.arange(start * size, min(end * size, self.num_examples))
            places = places % self._size if order is None else order[places]
            yield self._reader.numbers(places).reshape(end - start, -1)
            start, together = end, min(2 * together, most)
