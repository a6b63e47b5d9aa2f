"""Rows of Parquet files in the order of an epoch, row group by row group. NumPy and pyarrow.

A row group can be read only from its beginning on, as a gzip file: it is a block (see `order.BlockOrder`), which is
read in small pieces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit.data.parquet_columns import Column, places_of, pyarrow
from mirrorkit.data.reading import Arrays, Reader
from mirrorkit.data.remote_files import RemoteFile, RemoteReader
from mirrorkit.errors import DataError, MirrorkitError

_OPEN = 256 << 20  # bytes of the row groups that are read at the same time
_PIECE = 8 << 20  # bytes that are read of one at a time
_BUFFER = 64 << 10  # bytes of a column that are read of a file at a time


class Table(Reader):
    """Reads rows of files.

    Args:
        files: their paths.
        footers: of each file, what pyarrow calls its metadata.
        columns: those that are read.

    Attributes:
        groups: of each row group in the order of the files, the file and the number in it. Row groups are its blocks.
        row_bytes: about how many bytes a row has.
    """

    blocks: Sequence[int]
    by_number = False

    def __init__(self, files: Sequence[str], footers: Sequence[Any], columns: Sequence[Column]) -> None:
        self.files, self.footers, self.columns = files, footers, columns
        self.groups: list[tuple[int, int]] = []
        for file, footer in enumerate(footers):
            self.groups += [(file, group) for group in range(footer.num_row_groups)]
        self.blocks = tuple(footers[file].row_group(group).num_rows for file, group in self.groups)
        self.row_bytes = _row_bytes(footers, [column.name for column in columns])
        self.most = max(1, _OPEN // max(1, self.row_bytes * max(self.blocks, default=0)))

    def specs(self, rows: int | None) -> Any:
        """See `Reader`."""
        return tuple(tf.TensorSpec([rows, *column.shape], column.dtype) for column in self.columns)

    def read_block(self, block: int, first: int) -> tuple[int, Iterator[Arrays]]:
        """See `Reader`."""
        return 0, self._rows(block)

    def _rows(self, group: int) -> Iterator[Arrays]:
        path = self.files[self.groups[group][0]]
        for rows in self._opened(group):
            yield tuple(column.values(rows.column(column.name), path) for column in self.columns)

    def _opened(self, group: int) -> Iterator[Any]:
        """Yield a row group in record batches; a small one at once, of others a page of each column is held too."""
        file, number = self.groups[group]
        rows = max(1, _PIECE // max(1, self.row_bytes))
        open_file = pyarrow("pyarrow.parquet").ParquetFile
        names, footer = [column.name for column in self.columns], self.footers[file]
        path = self.files[file]
        is_remote = isinstance(path, RemoteFile)
        # of a file at an address the columns of a row group are read at once, in few requests
        how = {"metadata": footer, "buffer_size": 0 if is_remote else _BUFFER, "pre_buffer": is_remote}
        source = RemoteReader(path) if isinstance(path, RemoteFile) else path
        rows_read = 0
        with damage_named(path, number):
            with open_file(source, page_checksum_verification=True, **how) as opened:
                for batch in opened.iter_batches(rows, row_groups=[number], columns=names, use_threads=False):
                    rows_read += batch.num_rows
                    if rows_read == self.blocks[group]:
                        break
                    yield batch
            if rows_read < self.blocks[group]:
                raise OSError(f"it ends after {rows_read} rows")
        yield batch  # the last one, when the file is closed, or its pages would stay in memory


def _row_bytes(footers: Sequence[Any], names: Sequence[str]) -> int:
    """About how many bytes a row has in these columns, before compression."""
    total = 0
    for footer in footers:
        for place in places_of(footer, names):
            chunks = (footer.row_group(group).column(place) for group in range(footer.num_row_groups))
            total += sum(chunk.total_uncompressed_size for chunk in chunks)
    return -(-total // max(1, sum(footer.num_rows for footer in footers)))


@contextlib.contextmanager
def damage_named(path: str, group: int | None = None) -> Iterator[None]:
    """Turn what pyarrow raises for a file, or for a row group of it, into a DataError with its name."""
    try:
        yield
    except MirrorkitError:
        raise
    except (OSError, pyarrow().ArrowException) as error:
        where = "" if group is None else f", in row group {group}"
        raise DataError(f"{path} is damaged, or cannot be read{where}: {error}. Write or copy it again.") from error
