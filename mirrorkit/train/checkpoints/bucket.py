"""Checkpoints at an address, in an object store: without renames, and with readers and writers on many machines.

A checkpoint is an object with the bytes of the file that a folder would hold, and a manifest that names it, with its
length and checksum. The manifest is written last and removed first, and readers look for manifests alone: what they
find is whole. Objects have names of their own, so that one which is written again replaces none that is read.

The object `.owner-NUMBER` with the highest number names the run that owns the address. Where the store creates an
object only if there is none of its name (S3, GCS), two runs that start at once get different numbers.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mirrorkit._types import Json
from mirrorkit.data import crc32
from mirrorkit.errors import CheckpointError, FileError, MirrorkitError
from mirrorkit.files import this_process
from mirrorkit.object_storage import ObjectStorage
from mirrorkit.train.checkpoints import file as checkpoint_file
from mirrorkit.train.checkpoints.file import DamagedError, steps_of
from mirrorkit.train.checkpoints.place import HELD, Found, Place

_MANIFEST = re.compile(r"step-(\d{10,})\.json")
_OBJECT = re.compile(r"step-\d{10,}-[0-9a-f]{16}\.npz")
_OWNER = re.compile(r"\.owner-(\d{6,})")
_ATTEMPTS = 20


class Bucket(Place):
    """The checkpoints at an address."""

    def __init__(self, address: str) -> None:
        self._storage = ObjectStorage(address)
        super().__init__(self._storage.address)
        self._number = 0

    def find(self) -> Sequence[str]:
        """See `Place`."""
        return [f"{self.name}/{manifest}" for manifest in self._manifests()]

    def read(self, found: Found, wanted: Sequence[Json] | None = None) -> tuple[Json, list[np.ndarray]]:
        """See `Place`."""
        name = str(found).rpartition("/")[2]
        with tempfile.TemporaryDirectory(prefix="mirrorkit-") as folder:
            path = Path(folder, name).with_suffix(".npz")
            try:
                manifest = json.loads(self._storage.read(name))
                self._storage.download(manifest["object"], path, manifest["size"])
                if _described(path) != (manifest["size"], manifest["crc32"]):
                    raise ValueError("the object is not the one that its manifest describes")
            except FileNotFoundError as error:
                raise DamagedError(f"{found}: an object is missing: {error}") from error
            except MirrorkitError:
                raise
            except (ValueError, KeyError, TypeError) as error:
                raise DamagedError(f"{found} cannot be read: {type(error).__name__}: {error}") from error
            except Exception as error:  # which kinds there are is the affair of each package
                raise FileError(f"{found} may be whole, but cannot be read: {type(error).__name__}: {error}") from error
            try:
                return checkpoint_file.read(path, wanted)
            except CheckpointError as error:
                raise type(error)(str(error).replace(str(path), str(found))) from error

    def take(self) -> None:
        """See `Place`."""
        try:
            before = self._take()
            kept = {self._object_of(found) for found in self._manifests()}
            for name in self._names():
                if _OBJECT.fullmatch(name) and name not in kept:
                    self._storage.remove(name)
        except MirrorkitError:
            raise
        except Exception as error:
            raise FileError(
                f"Checkpoints cannot be written to {self.name}: {type(error).__name__}: {error}. Look at the address, "
                "at your credentials and at the network."
            ) from error
        self.log_taken_over(before)

    def owner(self) -> dict[str, Json]:
        """See `Place`."""
        return self._owner()[1]

    def write(self, steps: int, values: Sequence[np.ndarray], about: Json) -> None:
        """See `Place`."""
        manifest, name = _manifest_of(steps), f"step-{steps:010d}-{secrets.token_hex(8)}.npz"
        with tempfile.TemporaryDirectory(prefix="mirrorkit-") as folder:
            path = checkpoint_file.path_of(Path(folder), steps)
            checkpoint_file.write(path, values, about)
            size, crc = _described(path)
            self._storage.upload(path, name)
        before = self._object_of(manifest)
        try:
            self.require()
        except CheckpointError:
            self._storage.remove(name)
            raise
        self._storage.write(manifest, json.dumps({"object": name, "size": size, "crc32": crc}).encode())
        if before:
            self._storage.remove(before)

    def keep_newest(self, steps: int, keep: int) -> None:
        """See `Place`."""
        newest = _manifest_of(steps)
        older = [name for name in self._manifests() if steps_of(name) < steps_of(newest)]
        for name in older[keep - 1 :]:
            stored = self._object_of(name)
            self._storage.remove(name)
            if stored:
                self._storage.remove(stored)

    def release(self) -> None:
        """See `Place`."""
        if self.token in HELD:
            HELD.discard(self.token)
            with contextlib.suppress(Exception):  # the next run takes over what stays
                if self._says(self._number).get("token") == self.token:
                    self._storage.remove(_owner_of(self._number))

    def _take(self) -> dict[str, Json]:
        """Write the next `.owner`; return what the one before says."""
        content = this_process(token=self.token)
        for _ in range(_ATTEMPTS):
            number, before = self._owner()
            self.require_free(before)
            if self._storage.create(_owner_of(number + 1), content):
                HELD.add(self.token)
                self._number = number + 1
                for name in self._names():
                    if (found := _OWNER.fullmatch(name)) and int(found[1]) <= number:
                        self._storage.remove(name)
                return before
        raise CheckpointError(f"Other runs keep starting to write checkpoints to {self.name}. End them.")

    def _owner(self) -> tuple[int, dict[str, Json]]:
        """Return the highest number of an owner, and what it says; 0 and nothing where there is none."""
        numbers = [int(found[1]) for found in map(_OWNER.fullmatch, self._names()) if found]
        return (max(numbers), self._says(max(numbers))) if numbers else (0, {})

    def _says(self, number: int) -> dict[str, Json]:
        """Return what an owner says of its process; nothing where there is none of this number, or it is damaged."""
        try:
            return dict(json.loads(self._storage.read(_owner_of(number))))
        except (FileNotFoundError, ValueError):
            return {}

    def _manifests(self) -> list[str]:
        """Return the names of the manifests, the newest first."""
        return sorted(filter(_MANIFEST.fullmatch, self._names()), key=steps_of, reverse=True)

    def _names(self) -> list[str]:
        try:
            return self._storage.names()
        except Exception as error:
            raise FileError(f"{self.name} cannot be read: {type(error).__name__}: {error}.") from error

    def _object_of(self, manifest: str) -> str | None:
        """Return the name of the object that a manifest names; None where there is none, or it is damaged."""
        try:
            return str(json.loads(self._storage.read(manifest))["object"])
        except (FileNotFoundError, ValueError, KeyError):
            return None


def _manifest_of(steps: int) -> str:
    return f"step-{steps:010d}.json"


def _owner_of(number: int) -> str:
    return f".owner-{number:06d}"


def _described(path: Path) -> tuple[int, int]:
    """Return a file's length in bytes and its checksum."""
    return path.stat().st_size, crc32(str(path))
