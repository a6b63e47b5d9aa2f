"""Items that processes fetch: for a `__getitem__` that computes in Python, of which one process runs one at a time."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Pipe
from typing import Any

import numpy as np

from mirrorkit import subprocesses
from mirrorkit.errors import DataError, RecipeError
from mirrorkit.fetching.fetcher import Fetch, Fetcher

_CURE = (
    "Define its class in a module of its own that the script imports, and open files in __getitem__, once in each "
    "process, instead of keeping them open in what is copied"
)


class Processes(Fetcher):
    """Fetches in several processes, each a new Python interpreter, not a fork of this one, or what it is asked here.

    Args:
        items: as of `Fetcher`; it is pickled, before the first item is fetched and files are opened for it.
        number: of processes.

    Raises:
        RecipeError: an object that cannot be pickled, or whose class the script itself defines.
    """

    def __init__(self, items: Any, number: int) -> None:
        name = type(items).__name__
        if type(items).__module__ == "__main__":
            raise RecipeError(
                f"processes={number} was asked for, but the class {name} is defined in the script itself, which "
                f"the processes do not run. {_CURE}."
            )
        try:
            self._pickled = pickle.dumps(items, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise RecipeError(
                f"processes={number} was asked for, but {name} cannot be copied into a process: "
                f"{type(error).__name__}: {error}. {_CURE}; or leave out processes."
            ) from error
        super().__init__(items)
        self._number = number

    @contextlib.contextmanager
    def _fetching(self) -> Iterator[Fetch]:
        """Start the processes, and end them with the block: who waits for one of them gets an error."""
        idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        with contextlib.ExitStack() as stack:
            for _ in range(self._number):
                process = stack.enter_context(_Process())
                process.send((self._pickled, self.form))
                idle.put(process)

            def fetch(numbers: np.ndarray) -> list[np.ndarray]:
                process = idle.get()
                try:
                    return process.answer(numbers)
                finally:
                    idle.put(process)

            yield fetch


class _Process(contextlib.AbstractContextManager["_Process"]):
    """A new Python interpreter that runs `serve.py`, and ends with the block or with this process.

    It is not a `multiprocessing.Process`, which would run a user's script again.
    """

    def __init__(self) -> None:
        variables = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",  # it needs no accelerator, which TensorFlow would take whole
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "PYTHONPATH": os.pathsep.join([entry or os.getcwd() for entry in sys.path]),
        }
        subprocesses.open_standard_streams()
        self._connection, theirs = Pipe()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mirrorkit.fetching.serve", str(number)],
                env=subprocesses.with_mirrorkit(variables),
                start_new_session=True,
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
            )

    def send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended: the missing answer will tell
            self._connection.send(message)

    def answer(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of these items; a DataError says what is wrong with one of them, or with the process."""
        self.send(numbers)
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            some = ", ".join(map(str, numbers[:3]))
            raise DataError(
                f"A process that fetched items {some}, ... ({len(numbers)}) ended with {self._process.wait()}."
            ) from None
        if isinstance(answer, DataError):
            raise answer
        return answer

    def __exit__(self, *_: object) -> None:
        """End the process and whatever it started; a call that waits for it in another thread fails."""
        subprocesses.send(self._process)
        self._process.wait()
