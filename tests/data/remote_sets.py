"""Sets of each kind that is read from files, on disk and at an address, and what recipes of both give."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
from recipe_helpers import write_foreign

from mirrorkit import data

EXAMPLES, BATCH = 130, 16
SPLIT = data.synthetic((16, 16, 3), train=EXAMPLES, test=1).train
CONTEXTS = (None, tf.distribute.InputContext(2, 0, 2), tf.distribute.InputContext(2, 1, 2))


def write_sets(folder: Path) -> None:
    """Write sets of these images; lengths and sizes differ where they may."""
    data.write_records(SPLIT, folder / "records", num_files=5)
    data.write_records(SPLIT, folder / "gzip", num_files=5, gzip=True)
    for number, part in enumerate(np.array_split(np.arange(EXAMPLES), 4)):
        write_foreign(folder / "foreign" / f"train-{number}", SPLIT.images[part], SPLIT.labels[part])
    _write_tables(folder / "tables")


def _write_tables(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(EXAMPLES), 3)):
        columns = {"number": part, "half": part / 2, "word": [f"w{i % 5}" for i in part], "label": part % 7}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=9)


# of each set, a function of the folder's path or address
KINDS: dict[str, Callable[..., data.Recipe]] = {
    "records": lambda root, **options: data.records(f"{root}/records", shuffle_buffer=50, **options),
    "one index": lambda root, **options: data.records(f"{root}/records/data.index.json", **options),
    "gzip": lambda root, **options: data.records(f"{root}/gzip/", shuffle_buffer=50, **options),
    "foreign": lambda root, **options: data.records(f"{root}/foreign/train-*", num_classes=10, **options),
    "foreign, told": lambda root, **options: data.records(
        f"{root}/foreign/train-?", num_examples=[33, 33, 32, 32], shuffle_buffer=40, **options
    ),
    "foreign, told together": lambda root, **options: data.records(
        f"{root}/foreign/train-*", num_examples=EXAMPLES, **options
    ),
    "table": lambda root, **options: data.parquet(
        f"{root}/tables", x=["half", "word"], y="label", shuffle_buffer=40, **options
    ),
    "one column": lambda root, **options: data.parquet(f"{root}/tables/*.parquet", x="number", **options),
}


def digest(recipe: data.Recipe, context: tf.distribute.InputContext | None = CONTEXTS[2], start: int = 1) -> str:
    """A number that stands for the batches of an epoch, bit for bit."""
    found = hashlib.sha256()
    for batch in recipe.dataset(1, start, input_context=context).as_numpy_iterator():
        for array in tf.nest.flatten(batch):
            found.update(f"{array.dtype} {array.shape}".encode())
            found.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
    return found.hexdigest()
