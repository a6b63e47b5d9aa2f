"""Global batches of the rows of Parquet files, for tables larger than memory."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import tensorflow as tf

from mirrorkit.arguments import whole_number
from mirrorkit.data.found_files import found
from mirrorkit.data.parquet_columns import Column, column_of, pyarrow
from mirrorkit.data.parquet_reading import Table, damage_named
from mirrorkit.data.reading import OfReader
from mirrorkit.data.remote_files import RemoteFile, RemoteReader, in_parallel
from mirrorkit.errors import DataError, RecipeError

Names = str | Sequence[str]


@dataclass(frozen=True, eq=False)
class Parquet(OfReader):
    """A recipe like `batches`, for the rows of Parquet files; memory does not grow with the table.

    `mk.data.parquet` is this class; it reads with pyarrow. Its arguments are the recipe's attributes.

    ```python
    train = mk.data.parquet("sales/*.parquet", y="bought", global_batch_size=1024, shuffle=True)
    train = mk.data.parquet("sales/", x=["price", "city"], y="bought", fill={"price": 0.0}, global_batch_size=1024)
    ```

    A batch is `(x, y)`, `(x, y, sample_weight)` or, without `y`, `(x,)`. Several columns are a dict of tensors by name.
    One is a tensor: [B] for numbers, booleans or strings, [B, n] for lists of one length n. Columns keep their dtypes,
    but a single column `y` of integers or booleans becomes int64, and weights become float32.

    Unshuffled, rows come in the order of the files. Shuffled, the row groups are divided among up to 64 lanes,
    differently in every epoch. Each batch takes some rows from every lane, and each lane is shuffled within windows. A
    table with few large row groups is therefore mixed less: write it with `row_group_size=50_000`, say. The order is a
    pure function of the files, `global_batch_size`, `shuffle_buffer`, and (seed, epoch). Shuffled, each of several
    workers reads only the lanes with rows of its replicas.

    Args:
        files: a file, a folder, a pattern such as "sales/2024-*.parquet", or a list of files; or addresses of these,
            such as "s3://bucket/sales" (docs: Data, In a bucket).
        global_batch_size: examples per step over all replicas together, as in `batches`.
        shuffle, seed, augment, map, one_hot, drop_remainder, prefetch: as in `batches`.
        weights, replacement, examples_per_epoch: refused, since row groups are read from their beginning on.
        x: the columns of the inputs: a list of names, or one name. None takes all that are neither `y` nor weights.
        y: the columns of the targets, likewise; None for batches without targets.
        sample_weight: the column of the weights.
        fill: the replacement for missing values: one value for all columns, or a dict by column. By default missing
            values are an error.
        num_classes: the number of classes in `y`; `one_hot` needs it. Labels are checked against it as they are read.
        shuffle_buffer: how many rows are held in memory, divided among the workers; at least those of two batches. Half
            of them are shuffled together, while the other half is read.

    Attributes:
        files: the files, with their paths.

    Raises:
        RecipeError: what `batches` refuses; arguments that do not fit the columns; pyarrow is not installed.
        DataError: missing or damaged files; a column that is missing, has a type that tensors do not have, or differs
            in type between files; missing values. What is found while reading is a DataError in a `Loop` and
            TensorFlow's InvalidArgumentError in a custom training loop. Both name the file and column.
    """

    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    _: KW_ONLY
    x: Names | None = None
    y: Names | None = None
    sample_weight: str | None = None
    fill: Any = None
    num_classes: int | None = None
    shuffle_buffer: int = 65_536
    _reader: Table = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Find the files and check the arguments."""
        files = found("parquet", self.files, ".parquet")
        footers = in_parallel(_footer, files)
        schemas = [footer.schema.to_arrow_schema() for footer in footers]
        self._set(files=files, **self._chosen(schemas[0].names))
        names = tuple(dict.fromkeys(name for part in self._parts for name in _several(part)))
        _require_one_schema(files, schemas, names)
        columns = tuple(
            self._column(column_of(name, schemas[0].field(name).type, files[0]), files[0]) for name in names
        )
        self._set(_reader=Table(files, footers, columns))
        by_name = {column.name: column for column in columns}
        shape = [None, *by_name[self.x].shape] if isinstance(self.x, str) else None
        y = by_name[self.y] if isinstance(self.y, str) else None
        are_classes = y is not None and y.dtype.is_integer and not y.shape
        self._settle(sum(self._reader.blocks), shape, has_classes=are_classes)

    def identity(self, epoch: int, start: int) -> str:
        """Return what must be the same on all workers; see `PreparedRecipe.identity`."""
        footer = zlib.crc32(repr(self._reader.footers[0].to_dict()).encode())
        return f"{super().identity(epoch, start)} {self._reader.columns} {footer}"

    def _element(self, *columns: tf.Tensor) -> tuple[Any, ...]:
        """Put columns where the model takes them."""
        by_name = dict(zip((column.name for column in self._reader.columns), columns, strict=True))
        x, *others = (
            by_name[part] if isinstance(part, str) else {name: by_name[name] for name in part} for part in self._parts
        )
        if isinstance(self.y, str) and (by_name[self.y].dtype.is_integer or by_name[self.y].dtype.is_bool):
            others[0] = tf.cast(others[0], tf.int64)
        if self.sample_weight is not None:
            others[1] = tf.cast(others[1], tf.float32)
        return (x, *others)

    @property
    def order_version(self) -> int:  # type: ignore[override]
        """A number that changes when a release of mirrorkit changes the order of examples in an epoch."""
        return 2 if self.shuffle else 1

    @property
    def _parts(self) -> list[Names]:
        """The names of the columns in x, y and sample_weight, as far as there are any."""
        return [part for part in (self.x, self.y, self.sample_weight) if part is not None]

    def _chosen(self, names: Sequence[str]) -> dict[str, Any]:
        """Return x, y and sample_weight in their final form."""
        if self.sample_weight is not None and (self.y is None or not isinstance(self.sample_weight, str)):
            raise RecipeError(f"sample_weight must name one column, beside y; found {self.sample_weight!r}.")
        others = {name for part in (self.y, self.sample_weight) if part is not None for name in _several(part)}
        x = [name for name in names if name not in others] if self.x is None else self.x
        chosen = {"x": x, "y": self.y, "sample_weight": self.sample_weight}
        if self.num_classes is not None and not isinstance(self.y, str):
            raise RecipeError(f"num_classes={self.num_classes} was given, but y is not one column.")
        if isinstance(self.fill, Mapping) and (unknown := {*self.fill} - {*names}):
            raise RecipeError(f"fill names the columns {', '.join(sorted(unknown))}, which do not exist.")
        for argument, part in chosen.items():
            if part is not None and not isinstance(part, str):
                if not part or not all(isinstance(name, str) for name in part):
                    raise RecipeError(f"{argument} must be the name of a column, or a list of names; found {part!r}.")
                chosen[argument] = tuple(part)
        return chosen

    def _column(self, column: Column, file: str) -> Column:
        """Return a column with its number of classes and what fills it."""
        if self.num_classes is not None and column.name == self.y:
            if column.dtype == tf.string:
                raise RecipeError(
                    f"num_classes={self.num_classes} was given, but the column {column.name!r} of {file} "
                    f"holds {column.arrow_type}. Write the classes as numbers from 0 on."
                )
            column = replace(column, classes=whole_number("num_classes", self.num_classes, RecipeError))
        elif column.dtype == tf.uint64 and column.name == self.y:  # it becomes int64
            column = replace(column, classes=2**63)
        fill = self.fill.get(column.name) if isinstance(self.fill, Mapping) else self.fill
        return column if fill is None else column.filled_with(fill)


parquet = Parquet


def _several(part: Names) -> Sequence[str]:
    return [part] if isinstance(part, str) else part


def _footer(file: str) -> Any:
    """What pyarrow says of a file without reading its rows."""
    with damage_named(file):
        return pyarrow("pyarrow.parquet").read_metadata(RemoteReader(file) if isinstance(file, RemoteFile) else file)


def _require_one_schema(files: Sequence[str], schemas: Sequence[Any], names: Sequence[str]) -> None:
    """Refuse columns that a file does not have, has twice, or has with another type than the first one."""
    for (file, schema), name in itertools.product(zip(files, schemas, strict=True), names):
        found = [str(schema.field(place).type) for place in schema.get_all_field_indices(name)]
        wanted = [str(schemas[0].field(place).type) for place in schemas[0].get_all_field_indices(name)][:1]
        if found != wanted or not found:
            raise DataError(
                f"{file} should have one column {name!r}, of type {', '.join(wanted) or 'any'} as in {files[0]}; found "
                f"{', '.join(found) or 'none'} among {', '.join(schema.names)}. Write all files with one schema, or "
                "choose other columns: x=[...]."
            )
