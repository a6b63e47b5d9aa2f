"""Where an export goes, a file or a folder, here or at an address; what may be replaced there, and how."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from mirrorkit.errors import FileError, MirrorkitError, StepError
from mirrorkit.files import replace
from mirrorkit.object_storage import ObjectStorage, is_address

KERAS = ".keras"
_OTHER_FORMATS = (".h5", ".hdf5", ".pb", ".pbtxt", ".tf", ".tflite", ".onnx", ".npz", ".ckpt", ".zip")
_GRAPH = "saved_model.pb"  # without it nothing loads
_SAVED_MODEL = (_GRAPH, "fingerprint.pb", "variables", "assets", "assets.extra", "keras_metadata.pb")
_VALUES = re.compile(r"variables\.(index|data-\d+-of-\d+)")


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
        _replace(target, write)
    elif is_keras_file(target):
        _upload_file(target, write)
    else:
        _upload_folder(target, write)


def _replace(target: Path, write: Callable[[Path], None]) -> None:
    with _errors(target, f"{_UNTOUCHED} Choose a folder with enough space in which you may write.", _OF_DISKS):
        _require_replaceable(target)
        replace(target, write, lambda: _require_replaceable(target))


def _upload_file(address: str, write: Callable[[Path], None]) -> None:
    """Write to a temporary folder, then to the address, where the object is either complete or absent."""
    folder, _, name = address.rpartition("/")
    storage = ObjectStorage(folder)
    with tempfile.TemporaryDirectory(prefix="mirrorkit-") as local:
        path = Path(local, name)
        with _errors(address, _UNTOUCHED, _OF_DISKS):
            write(path)
        with _errors(address, f"{_UNTOUCHED} {_LOOK}"):
            storage.upload(path, name)


def _upload_folder(address: str, write: Callable[[Path], None]) -> None:
    """Write to a temporary folder, then the objects at the address: the graph is removed first and comes last.

    So nothing loads between the two, and what a killed process leaves is never taken for a whole SavedModel.
    """
    storage = ObjectStorage(address)
    with _errors(address, f"{_UNTOUCHED} {_LOOK}"):
        _require_only_a_saved_model(address, storage.paths())
    with tempfile.TemporaryDirectory(prefix="mirrorkit-") as local:
        folder = Path(local, "new")
        with _errors(address, _UNTOUCHED, _OF_DISKS):
            write(folder)
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        with _errors(address, f"{_UNTOUCHED} {_LOOK}"):
            before = storage.paths()
            _require_only_a_saved_model(address, before)
        with _errors(address, f"Nothing loads from there until an export has succeeded. {_LOOK}"):
            for name in (_GRAPH, *(name for name in before if name not in files)):
                storage.remove(name)
            for name in sorted(files, key=lambda name: name == _GRAPH):
                storage.upload(files[name], name)


_OF_DISKS = (OSError, tf.errors.OpError)
_UNTOUCHED = "What was there is as it was."
_LOOK = "Look at the address, at your credentials and at the network."


@contextmanager
def _errors(target: Path | str, state: str, kinds: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    try:
        yield
    except MirrorkitError:
        raise
    except kinds as error:
        kind = "" if isinstance(target, Path) else f"{type(error).__name__}: "
        raise FileError(f"Nothing could be written to {os.fspath(target)!r}: {kind}{error}. {state}") from error


def _require_replaceable(target: Path) -> None:
    """Refuse to replace anything but what an export wrote."""
    text = os.fspath(target)
    if is_keras_file(target):
        if target.is_dir():
            raise StepError(f"{text!r} is a folder. Remove it, or give another name to the file.")
    elif target.is_dir():
        _require_only_a_saved_model(text, _in_folder(target))
    elif target.exists():
        raise StepError(_not_a_saved_model(text))


def _require_only_a_saved_model(place: str, names: Iterable[str]) -> None:
    """Refuse a folder, here or at an address, that holds something which no SavedModel has."""
    names = sorted(names)
    others = [name for name in names if not _is_of_a_saved_model(name)]
    if others and _GRAPH not in names:
        raise StepError(_not_a_saved_model(place))
    if others:
        raise StepError(
            f"{place!r} holds {others[0]!r} beside a SavedModel, which would be deleted with it. Export to a folder of "
            "its own, or move what does not belong to the SavedModel away."
        )


def _not_a_saved_model(place: str) -> str:
    return (
        f"{place!r} exists and is not a SavedModel, so it is not replaced. Name a new folder inside or beside it, or "
        f"end the path in {KERAS} for a file."
    )


def _is_of_a_saved_model(name: str) -> bool:
    top, _, rest = name.partition("/")
    return top in _SAVED_MODEL and not (top == "variables" and rest and not _VALUES.fullmatch(rest))


def _in_folder(folder: Path) -> list[str]:
    """Return the names in a folder, and those in its folder of variables as paths."""
    values = folder / "variables"
    within = [f"variables/{name}" for name in os.listdir(values)] if values.is_dir() else []
    return [*os.listdir(folder), *within]
