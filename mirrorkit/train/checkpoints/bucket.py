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
from mirrorkit.train.checkpoints.file import DamagedError
from mirrorkit.train.checkpoints.place import HELD, Place

_OBJECT = re.compile(r"step-\d{10,}-[0-9a-f]{16}\.npz")
_OWNER = re.compile(r"\.owner-(\d{6,})")
_ATTEMPTS = 20


class Bucket(Place):
    """The checkpoints at an address; what is found are manifests."""

    finished = re.compile(r"step-\d{10,}\.json")

    def __init__(self, address: str) -> None:
        self._storage = ObjectStorage(address)
        super().__init__(self._storage.address)
        self._number = 0

    def names(self) -> list[str]:
        """See `Place`."""
        try:
            return self._storage.names()
        except Exception as error:
            raise FileError(f"{self.name} cannot be read: {type(error).__name__}: {error}.") from error

    def read(self, name: str, wanted: Sequence[Json] | None = None) -> tuple[Json, list[np.ndarray]]:
        """See `Place`."""
        found = f"{self.name}/{name}"
        with tempfile.TemporaryDirectory(prefix="mirrorkit-") as folder:
            path = Path(folder, name).with_suffix(".npz")
            try:
                manifest = json.loads(self._storage.read(name))
                self._storage.download(manifest["object"], path, manifest["size"])
                if _described(path) != (manifest["size"], manifest["crc32"]):
                    raise ValueError("the object is not the one that its manifest describes")
            except MirrorkitError:
                raise
            except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
                raise DamagedError(f"{found} cannot be read: {type(error).__name__}: {error}") from error
            except Exception as error:  # which kinds there are is the affair of each package
                raise FileError(f"{found} may be whole, but cannot be read: {type(error).__name__}: {error}") from error
            return checkpoint_file.read(path, wanted, found)

    def owner(self) -> dict[str, Json]:
        """See `Place`."""
        return self._owner()[1]

    def write(self, steps: int, values: Sequence[np.ndarray], about: Json) -> None:
        """See `Place`."""
        manifest, name = f"step-{steps:010d}.json", f"step-{steps:010d}-{secrets.token_hex(8)}.npz"
        with tempfile.TemporaryDirectory(prefix="mirrorkit-") as folder:
            path = Path(folder, name)
            checkpoint_file.write(path, values, about)
            size, crc = _described(path)
            self._storage.upload(path, name)
        before = self._said(manifest).get("object")
        try:
            self.require()
        except CheckpointError:
            self._storage.remove(name)
            raise
        self._storage.write(manifest, json.dumps({"object": name, "size": size, "crc32": crc}).encode())
        if before:
            self._storage.remove(before)

    def remove(self, name: str) -> None:
        """See `Place`."""
        stored = self._said(name).get("object")
        self._storage.remove(name)
        if stored:
            self._storage.remove(stored)

    def release(self) -> None:
        """See `Place`."""
        if self.token in HELD:
            HELD.discard(self.token)
            with contextlib.suppress(Exception):  # the next run takes over what stays
                if self._said(_owner_of(self._number)).get("token") == self.token:
                    self._storage.remove(_owner_of(self._number))

    def _take(self) -> dict[str, Json]:
        """Write the next `.owner`; return what the one before says, when what killed writers left is gone."""
        content = this_process(token=self.token)
        for _ in range(_ATTEMPTS):
            number, before = self._owner()
            self.require_free(before)
            if self._storage.create(_owner_of(number + 1), content):
                HELD.add(self.token)
                self._number = number + 1
                kept = {self._said(manifest).get("object") for manifest in self.find()}
                for name in self.names():
                    found = _OWNER.fullmatch(name)
                    is_older = found is not None and int(found[1]) <= number
                    if is_older or (_OBJECT.fullmatch(name) and name not in kept):
                        self._storage.remove(name)
                return before
        raise CheckpointError(f"Other runs keep starting to write checkpoints to {self.name}. End them.")

    def _owner(self) -> tuple[int, dict[str, Json]]:
        """Return the highest number of an owner, and what it says; 0 and nothing where there is none."""
        number = max((int(found[1]) for found in map(_OWNER.fullmatch, self.names()) if found), default=0)
        return number, self._said(_owner_of(number))

    def _said(self, name: str) -> dict[str, Json]:
        """Return what an owner says of its process, or a manifest of its object; nothing if it is gone or damaged."""
        try:
            return dict(json.loads(self._storage.read(name)))
        except (FileNotFoundError, ValueError):
            return {}


def _owner_of(number: int) -> str:
    return f".owner-{number:06d}"


def _described(path: Path) -> tuple[int, int]:
    """Return a file's length in bytes and its checksum."""
    return path.stat().st_size, crc32(str(path))
