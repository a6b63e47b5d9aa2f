"""The index of a set, checked field by field: nothing of it is used that does not fit the files beside it."""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.disk import CURE, file_errors, reason
from mirrorkit.data.record_lengths import first_record
from mirrorkit.data.remote_files import RemoteFile, listed, opened, size_of
from mirrorkit.errors import DataError, MirrorkitError
from mirrorkit.whole import is_whole

INDEX_END = ".index.json"
FORMAT = 1
RAW_DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
_LARGEST = 4 << 20  # bytes: the index of 40,000 files
_PARTS = ("x", "y", "sample_weight")
_GZIP_RATIO = 1032  # bytes that a byte of gzip becomes at most
_FRAME = 16  # bytes of a record around its data
_AGAIN = "Write the set again, with mk.data.write_records."


def read_index(path: str) -> dict[str, Any]:
    """Return the content of an index, with the files' full paths.

    Raises:
        DataError: a field that cannot be, or a file that is missing or of another size (named, with what was found).
        FileError: the index or a file cannot be read.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):  # a pipe would be waited for
        raise DataError(f"{path} is no regular file. {_AGAIN}")
    with file_errors(f"{path} cannot be read", CURE), opened(path) as file:
        if (size := file.size()) > _LARGEST:
            raise DataError(f"{path} has {size} bytes; an index has at most {_LARGEST}. {_AGAIN}")
        content = file.read()
    try:
        index = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {type(error).__name__}: {str(error)[:200]}. {_AGAIN}") from error
    try:
        _check(index)
    except _Wrong as wrong:
        raise DataError(f"{path} is damaged: {wrong}. {_AGAIN}") from None
    folder = os.path.dirname(path)
    at_address = {str(file): file for file in listed(folder)} if isinstance(path, RemoteFile) else None
    for entry in index["shards"]:
        name = os.path.join(folder, entry["file"])
        entry["file"] = name if at_address is None else at_address.get(name, name)
        with file_errors(f"{name} cannot be read", CURE):
            is_there = tf.io.gfile.exists(name) if at_address is None else name in at_address
            size = size_of(entry["file"]) if is_there else None
        if size != entry["bytes"]:
            found = "it is missing" if size is None else f"found {size}"
            raise DataError(f"{entry['file']} should hold {entry['bytes']} bytes; {found}. {_AGAIN}")
    return index


def require_features(file: str, compression: str, features: dict[str, Any]) -> None:
    """Compare the first example of a file with what the index says of all.

    Raises:
        DataError: an example of other arrays, or of other sizes; a file that is damaged there.
    """
    try:
        record = first_record(file, compression)
        held = tf.train.Example.FromString(record).features.feature
    except MirrorkitError:  # the file is not to blame
        raise
    except Exception as error:  # TensorFlow's and protobuf's kinds
        why = reason(error) if isinstance(error, tf.errors.OpError) else type(error).__name__
        raise DataError(f"{file} is cut short or damaged after 0 examples: {why}. {_AGAIN}") from error
    for key in sorted({*held, *features}):
        found = [len(value) for value in held[key].bytes_list.value] if key in held else []
        wanted = [_bytes(features[key])] if key in features else []
        if found != wanted:
            says = "no such array"
            if wanted:
                says = f"{features[key]['dtype']} {features[key]['shape']}, {wanted[0]} bytes"
            holds = f"{found[0]} bytes" if found else "nothing"
            raise DataError(f"{file}: an example holds {holds} under {key!r}; the index says {says}. {_AGAIN}")


class _Wrong(Exception):
    """Which field is wrong, what was found and what it should be."""


def _require(fits: bool, field: str, found: Any, wanted: str) -> None:
    if not fits:
        shown = repr(found) if isinstance(found, (str, int, float, bool, type(None))) else type(found).__name__
        raise _Wrong(f"{field} should be {wanted}, found {shown[:80]}")


def _check(index: Any) -> None:
    _require(isinstance(index, dict), "it", index, "a JSON object")
    given = index.get("format")
    if is_whole(given) and given != FORMAT:
        raise _Wrong(f"it has format {given}, this version of mirrorkit reads format {FORMAT}")
    _require(given == FORMAT and is_whole(given), "format", given, str(FORMAT))
    compression, classes = index.get("compression"), index.get("num_classes", "nothing")
    _require(compression in ("", "GZIP"), "compression", compression, "'' or 'GZIP'")
    _require(classes is None or _is_number(classes, 1), "num_classes", classes, "null or a whole number from 1 on")
    features, entries = index.get("features"), index.get("shards")
    _require(isinstance(features, dict) and bool(features), "features", features, "an object of arrays")
    example = sum(_checked_feature(key, feature) for key, feature in features.items())
    parts = [key.partition("/")[0] for key in features]
    single = [key for key in features if "/" not in key]
    is_nest = "x" in parts and all(parts.count(key) == 1 for key in single)
    _require(is_nest, "features", ", ".join(features), "x or x/NAME, and the same of y and sample_weight")
    _require(isinstance(entries, list) and bool(entries), "shards", entries, "a list of files")
    names = set[str]()
    for number, entry in enumerate(entries):
        field = f"shards[{number}]"
        _require(isinstance(entry, dict), field, entry, "an object")
        name, examples, size = (entry.get(key) for key in ("file", "examples", "bytes"))
        crc = entry.get("crc32", 0)  # mirrorkit 0.2 wrote none
        _require(_is_number(crc, 0), f"{field}.crc32", crc, "a whole number from 0 on")
        is_name = isinstance(name, str) and bool(re.fullmatch(r"[^/\\\0]+", name)) and name not in (".", "..")
        _require(is_name, f"{field}.file", name, "the name of a file in the same folder")
        _require(name not in names, f"{field}.file", name, "named once")
        _require(_is_number(examples, 1), f"{field}.examples", examples, "a whole number from 1 on")
        _require(_is_number(size, 1), f"{field}.bytes", size, "a whole number from 1 on")
        most = size * (_GZIP_RATIO if compression else 1)
        least = examples * (_FRAME + example)
        words = f"at most {most // (_FRAME + example)}: {size} bytes hold no more examples of {example} bytes"
        _require(least <= most, f"{field}.examples", examples, words)
        names.add(name)


def _checked_feature(key: str, feature: Any) -> int:
    """Check the name, dtype and shape of an array; return its number of bytes."""
    field = f"features[{key[:40]!r}]"
    part, slash, name = key.partition("/")
    _require(part in _PARTS and bool(slash) == bool(name), field, key, "named x, y, sample_weight, or x/NAME")
    _require(isinstance(feature, dict), field, feature, "an object")
    dtype, shape = feature.get("dtype"), feature.get("shape")
    _require(isinstance(dtype, str) and dtype in RAW_DTYPES, f"{field}.dtype", dtype, f"one of {', '.join(RAW_DTYPES)}")
    fits = isinstance(shape, list) and len(shape) <= 32 and all(_is_number(length, 0) for length in shape)
    _require(fits, f"{field}.shape", shape, "a list of at most 32 whole numbers from 0 on")
    return _bytes(feature)


def _bytes(feature: dict[str, Any]) -> int:
    return math.prod(feature["shape"]) * np.dtype(feature["dtype"]).itemsize


def _is_number(value: Any, least: int) -> bool:
    return is_whole(value, least) and value < 2**48
