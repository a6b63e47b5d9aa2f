"""Files in folders that other processes use too: what is safe to open, who wrote a file, how one is replaced."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import glob
import json
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from mirrorkit._types import Json

_MOST = 4096  # bytes of a description of a process
_PROCESS = "process"  # the file that says whose an unfinished folder is
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # constants of Linux


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read; refuse anything else of that name, such as a pipe, on which a reader would wait forever.

    Raises:
        ValueError: it is something else.
        OSError: there is none, or no permission.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is not a regular file")
    return os.fdopen(descriptor, "rb")


def create(path: Path, content: bytes) -> None:
    """Make a new file; raise an OSError where there is one of that name, or a link, which is never followed."""
    with open(path, "xb") as file:
        file.write(content)


def this_process(**more: Json) -> bytes:
    """Return a description of this process for a file, for `read_process` and `is_running`, with `more` in it."""
    now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    of_kernel = {"kernel": _kernel(), "started": _started(os.getpid())}
    return json.dumps({"host": platform.node(), "pid": os.getpid(), "since": now, **of_kernel, **more}).encode()


def read_process(path: Path) -> dict[str, Json]:
    """Return what `this_process` gave of the process that wrote a file; empty where there is none or it is damaged."""
    try:
        with open_regular(path) as file:
            found = json.loads(file.read(_MOST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_running(process: dict[str, Json]) -> bool:
    """Return whether a process runs; False where that cannot be seen from here, as on another host.

    The kernel's identity and the time at which the process started tell it from another that got its number later,
    after a restart of a container, say.
    """
    pid, kernel, started = (process.get(key) for key in ("pid", "kernel", "started"))
    if not isinstance(pid, int) or kernel is None or started is None:
        return False
    return kernel == _kernel() and started == _started(pid)


def is_elsewhere(process: dict[str, Json]) -> bool:
    """Return whether a process was one of another host or container, or cannot be looked for."""
    return process.get("kernel") is None or process["kernel"] != _kernel()


def _kernel() -> str | None:
    """Return what tells this boot of this machine, and this container's numbers of processes, from all others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no Linux
        return None


def _started(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks; None where there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine out of this block for the same folder, where its file system has locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def replace(target: Path, write: Callable[[Path], None], check: Callable[[], None]) -> None:
    """Write a file or a folder beside `target`, then give it that name.

    A process that is killed leaves the old one or the new one. Where the file system cannot exchange two folders (some
    network file systems), a kill between two renames leaves the old one beside, and the next call puts it back.

    Args:
        target: what to write; the folder in which it lies is made.
        write: is given the path to write to.
        check: called right before an old `target` is replaced; raises an error where it must stay.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear_up(target)
    beside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        create(beside / _PROCESS, this_process())
        new, old = beside / f"new{target.suffix}", beside / "old"
        write(new)
        check()
        if not target.is_dir():
            os.replace(new, target)
        elif not _exchange(new, target):
            os.rename(target, old)
            try:
                os.rename(new, target)
            except OSError:
                os.rename(old, target)
                raise
    finally:
        _remove(beside)


def _clear_up(target: Path) -> None:
    """Put back or remove what killed processes left of replacing `target`."""
    for name in glob.glob(f".{glob.escape(target.name)}-????????", root_dir=target.parent):
        left = target.parent / name
        process = read_process(left / _PROCESS)
        if process and not is_running(process):
            with contextlib.suppress(OSError):
                if not target.exists():
                    os.rename(left / "old", target)
            _remove(left)
        elif not process:
            with contextlib.suppress(OSError):
                left.rmdir()  # killed before it wrote whose it is


def _remove(beside: Path) -> None:
    """Remove an unfinished folder; that it says whose it is comes last."""
    for name in os.listdir(beside):
        if name != _PROCESS:
            path = beside / name
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.rmtree(beside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two files or folders change names in one step; return False where the system or the file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # no Linux, or a C library without it
        return False
    return rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0
