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
from mirrorkit.fetching.forms import Form
from mirrorkit.fetching.remote import Remote

_CURE = (
    "Define its class in a module of its own that the script imports, and open files in __getitem__, once in each "
    "process, instead of keeping them open in what is copied"
)
_LONGEST = 24 * 3600.0  # seconds until an answer is given up
# They need no accelerator, which TensorFlow would take whole.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}


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
                target = "mirrorkit.fetching.served:served"
                remote = Remote(target, arguments, environment=_ENVIRONMENT, timeout=_LONGEST)
                idle.put(stack.enter_context(remote))
                remotes.append(remote)

            def fill(numbers: np.ndarray, rows: np.ndarray, out: Sequence[np.ndarray]) -> None:
                remote = idle.get()
                try:
                    made = remote.call("arrays", numbers=numbers)
                except DataError:
                    raise
                except MirrorkitError as error:
                    raise DataError(
                        f"A process that fetched items of {type(self.items).__name__} failed at one of "
                        f"{numbers.tolist()[:3]}, ... ({len(numbers)}): {error}"
                    ) from error
                finally:
                    idle.put(remote)
                for leaf, array in zip(out, made, strict=True):
                    leaf[rows] = array

            def stop() -> None:
                for remote in remotes:
                    remote.end()

            yield fill, stop


def served(pickled: bytes, form: Form) -> Fetcher:
    """Return the fetcher of one of the processes."""
    return Fetcher(pickle.loads(pickled), form)
