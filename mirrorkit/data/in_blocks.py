"""Recipes of sets in files, larger than memory, whose examples lie in blocks: see `order.BlockOrder`."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from mirrorkit.data.order import BlockOrder
from mirrorkit.data.preparation import PreparedRecipe
from mirrorkit.data.remote_files import in_parallel, size_of, versions
from mirrorkit.errors import RecipeError

_log = logging.getLogger("mirrorkit")

_OPEN = 128  # blocks that are kept open at least

Arrays = tuple[np.ndarray, ...]  # one for each column
Read = Callable[[np.ndarray], Arrays]  # the examples of these numbers, which ascend


class Reader(Protocol):
    """Reads the examples of a set, which have numbers from 0 on."""

    @property
    def blocks(self) -> Sequence[int]:
        """The number of examples in each block. They are consecutive, and cheap to read one after the other."""
        ...

    @property
    def most(self) -> int:
        """How many blocks may be read side by side, so that memory holds them."""
        ...

    @property
    def by_number(self) -> bool:
        """Whether any example can be read without those before it in its block."""
        ...

    def opened(self) -> Read:
        """Return a function that reads examples; it is cheap to go on where the last call stopped.

        It raises a DataError for a file that is damaged, holds fewer examples than was said, or values that are not
        allowed, and a FileError for one that cannot be read.
        """
        ...

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers of the examples at some places of the unshuffled set."""
        ...


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
        parts = in_parallel(self._of_block, asked)
        # A worker may leave a block before its last example. What is asked for seldom is opened again.
        for block in list(self._left)[: -max(_OPEN, 2 * len(asked))]:
            del self._left[block]
        return tuple(map(np.concatenate, zip(*parts, strict=True)))

    def _of_block(self, asked: tuple[int, np.ndarray]) -> Arrays:
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
            found.append([column[here - first] for column in part])
            if not len(numbers):
                break
            first, part = end, next(rest)  # which has raised where there are fewer
        if not is_done:
            self._left[block] = first, part, rest
        return tuple(map(np.concatenate, zip(*found, strict=True)))


def by_block(firsts: np.ndarray, numbers: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Return which of the examples of these numbers, which ascend, lie in which block, counted from its first one.

    `firsts` are the numbers of the first example of each block.
    """
    blocks, begins = np.unique(np.searchsorted(firsts, numbers, side="right") - 1, return_index=True)
    parts = np.split(numbers, begins[1:])
    return [(int(block), part - firsts[block]) for block, part in zip(blocks, parts, strict=True)]


class InBlocks(PreparedRecipe):
    """What these recipes have in common.

    Attributes:
        shuffle_buffer: how many examples memory holds, divided among the workers.
        files: the files, with their paths.
        few_lanes: the cure where there are more workers than lanes.
    """

    shuffle_buffer: int
    files: Any
    few_lanes: str
    _reader: Reader

    def identity(self, epoch: int, start: int) -> str:
        """Return what must be the same on all workers; see `PreparedRecipe.identity`."""
        files = [(os.path.basename(file), size_of(file)) for file in self.files]
        return f"{super().identity(epoch, start)} {self.shuffle_buffer} {files} {versions(self.files)}"

    def order(self, epoch: int) -> np.ndarray:
        """The numbers of the examples in the order of `epoch`, counted as they lie in the files, int64 [N]."""
        return np.concatenate([window.ravel() for window in self._windows(epoch, 0)])

    def _require_by_number(self) -> None:
        """Refuse weights for examples that cannot be read one by one."""
        if self.weights is not None and not self._reader.by_number:
            raise RecipeError(
                f"weights need examples that can be read one by one, and those of {self.files[0]} are read in blocks. "
                "Write uncompressed TFRecord files on this machine (mk.data.write_records), or use mk.data.source."
            )

    def _dataset(self, epoch: int, start: int, context: tf.distribute.InputContext | None) -> tf.data.Dataset:
        if self._in_lanes and context is not None:
            lanes, workers = self._block_order(epoch).lanes, context.num_input_pipelines
            if lanes < workers:
                _say_once(
                    f"{self.files[0]} and the files beside it can be read in {lanes} places at a time for {workers} "
                    f"workers, so that several read the same rows. {self.few_lanes}"
                )
        options = tf.data.Options()  # its files are not TensorFlow's to divide
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        return super()._dataset(epoch, start, context).with_options(options)

    def _first_examples(self, number: int) -> tuple[Any, ...]:
        bare = self.as_written()
        vars(bare).update(map=None, augment=(), one_hot=False, global_batch_size=number)
        return next(bare.dataset().as_numpy_iterator())

    @property
    def _in_lanes(self) -> bool:
        return self.shuffle and self.weights is None

    def _block_order(self, epoch: int) -> BlockOrder:
        return BlockOrder(self._reader.blocks, self.global_batch_size, (self.seed, epoch), self._reader.most)

    def _windows(self, epoch: int, start: int) -> Iterator[np.ndarray]:
        size, steps = self.global_batch_size, self.steps_per_epoch
        whole = self.num_examples // size
        most = max(1, min(self.shuffle_buffer // 2 // size, whole))
        if self._in_lanes:
            yield from self._block_order(epoch).windows(start, most, steps)
            return
        order = None if self.weights is None else super().order(epoch)
        together = 1  # the first batch comes soon
        while start < steps:
            end = min(start + together, whole) if start < whole else steps
            places = np.arange(start * size, min(end * size, self.num_examples))
            yield self._reader.numbers(places if order is None else order[places]).reshape(end - start, -1)
            start, together = end, min(2 * together, most)

    def _arrays(self, windows: Iterator[np.ndarray]) -> Iterator[Arrays]:
        """Yield the arrays of each batch; while those of a window are given out, a thread reads the next one."""
        read = self._reader.opened()

        def next_one() -> tuple[Arrays, np.ndarray] | None:
            if (numbers := next(windows, None)) is None:
                return None
            wanted, places = np.unique(numbers, return_inverse=True)
            return read(wanted), places.reshape(numbers.shape)

        with ThreadPoolExecutor(1, thread_name_prefix="mirrorkit-read") as thread:
            coming = thread.submit(next_one)
            while (window := coming.result()) is not None:
                coming = thread.submit(next_one)
                columns, batches = window
                for places in batches:
                    yield tuple(column[places] for column in columns)


@functools.cache
def _say_once(message: str) -> None:
    _log.warning(message)
