"""Child processes that find this mirrorkit and are ended together with all that they start. Needs no TensorFlow."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ROOT = str(Path(__file__).resolve().parents[1])
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL, and no process groups


def with_mirrorkit(environment: Mapping[str, str]) -> dict[str, str]:
    """Return these environment variables with this mirrorkit first on PYTHONPATH, whether it is installed or not."""
    path = os.pathsep.join(filter(None, [_ROOT, environment.get("PYTHONPATH")]))
    return {**environment, "PYTHONPATH": path}


def open_standard_streams() -> None:
    """Open those of descriptors 0 to 2 that are closed, as under a daemon or `<&-`; before a pipe for a child is made.

    Else the pipe takes the number, and in the child its standard stream takes the place of the pipe.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(opened)


def start(command: Sequence[str], *, environment: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command as the leader of a process group of its own.

    Args:
        command: the program and its arguments.
        environment: all of its environment variables.
        **options: of `subprocess.Popen`.
    """
    return subprocess.Popen(list(command), env=dict(environment), start_new_session=True, **options)


def send(process: subprocess.Popen[bytes], number: int = KILL) -> None:
    """Send a signal to a process of `start` and to all that it started; does nothing where none of them is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
