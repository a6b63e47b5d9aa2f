"""Run a task's script for the launcher, so that the script cannot outlive it.

Run as `python -I -S keeper.py LIFELINE FOLDER COMMAND...`, as the leader of a process group. LIFELINE is the reading
end of a pipe that only the launcher holds open: it closes when the launcher exits, for whatever reason, SIGKILL
included. Then FOLDER goes too, unless it is "".
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import shutil
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1  # Linux: the signal that this process gets when its parent dies


def main() -> None:
    """Run the command; exit with its exit code, 128 + n where signal n killed it."""
    lifeline, folder, *command = sys.argv[1:]
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in numbers:  # before there is a script, they end this process
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # Ray starts its processes with SIGINT blocked
    with_keeper = None  # lets the script end with this process, where the system can
    if sys.platform == "linux":
        with_keeper = functools.partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)
    script = subprocess.Popen(command, preexec_fn=with_keeper)  # no threads yet
    for number in numbers:  # the whole group gets them, and the script decides what to do
        signal.signal(number, lambda *_: None)
    watching = threading.Thread(target=_watch, args=(int(lifeline), folder, script), daemon=True)
    watching.start()
    code = script.wait()
    if select.select([int(lifeline)], [], [], 0)[0]:  # it may have exited since nobody reads what it prints
        watching.join()
    os._exit(code if code >= 0 else 128 - code)


def _watch(lifeline: int, folder: str, script: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        os.read(lifeline, 1)
        script.kill()
        script.wait(5)  # or it might put a new file into the folder
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # this process too


if __name__ == "__main__":
    main()
