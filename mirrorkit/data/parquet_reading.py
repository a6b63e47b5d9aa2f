"""Rows of Parquet files in the order of an epoch, row group by row group. NumPy and pyarrow.

A row group can be read only from its beginning on. So a stream (see `record_streams`) has whole row groups, as it has
whole files where these are gzip; each is read in small pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirrorkit.data.parquet_columns import Column, pyarrow
from mirrorkit.data.record_streams import MOST, FileRange, between
from mirrorkit.data.remote_files import RemoteFile, RemoteReader
from mirrorkit.data.streamed import Arrays, RowRanges
from mirrorkit.errors import DataError, MirrorkitError

_OPEN = 256 << 20  # bytes of the row groups that are read at the same time
_PIECE = 8 << 20  # bytes that are read of one at a time
_BUFFER = 64 << 10  # bytes of a column that are read of a file at a time


@dataclass(frozen=True, eq=False)
class Table:
    """Where rows lie.

    Attributes:
        files: the paths.
        footers: of each file, what pyarrow calls its metadata.
        columns: those that are read.
        groups: of each row group in the order of the files, the file and the number in it.
        counts: the number of rows of each.
        row_bytes: about how many bytes a row has.
    """

    files: tuple[str, ...]
    footers: tuple[Any, ...]
    columns: tuple[Column, ...]
    groups: tuple[tuple[int, int], ...]
    counts: tuple[int, ...]
    row_bytes: int

    @property
    def is_remote(self) -> bool:
        """Whether the files are at addresses."""
        return isinstance(self.files[0], RemoteFile)

    @property
    def most_streams(self) -> int:
        """How many row groups may be read at the same time, so that memory holds them."""
        return max(1, min(MOST, _OPEN // max(1, self.row_bytes * max(self.counts))))

    def as_written(self) -> Cursor:
        """Return all rows as they lie."""
        return Cursor(self, [FileRange(group, 0, count) for group, count in enumerate(self.counts)])


class Cursor:
    """Rows of some pieces, laid end to end; it is cheap to go on where the last call stopped.

    Args:
        table: where they lie.
        pieces: rows of row groups.
    """

    def __init__(self, table: Table, pieces: Sequence[FileRange]) -> None:
        self._table, self._pieces = table, pieces
        self._group = -1
        self._batches: Iterator[Any] = iter(())  # what follows of the open group
        self._held: Any = None  # a record batch
        self._begin = self._end = 0  # which rows of the group it has

    def read(self, first: int, end: int) -> Arrays:
        """Return the rows from `first` to `end`, column by column.

        Raises:
            DataError: a file that is damaged or cannot be read; values that a column must not have.
        """
        parts: list[Arrays] = []
        for piece in between(self._pieces, first, end):
            parts += self._of_group(*piece)
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    def _of_group(self, group: int, first: int, size: int) -> Iterator[Arrays]:
        if group != self._group or first < self._begin:
            self._batches, self._held = _opened(self._table, group), None
            self._group, self._begin, self._end = group, 0, 0
        end = first + size
        while first < end:
            if first >= self._end:
                self._go_on()
            else:
                last = min(end, self._end)
                yield self._values(self._held.slice(first - self._begin, last - first))
                first = last

    def _values(self, batch: Any) -> Arrays:
        path = self._table.files[self._table.groups[self._group][0]]
        return tuple(column.values(batch.column(column.name), path) for column in self._table.columns)

    def _go_on(self) -> None:
        """Hold the next rows; after the last ones the file is closed, or its pages would stay in memory."""
        file, number = self._table.groups[self._group]
        path = self._table.files[file]
        try:
            batch = next(self._batches, None)
        except MirrorkitError:
            raise
        except (OSError, pyarrow().ArrowException) as error:
            raise damaged(path, error, number) from error
        if batch is None:
            raise damaged(path, f"it ends after {self._end} rows", number)
        self._held, self._begin, self._end = batch, self._end, self._end + batch.num_rows
        if self._end == self._table.counts[self._group]:
            self._batches = iter(())


def _opened(table: Table, group: int) -> Iterator[Any]:
    """Yield a row group in record batches; a small one at once, of others a page of each column is held too."""
    file, number = table.groups[group]
    rows = max(1, _PIECE // max(1, table.row_bytes))
    open_file = pyarrow("pyarrow.parquet").ParquetFile
    names, footer = [column.name for column in table.columns], table.footers[file]
    path = table.files[file]
    is_remote = isinstance(path, RemoteFile)
    # of a file at an address the columns of a row group are read at once, in few requests
    how = {"metadata": footer, "buffer_size": 0 if is_remote else _BUFFER, "pre_buffer": is_remote}
    source = RemoteReader(path) if isinstance(path, RemoteFile) else path
    with open_file(source, page_checksum_verification=True, **how) as opened:
        yield from opened.iter_batches(rows, row_groups=[number], columns=names, use_threads=False)


def as_written(table: Table, rows: RowRanges, sizes: Sequence[int], start: int) -> Iterator[Arrays]:
    """Yield the rows that are asked for of each batch from `start` on, in the order of the files.

    The batches have these `sizes`. What others ask for is read too, and dropped.
    """
    cursor = table.as_written()
    for step in range(start, len(sizes)):
        first, end = rows[sizes[step] < sizes[0]]
        yield cursor.read(step * sizes[0] + first, step * sizes[0] + end)


def damaged(path: str, why: object, group: int | None = None) -> DataError:
    """Return the error about a file that cannot be read as Parquet."""
    where = "" if group is None else f", in row group {group}"
    return DataError(f"{path} is damaged, or cannot be read{where}: {why}. Write or copy it again.")
