"""The files of a sharded set: write them whole or not at all, find them again, and refuse what is incomplete.

A set that `write_records` made is a number of TFRecord shards and one JSON index, which names them and is written last:
without it there is no set. An index holds the number of examples and bytes of every shard and the dtype and shape of
every array of an example.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.splits import Split
from mirrorkit.errors import DataError

INDEX_END = ".index.json"
_FORMAT = 1
_RAW_DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool")


def write_records(
    examples: Split | Iterable[tuple[Any, ...]],
    folder: str | os.PathLike[str],
    *,
    shards: int = 8,
    prefix: str = "data",
    num_classes: int | None = None,
    gzip: bool = False,
) -> Path:
    """Write TFRecord shards from a split, or from a generator of examples larger than memory; `records` reads them.

    ```python
    mk.data.write_records(((image, label) for image, label in camera), "frames/", shards=16, prefix="train")
    ```

    Every value is kept bit for bit. Example i goes to shard i modulo `shards`. The shards are written beside their
    place and moved there at the end, the index last: a writer that is interrupted leaves no set.

    Args:
        examples: a split, or `(x, y)` or `(x, y, sample_weight)` tuples of arrays or dicts of arrays, each of one shape
            and dtype throughout. Integer labels become int64.
        folder: where to; made if need be. A folder may hold several sets of different `prefix`.
        shards: the number of files; at least one per worker of a cluster, better several.
        prefix: the files' names begin with it.
        num_classes: the number of classes; None takes the split's, or the largest label + 1.
        gzip: compress the shards: smaller, slower.

    Returns:
        The path of the index.

    Raises:
        DataError: no examples, examples that differ in shape or dtype, labels outside the classes, or a set of this
            name that is there already.
    """
    if shards < 1:
        raise DataError(f"write_records(shards={shards}) was asked for; it must be at least 1.")
    folder = Path(folder).expanduser()
    index_path = folder / (prefix + INDEX_END)
    if index_path.exists():
        raise DataError(f"{index_path} is there already. Delete the set, or choose another prefix or folder.")
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(examples, Split):
        num_classes = examples.num_classes if num_classes is None else num_classes
        examples = _examples(examples)
    kind = "GZIP" if gzip else ""
    scratch = Path(tempfile.mkdtemp(prefix=f".{prefix}-unfinished-", dir=folder))
    try:
        writers = [tf.io.TFRecordWriter(str(scratch / str(i)), tf.io.TFRecordOptions(kind)) for i in range(shards)]
        try:
            counts, features, found_classes = _write(examples, writers, num_classes)
        finally:
            for writer in writers:
                writer.close()
        filled = [i for i in range(shards) if counts[i]]
        listed = []
        for place, i in enumerate(filled):
            name = f"{prefix}-{place:05d}-of-{len(filled):05d}.tfrecord"
            size = (scratch / str(i)).stat().st_size
            os.replace(scratch / str(i), folder / name)
            listed.append({"file": name, "examples": counts[i], "bytes": size})
        index = {
            "format": _FORMAT,
            "compression": kind,
            "num_classes": num_classes if num_classes is not None else found_classes,
            "features": features,
            "shards": listed,
        }
        (scratch / "index").write_text(json.dumps(index, indent=1) + "\n")
        os.replace(scratch / "index", index_path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return index_path


def read_index(path: str) -> dict[str, Any]:
    """The content of an index, with the shards' full paths, after a look at each shard's size.

    Raises:
        DataError: an index that cannot be read; a shard that is missing or has another size, by its name.
    """
    try:
        with tf.io.gfile.GFile(path) as file:
            index = json.load(file)
        if index["format"] != _FORMAT:
            raise DataError(f"{path} has format {index['format']}, this version reads {_FORMAT}. Write the set again.")
        for shard in index["shards"]:
            shard["file"] = os.path.join(os.path.dirname(path), shard["file"])
            size = tf.io.gfile.stat(shard["file"]).length if tf.io.gfile.exists(shard["file"]) else None
            if size != shard["bytes"]:
                found = "it is missing" if size is None else f"found {size}"
                raise DataError(f"{shard['file']} should hold {shard['bytes']} bytes; {found}. Write the set again.")
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is damaged: {type(error).__name__}: {error}. Write the set again.") from error
    return index


def find(source: str | os.PathLike[str]) -> tuple[str | None, list[str]]:
    """The one set that a folder or a pattern means: `(index, [])`, or `(None, shard files)` of a set from elsewhere.

    Raises:
        DataError: nothing there, more than one set, or a shard missing from a numbered row.
    """
    given = os.path.expanduser(os.fspath(source))
    whole_folder = tf.io.gfile.isdir(given)
    names = sorted(tf.io.gfile.glob(os.path.join(given, "*") if whole_folder else given))
    indices = [name for name in names if name.endswith(INDEX_END)]
    if len(indices) == 1:
        return indices[0], []
    if indices:
        sets = ", ".join(os.path.basename(name) for name in indices)
        raise DataError(f"{given} holds several sets: {sets}. Name one of these files.")
    files = [name for name in names if not whole_folder or ".tfrecord" in os.path.basename(name)]
    if not files:
        what = "no TFRecord shards" if whole_folder else "no file of that name or pattern"
        raise DataError(f"{given}: {what}. write_records writes such a set.")
    rows: dict[tuple[str, str], set[int]] = {}
    for name in files:
        if match := re.search(r"^(.*)-(\d{5,})-of-(\d{5,})", os.path.basename(name)):
            rows.setdefault((match[1], match[3]), set()).add(int(match[2]))
    if whole_folder and len(rows) > 1:
        prefixes = ", ".join(prefix for prefix, _ in rows)
        raise DataError(f"{given} holds several sets: {prefixes}. Name one by a pattern, such as '{given}/NAME-*'.")
    for (prefix, total), numbers in rows.items():
        missing = sorted(set(range(int(total))) - numbers)
        if missing and whole_folder:  # a pattern may well ask for a part
            raise DataError(f"{given}: {prefix} should have {int(total)} shards; number {missing[0]} is missing.")
    return None, files


def flatten(element: tuple[Any, ...]) -> dict[str, Any]:
    """An example as flat names: "x" or "x/name", "y" or "y/name", "sample_weight"; `unflatten` is the inverse."""
    flat = {}
    for key, value in zip(("x", "y", "sample_weight"), element, strict=False):
        if isinstance(value, Mapping):
            flat.update({f"{key}/{name}": leaf for name, leaf in value.items()})
        else:
            flat[key] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> tuple[Any, ...]:
    """The inverse of `flatten`."""
    element: dict[str, Any] = {}
    for key, leaf in flat.items():
        part, _, name = key.partition("/")
        if name:
            element.setdefault(part, {})[name] = leaf
        else:
            element[part] = leaf
    return tuple(element[part] for part in ("x", "y", "sample_weight") if part in element)


def _examples(split: Split) -> Iterator[tuple[Any, ...]]:
    flat = flatten(split.as_element())
    for i in range(len(split)):
        yield unflatten({key: leaf[i] for key, leaf in flat.items()})


def _write(
    examples: Iterable[tuple[Any, ...]], writers: list[tf.io.TFRecordWriter], num_classes: int | None
) -> tuple[list[int], dict[str, Any], int | None]:
    counts = [0] * len(writers)
    features: dict[str, Any] = {}
    largest = None
    for i, example in enumerate(examples):
        if not isinstance(example, tuple) or not 2 <= len(example) <= 3:
            raise DataError(
                f"example {i} should be a tuple (x, y) or (x, y, sample_weight), found {type(example).__name__}."
            )
        arrays = {key: np.asarray(leaf) for key, leaf in flatten(example).items()}
        label = arrays.get("y")
        if label is not None and label.dtype.kind in "iub":
            arrays["y"] = label = label.astype(np.int64)
            if label.size and (label.min() < 0 or (num_classes is not None and label.max() >= num_classes)):
                raise DataError(f"example {i} has the label {label}; labels must lie in 0 .. {num_classes or 'C'} - 1.")
            largest = max(largest or 0, int(label.max(initial=0)))
        spec = {key: {"dtype": str(leaf.dtype), "shape": list(leaf.shape)} for key, leaf in arrays.items()}
        if not features:
            features = spec
            unfit = [key for key in spec if spec[key]["dtype"] not in _RAW_DTYPES]
            if unfit:
                raise DataError(f"{unfit[0]} has dtype {spec[unfit[0]]['dtype']}; use one of {', '.join(_RAW_DTYPES)}.")
        if spec != features:
            raise DataError(f"example {i} is {spec}, the ones before are {features}; all must be alike.")
        feature = {
            key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[leaf.tobytes()])) for key, leaf in arrays.items()
        }
        record = tf.train.Example(features=tf.train.Features(feature=feature))
        writers[i % len(writers)].write(record.SerializeToString())
        counts[i % len(writers)] += 1
    if not features:
        raise DataError("write_records was given no examples.")
    return counts, features, None if largest is None else largest + 1
