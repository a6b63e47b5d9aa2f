"""The file of a checkpoint: one .npz that NumPy alone can read, whole or not there at all.

Entry `about` is UTF-8 JSON (format, variables, position, callbacks, arrays); entries `0`, `1`, ... are the values of
the variables and then, from format 2 on, the arrays that callbacks remember. Each carries the CRC of the zip format, by
which damage is found. A dtype that NumPy does not have itself (bfloat16) is stored as
unsigned integers of the same bits.

What has right checksums is believed: whoever may write to the folder decides what is trained on.
"""

from __future__ import annotations

import errno
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from mirrorkit._types import Json
from mirrorkit.errors import CheckpointError, FileError
from mirrorkit.files import open_regular
from mirrorkit.train.checkpoints.callback_states import read_states
from mirrorkit.train.checkpoints.place import Place, steps_of
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.checkpoints.variables import require_same

_FORMAT = 2
_OF_THE_FILE = (None, errno.ENOENT, errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ELOOP)  # gone, or no file


class DamagedError(CheckpointError):
    """A file that cannot be read as a checkpoint; one made before it may be whole."""


def path_of(folder: Path, steps: int) -> Path:
    """Return the path of the checkpoint after so many training steps of the run."""
    return folder / f"step-{steps:010d}.npz"


def write(path: Path, values: Sequence[np.ndarray], about: Json) -> None:
    """Write a new file, and wait until it is on the disk. `about` is what JSON can hold."""
    text = json.dumps({"format": _FORMAT, **about}).encode()
    entries = {"about": np.frombuffer(text, np.uint8)}
    entries |= {str(index): value.view(_stored(value.dtype)) for index, value in enumerate(values)}
    with open(path, "xb") as file:  # never one that a link of this name leads to
        np.savez(file, **entries)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())


def read(path: Path, wanted: Sequence[Json] | None = None, named: str = "") -> tuple[Json, list[np.ndarray]]:
    """Read what `write` wrote: `about`, with the states of callbacks, and the values of the variables.

    Args:
        path: the file.
        wanted: the variables that it is to have, as `describe` gives them.
        named: what to call it in errors; its path by default.

    Raises:
        DamagedError: empty, cut off, changed, or no checkpoint at all.
        CheckpointError: written by a newer version, of other variables than `wanted`, or there is not enough memory.
        FileError: there is no permission to read it, or the disk or the network fails.
    """
    named = named or str(path)
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            about = _read_about(archive, path.name)
            variables = about["variables"]
            if wanted is not None:
                require_same(named, variables, wanted)
            values = []
            for index, described in enumerate([*variables, *about.get("arrays", [])]):
                dtype = tf.as_dtype(described["dtype"]).as_numpy_dtype
                values.append(_read_entry(archive, str(index)).view(dtype))
            if "callbacks" in about:
                about["callbacks"] = read_states(about["callbacks"], values[len(variables) :])
            return about, values[: len(variables)]
    except CheckpointError as error:
        raise CheckpointError(f"{error}" if named in str(error) else f"{named}: {error}") from error
    except MemoryError as error:
        raise CheckpointError(f"{named} may be whole, but does not fit into memory: {error}") from error
    except Exception as error:  # what a changed byte leads to is zipfile's, json's and NumPy's own affair
        if isinstance(error, OSError) and error.errno not in _OF_THE_FILE:
            raise FileError(f"{named} may be whole, but cannot be read: {error}") from error
        raise DamagedError(f"{named} cannot be read: {type(error).__name__}: {error}") from error


def _stored(dtype: np.dtype) -> np.dtype:
    """Return the dtype of NumPy's own that has the same bits."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


def _read_about(archive: zipfile.ZipFile, name: str) -> Json:
    about = json.loads(_read_entry(archive, "about").tobytes())
    if about["format"] > _FORMAT:
        raise CheckpointError(
            f"it has format {about['format']}; this version of mirrorkit reads formats up to {_FORMAT}. Update "
            "mirrorkit."
        )
    steps = Position.from_json(about["position"]).steps
    if Place.finished.fullmatch(name) and steps_of(name) != steps:
        raise ValueError(f"it was made after {steps} steps, which its name does not say")
    return about


def _read_entry(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as entry:
        array = np.lib.format.read_array(entry, allow_pickle=False)
        if entry.read(1):  # the checksum is compared at the end
            raise ValueError(f"{name} is longer than its header says")
    return array
