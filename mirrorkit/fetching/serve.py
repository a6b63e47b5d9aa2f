"""Fetches items for another process: `python -m mirrorkit.fetching.serve FD`.

FD is a socket. Over it come, as pickles, the object and the form of its items, then numbers of items; for each of these
their arrays go back, or what is wrong with one of them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from mirrorkit.errors import DataError
from mirrorkit.fetching.fetcher import Fetcher


def main() -> None:
    """Serve until the process at the other end has ended."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    os.set_inheritable(int(sys.argv[1]), False)
    connection, fetcher = Connection(int(sys.argv[1])), None
    with contextlib.suppress(EOFError, OSError):  # nobody is left at the other end
        pickled, form = connection.recv()
        while True:
            numbers = connection.recv()
            try:
                fetcher = fetcher or Fetcher(pickle.loads(pickled), form)
                connection.send(fetcher.arrays(numbers))
            except DataError as error:
                connection.send(error.with_traceback(None))
            except Exception as error:
                connection.send(DataError(f"A process cannot fetch items: {type(error).__name__}: {error}"))
    _end()


def _end_with_parent(parent: int) -> None:
    """Poll for the end of the parent: a call that never returns would not notice it."""
    while os.getppid() == parent:
        time.sleep(1.0)
    _end()


def _end() -> None:
    os.killpg(0, signal.SIGKILL)  # a group of its own: see `Processes`


if __name__ == "__main__":
    main()
