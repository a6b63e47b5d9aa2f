"""Child processes that find this mirrorkit and are ended together with all that they start. Needs no TensorFlow."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

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


def send(process: subprocess.Popen[bytes], number: int = KILL) -> None:
    """Send a signal to a process and to all that it started; does nothing where none of them is left.

    The process must lead a group of its own: `subprocess.Popen(..., start_new_session=True)`.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
