"""Where an export goes, a file or a folder, here or at an address; what may be replaced there, and how."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from mirrorkit.errors import FileError, MirrorkitError, StepError
from mirrorkit.files import replace
from mirrorkit.object_storage import ObjectStorage, is_address

KERAS = ".keras"
_OTHER_FORMATS = (".h5", ".hdf5", ".pb", ".pbtxt", ".tf", ".tflite", ".onnx", ".npz", ".ckpt", ".zip")
_GRAPH = "saved_model.pb"  # without it nothing loads
_OF_A_SAVED_MODEL = re.compile(
    r"saved_model\.pb|fingerprint\.pb|keras_metadata\.pb|variables/variables\.(index|data-.*)|assets(\.extra)?/.*"
)
_OF_DISKS = (OSError, tf.errors.OpError)
_UNTOUCHED = "What was there is as it was."


def checked(path: str | os.PathLike[str]) -> Path | str:
    """Return the path when its name is one that an export has; an address as a string."""
    text = os.fspath(path)
    target = text.rstrip("/") if is_address(text) else Path(path).expanduser()
    suffix = Path(target).suffix
    if suffix != KERAS and suffix.lower() in (KERAS, *_OTHER_FORMATS):
        raise StepError(
            f"export(..., {text!r}): {suffix} is not written. A path that ends in {KERAS} gives a Keras file, "
            "one without an ending a SavedModel folder."
        )
    return target


def is_keras_file(target: Path | str) -> bool:
    """Return whether this is the path of a Keras file, and not of a SavedModel folder."""
    return os.fspath(target).endswith(KERAS)


def put(target: Path | str, write: Callable[[Path], None]) -> None:
    """Write to a path of its own, then put it in the target's place."""
    if isinstance(target, Path):
        with _errors(target, f"{_UNTOUCHED} Choose a folder with enough space in which you may write.", _OF_DISKS):
            replace(target, write, lambda: _require_replaceable(target))
        return
    folder, _, name = target.rpartition("/")
    storage = ObjectStorage(folder if is_keras_file(target) else target)
    with tempfile.TemporaryDirectory(prefix="mirrorkit-") as local:
        path = Path(local, name)
        with _errors(target, _UNTOUCHED, _OF_DISKS):
            write(path)
        if is_keras_file(target):  # an object is either complete or absent
            with _errors(target, _UNTOUCHED):
                storage.upload(path, name)
        else:
            _upload_folder(storage, path)


def _upload_folder(storage: ObjectStorage, folder: Path) -> None:
    """Upload a SavedModel: the graph is removed first and comes last.

    So nothing loads between the two, and what a killed process leaves is never taken for a whole SavedModel.
    """
    with _errors(storage.address, _UNTOUCHED):
        before = storage.paths()
    _require_only_a_saved_model(storage.address, before)
    files = _files_in(folder)
    with _errors(storage.address, "Nothing loads from there until an export has succeeded."):
        for name in (_GRAPH, *(name for name in before if name not in files)):
            storage.remove(name)
        for name in sorted(files, key=lambda name: name == _GRAPH):
            storage.upload(folder / name, name)


@contextmanager
def _errors(target: Path | str, state: str, kinds: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    try:
        yield
    except MirrorkitError:
        raise
    except kinds as error:
        raise FileError(
            f"Nothing could be written to {os.fspath(target)!r}: {type(error).__name__}: {error}. {state}"
        ) from error


def _require_replaceable(target: Path) -> None:
    """Refuse to replace anything but what an export wrote."""
    if target.is_dir() and is_keras_file(target):
        raise StepError(f"{os.fspath(target)!r} is a folder. Remove it, or give another name to the file.")
    if target.is_dir():
        _require_only_a_saved_model(os.fspath(target), _files_in(target))
    elif target.exists() and not is_keras_file(target):
        _require_only_a_saved_model(os.fspath(target), [""])


def _require_only_a_saved_model(place: str, names: Sequence[str]) -> None:
    """Refuse a folder, here or at an address, that holds something which no SavedModel has; "" is a file itself."""
    others = [name for name in names if not _OF_A_SAVED_MODEL.fullmatch(name)]
    if others:
        raise StepError(
            f"{place!r} is not replaced: {others[0] or 'a file'!r} is no part of a SavedModel, and would be deleted. "
            f"Export to a new folder inside or beside it, or end the path in {KERAS} for a file."
        )


def _files_in(folder: Path) -> list[str]:
    """Return the paths of all files in a folder, and in those within."""
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir()]
