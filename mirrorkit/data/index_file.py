"""The index of a set: what `write_records` says of its files, and whether the files beside it are those.

An index is trusted as far as the files confirm it: their sizes, and where these tell it, their numbers of examples.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit.data.disk import CURE, damage_named, file_errors
from mirrorkit.data.remote_files import RemoteFile, listed, opened, size_of
from mirrorkit.errors import DataError

INDEX_END = ".index.json"
FORMAT = 1
RAW_DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
_AGAIN = "Write the set again, with mk.data.write_records."


def read_index(path: str) -> dict[str, Any]:
    """Return the content of an index, with the files' full paths.

    Raises:
        DataError: an index that is damaged, or of another format; a file that is missing or of another size (named,
            with what was found).
        FileError: the index or a file cannot be read.
    """
    with file_errors(f"{path} cannot be read", CURE), opened(path) as file:
        content = file.read()
    folder = os.path.dirname(path)
    with damage_named(path, _AGAIN):  # whatever a changed byte leads to
        index = _parsed(json.loads(content), folder)
    at_address = {str(file): file for file in listed(folder)} if isinstance(path, RemoteFile) else {}
    for entry in index["shards"]:
        name = entry["file"]
        entry["file"] = at_address.get(name, name)
        with file_errors(f"{name} cannot be read", CURE):
            is_there = name in at_address if at_address else tf.io.gfile.exists(name)
            size = size_of(entry["file"]) if is_there else None
        if size != entry["bytes"]:
            found = "it is missing" if size is None else f"found {size}"
            raise DataError(f"{entry['file']} should hold {entry['bytes']} bytes; {found}. {_AGAIN}")
    return index


def _parsed(index: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return the fields that are used, each of its type; raises some error where one is missing, or is something else.

    A file of a set is in the folder of its index, whatever the index says.
    """
    if index["format"] != FORMAT:
        raise ValueError(f"it has format {index['format']!r}, this version of mirrorkit reads format {FORMAT}")
    classes = index["num_classes"]
    features = {
        key: {"dtype": np.dtype(feature["dtype"]).name, "shape": [int(length) for length in feature["shape"]]}
        for key, feature in index["features"].items()
    }
    shards = [
        {
            "file": os.path.join(folder, os.path.basename(entry["file"])),
            "examples": int(entry["examples"]),
            "bytes": int(entry["bytes"]),
            "crc32": entry.get("crc32"),  # mirrorkit 0.2 wrote none
        }
        for entry in index["shards"]
    ]
    if not shards:
        raise ValueError("it names no file")
    return {
        "compression": str(index["compression"]),
        "num_classes": None if classes is None else int(classes),
        "features": features,
        "shards": shards,
    }
