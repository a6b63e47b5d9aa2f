"""Row groups of Parquet files at addresses: the columns that are chosen are staged, and read from there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from mirrorkit.data.parquet_columns import places_of
from mirrorkit.data.remote_files import RemoteFile, RemoteReader
from mirrorkit.data.staging import Piece, cache


def piece_of(file: str, footer: Any, group: int, names: Sequence[str]) -> Piece | None:
    """Return what has to be staged of a row group to read columns by these names; None of a local file."""
    if not isinstance(file, RemoteFile):
        return None
    chunks = (footer.row_group(group).column(place) for place in places_of(footer, names))
    ranges: list[tuple[int, int]] = []
    for first, end in sorted((_first(chunk), _first(chunk) + chunk.total_compressed_size) for chunk in chunks):
        if ranges and ranges[-1][1] == first:  # side by side: one request
            first = ranges.pop()[0]
        ranges.append((first, end))
    return Piece(file, tuple(ranges))


@contextlib.contextmanager
def readable(file: str, piece: Piece | None) -> Iterator[Any]:
    """Give what pyarrow can open: a local file's path, or a reader of a piece of one at an address."""
    if piece is None:
        yield file
    else:
        with cache().staged(piece) as path, open(path, "rb") as copy:
            yield _PieceReader(piece, copy)


class _PieceReader(RemoteReader):
    """A file at an address, of which a piece is on this machine."""

    def __init__(self, piece: Piece, copy: BinaryIO) -> None:
        super().__init__(piece.file)
        self._piece, self._copy = piece, copy

    def _content(self, first: int, end: int) -> bytes:
        before = 0
        for begin, stop in self._piece.ranges:
            if begin <= first and end <= stop:
                self._copy.seek(before + first - begin)
                return self._copy.read(end - first)
            before += stop - begin
        return super()._content(first, end)


def _first(chunk: Any) -> int:
    """Where a column of a row group begins."""
    return int(min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset))))
