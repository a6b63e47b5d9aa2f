"""The other end of a `Remote`: `python -m harness.serve FD FOLDER` makes an object and calls it on request.

FD is a socket, over which requests and answers go as pickles. What the object prints goes to its log. FOLDER, for its
temporary files, is removed with the process where the other end was killed, and cannot do it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any


def main() -> None:
    """Serve until the process at the other end has ended."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    os.set_inheritable(int(sys.argv[1]), False)
    connection = Connection(int(sys.argv[1]))
    try:
        target, arguments = connection.recv()
        module, _, name = target.partition(":")
        subject: Any = importlib.import_module(module)
        if name:
            subject = getattr(subject, name)(**arguments)
        for method, arguments in _requests(connection):
            connection.send((getattr(subject, method)(**arguments), None))
    except Exception as error:
        traceback.print_exc()
        sys.stdout.flush()
        text = str(error).strip().partition("\n")[0]
        try:
            connection.send((None, f"{type(error).__name__}: {text[:300]}"))
        except OSError:  # nobody is left at the other end, which may be what was raised: an answer could not be sent
            _end()
        sys.exit(1)
    _end()


def _requests(connection: Connection) -> Iterator[tuple[str, dict[str, Any]]]:
    with contextlib.suppress(EOFError, ConnectionResetError):
        while True:
            yield connection.recv()


def _end_with_parent(parent: int) -> None:
    """Poll for the end of the parent: a call that never returns would not notice it."""
    while os.getppid() == parent:
        time.sleep(1.0)
    _end()


def _end() -> None:
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # a group of its own: see Remote


if __name__ == "__main__":
    main()
