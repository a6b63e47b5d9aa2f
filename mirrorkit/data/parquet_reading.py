"""Rows of Parquet files in the order of an epoch, row group by row group. NumPy and pyarrow.

A row group can be read only from its beginning on, as a gzip file: it is a block (see `order.BlockOrder`), which is
read in small pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirrorkit.data.in_blocks import Arrays, BlockReading, Read
from mirrorkit.data.parquet_columns import Column, pyarrow
from mirrorkit.data.remote_files import RemoteFile, RemoteReader
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
        blocks: the number of rows of each.
        row_bytes: about how many bytes a row has.
    """

    files: tuple[str, ...]
    footers: tuple[Any, ...]
    columns: tuple[Column, ...]
    groups: tuple[tuple[int, int], ...]
    blocks: tuple[int, ...]
    row_bytes: int

    by_number = False

    @property
    def most(self) -> int:
        """How many row groups may be read at the same time, so that memory holds them."""
        return max(1, _OPEN // max(1, self.row_bytes * max(self.blocks)))

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """See `in_blocks.Reader`; rows come in the order of the files."""
        return places

    def opened(self) -> Read:
        """See `in_blocks.Reader`."""
        return BlockReading(self.blocks, lambda group, first: (0, self._rows(group)))

    def _rows(self, group: int) -> Iterator[Arrays]:
        path = self.files[self.groups[group][0]]
        for rows in _opened(self, group):
            yield tuple(column.values(rows.column(column.name), path) for column in self.columns)


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
    rows_read = 0
    try:
        with open_file(source, page_checksum_verification=True, **how) as opened:
            for batch in opened.iter_batches(rows, row_groups=[number], columns=names, use_threads=False):
                rows_read += batch.num_rows
                if rows_read == table.blocks[group]:
                    break
                yield batch
    except MirrorkitError:
        raise
    except (OSError, pyarrow().ArrowException) as error:
        raise damaged(path, error, number) from error
    if rows_read < table.blocks[group]:
        raise damaged(path, f"it ends after {rows_read} rows", number)
    yield batch  # the last one, when the file is closed, or its pages would stay in memory


def damaged(path: str, why: object, group: int | None = None) -> DataError:
    """Return the error about a file that cannot be read as Parquet."""
    where = "" if group is None else f", in row group {group}"
    return DataError(f"{path} is damaged, or cannot be read{where}: {why}. Write or copy it again.")
