"""Files at an address such as s3://bucket/folder, through fsspec: object stores have no rename and no locks.

An object is either complete or absent. Listings and contents always come from the store, never from a cache: `opened`
asks fsspec to keep none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from mirrorkit.errors import ArgumentError, FileError, MirrorkitError
from mirrorkit.printing import shown
from mirrorkit.within import within

_log = logging.getLogger("mirrorkit")

T = TypeVar("T")

_random = random.Random()  # Keras draws the seeds of layers from the one of the module

_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before a call is made again
# "s3:" in s3://bucket, perhaps after simplecache::; of two letters or more, since C:/ is a drive
_SCHEME = re.compile(r"(?:\w+::)*([A-Za-z][A-Za-z0-9+.-]+):(/.*)", re.DOTALL)
_COPY = "Name a local path, and copy what is written there to the address."
_SILENCE = 120.0  # seconds after which a store counts as one that does not answer
NOT_REMOVED = "is no longer needed and cannot be removed; allow that too where you allow to write"
_SLOWEST = 2**18  # bytes in a second of a file that comes or goes
_FINAL = (MirrorkitError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)


def is_address(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is an address of another file system, such as s3://bucket/folder.

    Raises:
        ArgumentError: it begins as one does, and is none: s3:/bucket, or s3:// alone.
    """
    found = _SCHEME.match(os.fspath(path))
    if found and not re.match(r"//+[^/]", found[2]):
        raise ArgumentError(
            f"{os.fspath(path)!r} begins like an address; an address is {found[1]}://bucket/folder. For a local folder "
            f"of this name write './{os.fspath(path)}'."
        )
    return found is not None


def require_local(what: str, path: str | os.PathLike[str], *, schemes: Collection[str] = (), cure: str = _COPY) -> None:
    """Refuse an address, but for those that begin with one of `schemes`, such as "gs".

    Raises:
        ArgumentError: an address, or what begins as one does.
    """
    if is_address(path) and (text := os.fspath(path)).partition(":")[0] not in schemes:
        others = "".join(f", {scheme}://..." for scheme in sorted(filter(None, schemes)))
        raise ArgumentError(f"{what} writes to local paths{others}; found {text!r}. {cure}")


class ObjectStorage:
    """The objects in one folder at an address; each call is one of `tried`.

    Raises:
        ArgumentError: fsspec, or its package for this kind of address, is not installed, or it knows no such kind.
        FileError: an address that cannot be read.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._system, self._root = opened(self.address)

    def names(self) -> list[str]:
        """Return the names of all objects, without those in folders; none where there is no such folder."""
        try:
            found = tried(self.address, self._system.ls, self._root, detail=True)
        except FileNotFoundError:
            return []
        return sorted(os.path.basename(entry["name"]) for entry in found if entry["type"] == "file")

    def paths(self) -> list[str]:
        """Return the names of all objects, those in folders too, as paths such as "variables/variables.index".

        None where there is no such folder. An object that is at the address itself has the name "".
        """
        try:
            found = tried(self.address, self._system.find, self._root)
        except FileNotFoundError:
            return []
        objects = [path for path in found if not path.endswith("/")]  # empty ones that stand for folders
        return sorted(path.removeprefix(self._root).lstrip("/") for path in objects)

    def read(self, name: str) -> bytes:
        """Return an object's content; raise a FileNotFoundError where there is none."""
        return bytes(self._tried("cat_file", name))

    def write(self, name: str, content: bytes) -> None:
        """Write an object, or replace it."""
        self._tried("pipe_file", name, content, size=len(content))

    def create(self, name: str, content: bytes) -> bool:
        """Write a new object; return whether there was none of that name.

        Of two processes that create one of the same name at once, one succeeds where the store can tell (S3, GCS). The
        `content` must be another in each process: by it a call that was made again knows its own object.
        """
        try:
            self._tried("pipe_file", name, content, mode="create")
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                return self.read(name) == content
            return False
        return True

    def upload(self, path: Path, name: str) -> None:
        """Copy a file to an object."""
        tried(self.address, self._system.put_file, os.fspath(path), f"{self._root}/{name}", size=path.stat().st_size)

    def download(self, name: str, path: Path, size: int) -> None:
        """Copy an object of about this size to a file; raise a FileNotFoundError where there is none."""
        self._tried("get_file", name, os.fspath(path), size=size)

    def remove(self, name: str) -> None:
        """Remove an object, if it is there.

        Raises:
            FileError: that is not allowed.
        """
        try:
            self._tried("rm_file", name)
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise FileError(f"{self.address}/{name} {NOT_REMOVED}: {error}") from error

    def _tried(self, method: str, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of fsspec's file system for an object."""
        return tried(self.address, getattr(self._system, method), f"{self._root}/{name}", *args, **options)


def tried(address: str, call: Callable[..., T], *args: Any, size: int = 0, **options: Any) -> T:
    """Make a call to the store of an address; make it again, with growing waits, where the network lets it fail.

    Args:
        address: which store that is.
        call: what to call, with `args` and `options`.
        size: bytes that come or go.

    Raises:
        FileError: the store has not answered for two minutes, or much longer than so many bytes take.
    """
    seconds = _SILENCE + size / _SLOWEST
    for wait in _WAITS:
        try:
            return _once(address, seconds, call, *args, **options)
        except _FINAL:
            raise
        except Exception as error:  # which kinds there are is the affair of each package
            _log.info("%s: %s: %s; tried again in %g s.", address, type(error).__name__, error, wait)
        time.sleep(wait * _random.uniform(0.5, 1.5))
    return _once(address, seconds, call, *args, **options)


def _once(address: str, seconds: float, call: Callable[..., T], *args: Any, **options: Any) -> T:
    """Make a call; what it raises loses the secrets that a traceback would print."""
    try:
        return within(f"The store of {address}", seconds, lambda: call(*args, **options))
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        if shown(text) == text:
            raise
        kind = next((kind for kind in (*_FINAL, ImportError, ValueError) if isinstance(error, kind)), OSError)
        raise kind(shown(f"{type(error).__name__}: {error}")) from None


def opened(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it, without a slash at the end.

    Raises:
        ArgumentError: fsspec, or its package for this kind of address, is not installed, or it knows no such kind.
        FileError: an address that cannot be read.
    """
    if "::" in address:
        # simplecache takes half a file for a whole one, and blockcache zeros for what did not come
        raise ArgumentError(
            f"{address}: fsspec's caches are not used. Write {address.rpartition('::')[2]}, or copy the data to a disk "
            "once."
        )
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError as error:
        raise ArgumentError(
            f"{address} is read and written by fsspec, which is not installed: pip install fsspec."
        ) from error
    try:
        made = {"auto_mkdir": True} if address.startswith(("file:", "local:")) else {}  # object stores have no folders
        system, root = _once(address, _SILENCE, fsspec.core.url_to_fs, address, use_listings_cache=False, **made)
    except (ImportError, ValueError) as error:  # the first names the package for this kind of address
        raise ArgumentError(f"{address} cannot be opened: {error}.") from error
    except MirrorkitError:
        raise
    except Exception as error:
        raise FileError(f"{address} cannot be opened: {type(error).__name__}: {error}.") from error
    return system, root.rstrip("/")
