"""Items that processes fetch: for a `__getitem__` that computes in Python, of which one process runs one at a time."""

from __future__ import annotations

import contextlib
import pickle
import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mirrorkit.errors import DataError, MirrorkitError, RecipeError
from mirrorkit.fetching.fetcher import Fetcher, Fill
from mirrorkit.fetching.forms import Form, empty
from mirrorkit.fetching.remote import Remote

_CURE = (
    "Define its class in a module of its own that the script imports, and open files in __getitem__, once in each "
    "process, instead of keeping them open in what is copied"
)
_LONGEST = 24 * 3600.0  # seconds until an answer is given up
# They need no accelerator, which TensorFlow would take whole.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}


class Processes:
    """A `Fetcher` in each of several processes, each a new Python interpreter, not a fork of this one.

    Args:
        items: as of `Fetcher`; it is pickled, before the first item is fetched and files are opened for it.
        number: of processes.

    Attributes:
        here: a fetcher in this process.
        form: of an item.

    Raises:
        RecipeError: an object that cannot be pickled, or whose class the script itself defines.
    """

    def __init__(self, items: Any, number: int) -> None:
        self._number, self._name = number, type(items).__name__
        if type(items).__module__ == "__main__":
            raise RecipeError(
                f"processes={number} was asked for, but the class {self._name} is defined in the script itself, which "
                f"the processes do not run. {_CURE}."
            )
        try:
            self._pickled = pickle.dumps(items, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise RecipeError(
                f"processes={number} was asked for, but {self._name} cannot be copied into a process: "
                f"{type(error).__name__}: {error}. {_CURE}; or leave out processes."
            ) from error
        self.here = Fetcher(items)
        self.form = self.here.form

    @contextlib.contextmanager
    def started(self) -> Iterator[tuple[Fill, Callable[[], None]]]:
        """Start the processes, and end them with the block.

        Gives what does the same as `Fetcher.fill`, in a process that is idle, and a function that ends the processes:
        who waits for one of them gets an error.
        """
        arguments = {"pickled": self._pickled, "form": self.form}
        idle: queue.SimpleQueue[Remote] = queue.SimpleQueue()
        remotes = list[Remote]()
        with contextlib.ExitStack() as stack:
            for _ in range(self._number):
                target = "mirrorkit.fetching.served:Served"
                remote = Remote(target, arguments, environment=_ENVIRONMENT, timeout=_LONGEST)
                idle.put(stack.enter_context(remote))
                remotes.append(remote)

            def fill(numbers: np.ndarray, rows: np.ndarray, out: Sequence[np.ndarray]) -> None:
                remote = idle.get()
                try:
                    made = remote.call("arrays", numbers=numbers)
                except MirrorkitError as error:
                    raise DataError(
                        f"A process that fetched items of {self._name} failed at one of {numbers.tolist()[:3]}, ... "
                        f"({len(numbers)}): {error}"
                    ) from error
                finally:
                    idle.put(remote)
                if isinstance(made, DataError):
                    raise made
                for leaf, array in zip(out, made, strict=True):
                    leaf[rows] = array

            def stop() -> None:
                for remote in remotes:
                    remote.end()

            yield fill, stop


class Served:
    """The fetcher in one of the processes."""

    def __init__(self, pickled: bytes, form: Form) -> None:
        self._fetcher = Fetcher(pickle.loads(pickled), form)

    def arrays(self, numbers: np.ndarray) -> list[np.ndarray] | DataError:
        """Return the arrays of these items, or what is wrong with one of them."""
        out = empty(self._fetcher.form, len(numbers))
        try:
            self._fetcher.fill(numbers, np.arange(len(numbers)), out)
        except DataError as error:
            return error.with_traceback(None)
        return out
