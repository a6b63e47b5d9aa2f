"""Files in folders that other processes use too: what is safe to open, who wrote a file, how one is replaced."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from mirrorkit._types import Json
from mirrorkit.within import within

_LONGEST = 3600.0  # seconds; in the block a large file may be fetched


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
    pid, now = os.getpid(), datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    about = {"host": platform.node(), "pid": pid, "since": now, "kernel": _kernel(), "started": _started(pid)}
    return json.dumps({**about, **more}).encode()


def read_process(path: Path) -> dict[str, Json]:
    """Return what `this_process` gave of the process that wrote a file; empty where there is none or it is damaged."""
    try:
        with open_regular(path) as file:
            return dict(json.loads(file.read(4096)))
    except (OSError, TypeError, ValueError, RecursionError):
        return {}


def is_running(process: dict[str, Json]) -> bool:
    """Return whether a process runs; False where that cannot be seen from here, as on another host.

    The kernel's identity and the time at which the process started tell it from another that got its number later,
    after a restart of a container, say.
    """
    started = process.get("started")
    return started is not None and started == _started(process.get("pid")) and not is_elsewhere(process)


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


def _started(pid: Json) -> int | None:
    """Return when a process started, in the kernel's ticks; None where there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()
    except (OSError, TypeError, ValueError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine out of this block for the same folder, where its file system has locks.

    Raises:
        FileError: another one has held it for an hour.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # a pipe would wait for a writer

    def lock() -> None:
        with contextlib.suppress(OSError):  # there are no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)

    try:
        within(f"Another process, which holds the lock of {folder},", _LONGEST, lock)
        yield
    finally:
        os.close(descriptor)


def replace(target: Path, write: Callable[[Path], None], check: Callable[[], None]) -> None:
    """Write a file or a folder beside `target`, then give it that name.

    A file is replaced in one step. A folder takes two renames: a process that is killed between them leaves the old one
    and the new one, both whole, in a hidden folder beside `target`.

    Args:
        target: what to write; the folder in which it lies is made.
        write: is given the path to write to.
        check: called right before an old `target` is replaced; raises an error where it must stay.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}-"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix, ignore_cleanup_errors=True) as beside:
        new, old = Path(beside, f"new{target.suffix}"), Path(beside, "old")
        write(new)
        check()
        if not target.is_dir():
            os.replace(new, target)
            return
        try:
            os.rename(target, old)
            os.rename(new, target)
        except BaseException:  # Ctrl-C, too
            if not target.exists():
                os.rename(old, target)
            raise
