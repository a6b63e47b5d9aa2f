"""The TFRecord files of a set: write all of them or none, find them again, and refuse a set that is incomplete.

A set that `write_records` made is a number of TFRecord files and one JSON index, which names them and is written last:
without it there is no set. An index holds the number of examples and bytes and the CRC of every file (under the key
"shards") and the dtype and shape of every array of an example.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.arguments import checks_arguments, whole_number
from mirrorkit.data import remote_files
from mirrorkit.data.disk import crc32, file_errors, path_of
from mirrorkit.data.found_files import listed, matching
from mirrorkit.data.index_file import FORMAT, INDEX_END, RAW_DTYPES
from mirrorkit.data.nests import as_int64, kind, pick
from mirrorkit.data.splits import Split
from mirrorkit.errors import DataError, RecipeError
from mirrorkit.object_storage import require_local


@checks_arguments(RecipeError)
def write_records(
    examples: Split | Iterable[tuple[Any, ...]],
    folder: str | os.PathLike[str],
    *,
    num_files: int = 8,
    prefix: str = "data",
    num_classes: int | None = None,
    gzip: bool = False,
) -> Path:
    """Write TFRecord files from a split, or from a generator of examples larger than memory; `records` reads them.

    ```python
    mk.data.write_records(((image, label) for image, label in camera), "frames/", num_files=16, prefix="train")
    ```

    Every value is kept bit for bit. Example i goes to file i modulo `num_files`. The files are written to a temporary
    folder and moved at the end, the index last: an interrupted writer leaves no set.

    Args:
        examples: a split, or `(x, y)`, `(x, y, sample_weight)` or `(x,)` tuples of arrays or dicts of arrays, each of
            one shape and dtype throughout. Integer labels become int64.
        folder: where to write; created if it does not exist. It may hold several sets with different `prefix`.
        num_files: the number of files, 8 by default; at least one per worker of a cluster, better several.
        prefix: the files' names begin with it.
        num_classes: the number of classes; None takes the split's, or the largest label + 1.
        gzip: compress the files: smaller, slower.

    Returns:
        The path of the index.

    Raises:
        RecipeError: `num_files` is below 1.
        ArgumentError: an address; only a local folder is written to.
        DataError: no examples, examples that differ in shape or dtype, several arrays in anything but one dict, labels
            outside the classes, or a set of this name that exists already.
        FileError: the folder cannot be written to, or its disk is full.
    """
    num_files = whole_number("num_files", num_files, RecipeError, most=10_000)
    num_classes = None if num_classes is None else whole_number("num_classes", num_classes, RecipeError)
    given = path_of("write_records", folder)
    require_local("write_records", given)
    folder = Path(given)
    index_path = folder / (prefix + INDEX_END)
    if isinstance(examples, Split):
        num_classes = examples.num_classes if num_classes is None else num_classes
        element, number = examples.as_element(), len(examples)
        examples = (pick(element, i) for i in range(number))
    # only around accesses of our own, so that an error of the user's generator stays what it is
    on_disk = functools.partial(
        file_errors,
        f"write_records cannot write to {folder}",
        "Free some space or correct the permissions, or choose another folder; no set was written.",
    )
    with on_disk():
        if index_path.exists():
            raise DataError(f"{index_path} exists already. Delete the set, or choose another prefix or folder.")
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{prefix}-unfinished-", dir=folder))
    try:
        index = _write(examples, scratch, num_files, num_classes, "GZIP" if gzip else "", on_disk)
        with on_disk():
            for place, entry in enumerate(index["shards"]):
                written = scratch / entry["file"]
                entry["file"] = f"{prefix}-{place:05d}-of-{len(index['shards']):05d}.tfrecord"
                entry["bytes"], entry["crc32"] = written.stat().st_size, crc32(str(written))
                os.replace(written, folder / entry["file"])
            (scratch / "index").write_text(json.dumps(index, indent=1) + "\n")
            os.replace(scratch / "index", index_path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return index_path


def find(source: str | os.PathLike[str]) -> tuple[str | None, list[str]]:
    """Find the one set that a folder or a pattern means: `(index, [])`, or `(None, files)` of a set from elsewhere."""
    given = path_of("records", source)
    whole_folder = bool(remote_files.listed(given)) if remote_files.is_remote(given) else tf.io.gfile.isdir(given)
    names = listed(given, "*") if whole_folder else matching(given)
    indices = [name for name in names if name.endswith(INDEX_END)]
    if len(indices) == 1:
        return indices[0], []
    if indices:
        sets = ", ".join(os.path.basename(name) for name in indices)
        raise DataError(f"{given} holds several sets: {sets}. Name one of these files.")
    files = [name for name in names if not whole_folder or ".tfrecord" in os.path.basename(name)]
    if not files:
        what = "no TFRecord files" if whole_folder else "no file of that name or pattern"
        raise DataError(f"{given}: {what}. write_records writes such a set.")
    series: dict[tuple[str, str], set[int]] = {}
    for name in files:
        if match := re.search(r"^(.*)-(\d{5,})-of-(\d{5,})", os.path.basename(name)):
            series.setdefault((match[1], match[3]), set()).add(int(match[2]))
    if whole_folder and len(series) > 1:
        prefixes = ", ".join(prefix for prefix, _ in series)
        raise DataError(f"{given} holds several sets: {prefixes}. Name one by a pattern, such as '{given}/NAME-*'.")
    for (prefix, total), numbers in series.items():
        missing = sorted(set(range(int(total))) - numbers)
        if missing and whole_folder:  # a pattern may ask for some of the files
            raise DataError(f"{given}: {prefix} should have {int(total)} files; number {missing[0]} is missing.")
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


def _write(
    examples: Iterable[tuple[Any, ...]],
    folder: Path,
    num_files: int,
    num_classes: int | None,
    compression: str,
    on_disk: Callable[[], AbstractContextManager[None]],
) -> dict[str, Any]:
    """Write the examples to files named by their numbers, and return the index; files that got none are left out."""
    with on_disk():
        options = tf.io.TFRecordOptions(compression)
        writers = [tf.io.TFRecordWriter(str(folder / str(i)), options) for i in range(num_files)]
    counts = [0] * num_files
    features: dict[str, Any] = {}
    largest = -1
    try:
        for i, example in enumerate(examples):
            arrays = _checked(i, example, num_classes, features)
            if "y" in arrays and features["y"]["dtype"] == "int64":
                largest = max(largest, int(arrays["y"].max(initial=0)))
            feature = {
                key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[leaf.tobytes()]))
                for key, leaf in arrays.items()
            }
            record = tf.train.Example(features=tf.train.Features(feature=feature))
            with on_disk():
                writers[i % num_files].write(record.SerializeToString(deterministic=True))
            counts[i % num_files] += 1
    finally:
        with on_disk():
            for writer in writers:
                writer.close()
    if not features:
        raise DataError("write_records was given no examples.")
    return {
        "format": FORMAT,
        "compression": compression,
        "num_classes": num_classes if num_classes is not None or largest < 0 else largest + 1,
        "features": features,
        "shards": [{"file": str(i), "examples": count} for i, count in enumerate(counts) if count],
    }


def _checked(i: int, example: Any, num_classes: int | None, features: dict[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of example `i`, flat. The first one fills `features`, which all others must match."""
    if not isinstance(example, tuple) or not 1 <= len(example) <= 3:
        raise DataError(
            f"example {i} should be a tuple (x, y), (x, y, sample_weight) or (x,), found {type(example).__name__}."
        )
    arrays = {}
    for key, leaf in flatten(example).items():
        if isinstance(leaf, (tuple, Mapping)):
            raise DataError(
                f"write_records writes arrays and dicts of arrays; {key} of example {i} is {kind(leaf)}. Give one dict "
                "of arrays, such as {'left': a, 'right': b}. If the model takes another form, let records make it: "
                "map=lambda x, y: ((x['left'], x['right']), y)."
            )
        try:
            arrays[key] = np.asarray(leaf)
        except ValueError as error:
            raise DataError(f"{key} is not an array: {error}. Give several arrays as a dict by name.") from error
    label = arrays.get("y")
    if label is not None and label.dtype.kind in "iub":
        arrays["y"] = label = as_int64(label)
        if label.size and (label.min() < 0 or (num_classes is not None and label.max() >= num_classes)):
            raise DataError(f"example {i} has the label {label}; labels must lie in 0 .. {num_classes or 'C'} - 1.")
    spec = {key: {"dtype": str(leaf.dtype), "shape": list(leaf.shape)} for key, leaf in arrays.items()}
    if not features:
        for key, leaf in arrays.items():
            if str(leaf.dtype) not in RAW_DTYPES:
                raise DataError(f"{key} has dtype {leaf.dtype}; use one of {', '.join(RAW_DTYPES)}.")
        features.update(spec)
    if spec != features:
        raise DataError(f"example {i} is {spec}, those before are {features}; all must have the same form.")
    return arrays
