"""The folder with the data, and the one for checkpoints."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mirrorkit.doctor.finding import Finding
from mirrorkit.errors import MirrorkitError
from mirrorkit.object_storage import ObjectStorage, is_address

_MIB, _GIB = 2**20, 2**30
_PROBE = 16 * _MIB  # what is written to try a folder
_LITTLE = _GIB  # free space below which a warning comes
_MOST_ENTRIES = 10_000  # that are looked at for a file
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def data(named: str, asked_by: str) -> Iterator[Finding]:
    """Check that the folder exists and holds a file that can be read; `asked_by` is an option or a variable."""
    name, folder = "data", Path(named).expanduser()
    if "://" in named:
        yield Finding(name, "warning", f"{named} is not on this machine's disks; not looked at", "Read a file of it.")
        return
    cure = f"Correct {asked_by}; mount the disk, or fetch the data, on every worker."
    try:
        file = folder if folder.is_file() else _first_file(folder)
        if file is None:
            yield Finding(name, "failure", f"{folder} holds no file with anything in it", cure)
            return
        with open(file, "rb") as opened:
            opened.read(65536)
    except FileNotFoundError:
        yield Finding(name, "failure", f"there is no folder {folder}", cure)
    except OSError as error:
        cure = f"{cure} This user must be able to read it."
        yield Finding(name, "failure", f"{folder} cannot be read: {error}", cure)
    else:
        yield Finding(name, "ok", f"{folder}, {file.name} can be read")


def _first_file(folder: Path) -> Path | None:
    """Return a file that is not empty, in the folder or below."""

    def refuse(error: OSError) -> None:
        raise error

    seen = 0
    for parent, _, names in os.walk(folder, onerror=refuse):
        for name in sorted(names):
            seen += 1
            if Path(parent, name).stat().st_size > 0:
                return Path(parent, name)
            if seen > _MOST_ENTRIES:
                return None
    return None


def checkpoints(named: str | os.PathLike[str]) -> Iterator[Finding]:
    """Write to the folder, or to the one in which it will be made, and look at the free space; leave nothing there."""
    name, folder = "checkpoints", Path(named).expanduser().absolute()
    if is_address(named):
        yield _at_an_address(os.fspath(named))
        return
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    cure = "Choose a folder in which you may create files, and on several workers one that all of them see."
    if not there.is_dir():
        yield Finding(name, "failure", f"{there} is a file, not a folder", cure)
        return
    try:
        free = shutil.disk_usage(there).free
        start = time.perf_counter()
        _write(there)
        seconds = time.perf_counter() - start
    except OSError as error:
        full = f"Make room; {_PROBE // _MIB} MiB were tried. " if error.errno in _FULL else ""
        yield Finding(name, "failure", f"{there} cannot be written to: {error}", full + cure)
        return
    where = f"{folder}" if there == folder else f"{folder} (will be made)"
    found = f"{where}, {_PROBE / seconds / 1e6:,.0f} MB/s, {free / _GIB:,.1f} GiB free"
    if free < _LITTLE:
        cure = "Make room, or choose another disk: each checkpoint holds all weights and the optimizer's state."
        yield Finding(name, "warning", found, cure)
    else:
        yield Finding(name, "ok", found)


def _at_an_address(address: str) -> Finding:
    """Write an object, read it, and remove it."""
    name, probe, content = "checkpoints", f".mirrorkit-doctor-{secrets.token_hex(8)}", os.urandom(_MIB)
    try:
        storage = ObjectStorage(address)
        start = time.perf_counter()
        storage.write(probe, content)
        seconds = time.perf_counter() - start
        is_same = storage.read(probe) == content
        storage.remove(probe)
    except MirrorkitError:
        raise
    except Exception as error:  # which kinds there are is the affair of each package
        found = f"{address} cannot be written to: {type(error).__name__}: {error}"
        return Finding(name, "failure", found, "Look at the address, at your credentials and at the network.")
    if not is_same:
        return Finding(name, "failure", f"{address} gives other bytes than were written", "Use another store.")
    return Finding(name, "ok", f"{address}, an object of 1 MiB was written in {seconds:.2g} s, read and removed")


def _write(folder: Path) -> None:
    """Write a file and wait until it is on the disk: quotas and network file systems fail no earlier."""
    with tempfile.TemporaryFile(dir=folder, buffering=0, prefix=".mirrorkit-doctor-") as file:
        left = _PROBE
        block = os.urandom(_MIB)
        while left > 0:
            left -= file.write(block[:left])
        os.fsync(file.fileno())
