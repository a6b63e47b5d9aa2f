"""The folder with the data, and the one for checkpoints."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mirrorkit.doctor.finding import Finding
from mirrorkit.object_storage import ObjectStorage, is_address

SECONDS = 20.0  # for a check: a network file system may never answer
_SIZE = 16 * 2**20  # bytes that are written to try a folder
_MOST_ENTRIES = 10_000  # that are looked at for a file
_CHOOSE = "Make room, or choose a folder in which you may create files; on several workers one that all of them see."


def data(named: str) -> Iterator[Finding]:
    """Check that the folder exists and holds a file that can be read."""
    if is_address(named):
        yield Finding("data", "ok", f"{named} is not on this machine's disks; not looked at")
        return
    folder = Path(named).expanduser()
    cure = "Correct --data or MIRRORKIT_DATA; mount the disk, or fetch the data, on every worker."
    try:
        file = folder if folder.is_file() else _first_file(folder)
        if file is not None:
            with file.open("rb") as opened:
                opened.read(65536)
    except OSError as error:
        yield Finding("data", "failure", f"{folder} cannot be read: {error}", cure)
        return
    if file is None:
        yield Finding("data", "failure", f"{folder} holds no file with anything in it", cure)
    else:
        yield Finding("data", "ok", f"{folder}, {file.name} can be read")


def _first_file(folder: Path) -> Path | None:
    """Return a file that is not empty, in the folder or below."""
    os.scandir(folder).close()  # raises where there is none, which `rglob` does not
    for file in itertools.islice(folder.rglob("*"), _MOST_ENTRIES):
        if file.is_file() and file.stat().st_size > 0:
            return file
    return None


def checkpoints(named: str) -> Iterator[Finding]:
    """Write to the folder, or to the one in which it will be made, and leave nothing there."""
    if is_address(named):
        yield _at_an_address(named)
        return
    folder = Path(named).expanduser().absolute()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        free = shutil.disk_usage(there).free
        # Written to the end: quotas and network file systems fail no earlier.
        with tempfile.TemporaryFile(dir=there, prefix=".mirrorkit-doctor-") as file:
            file.write(os.urandom(_SIZE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        yield Finding("checkpoints", "failure", f"{there} cannot be written to: {error}", _CHOOSE)
    else:
        where = f"{folder}" if there == folder else f"{folder} (will be made)"
        yield Finding("checkpoints", "ok", f"{where}, {free / 2**30:,.1f} GiB free")


def _at_an_address(address: str) -> Finding:
    """Write an object and remove it."""
    storage, probe = ObjectStorage(address), f".mirrorkit-doctor-{secrets.token_hex(8)}"
    try:
        storage.write(probe, b"x")
        storage.remove(probe)
    except Exception as error:  # which kinds there are is the affair of each package
        found = f"{address} cannot be written to: {type(error).__name__}: {error}"
        return Finding("checkpoints", "failure", found, "Look at the address, at your credentials and at the network.")
    return Finding("checkpoints", "ok", f"{address}: an object was written and removed")
