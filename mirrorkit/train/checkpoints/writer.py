"""Write checkpoints in the background, one at a time, so that training does not wait for the disk."""

from __future__ import annotations

import warnings
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from mirrorkit import journal
from mirrorkit._types import Json
from mirrorkit.errors import CheckpointError, FileError, MirrorkitError
from mirrorkit.train.checkpoints.place import Place


class Writer:
    """Writes one checkpoint at a time, in a thread of its own; the `keep` newest ones stay."""

    def __init__(self, place: Place, keep: int) -> None:
        self._place, self._keep = place, keep
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def start(self, steps: int, values: list[np.ndarray], about: Json) -> None:
        """Begin to write; call `wait` first."""
        self._pending = self._thread.submit(self._write, steps, values, about)

    def wait(self) -> None:
        """Wait until the last one is written; raise the error when it could not be."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def raise_failure(self) -> None:
        """Raise what `wait` would, if the last write has ended."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def close(self) -> None:
        """Wait for the last write and end the thread; a failure that was not raised yet becomes a warning."""
        try:
            self.wait()
        except (CheckpointError, FileError) as error:
            warnings.warn(str(error), stacklevel=2)
        self._thread.shutdown()

    def _write(self, steps: int, values: list[np.ndarray], about: Json) -> None:
        try:
            self._place.write(steps, values, about)
            journal.saved(steps)
            self._place.keep_newest(steps, self._keep)
        except MirrorkitError:
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError):  # another run's start removed it, or somebody the folder
                self._place.require()
            size = sum(value.nbytes for value in values) / 2**20
            raise FileError(
                f"{self._place.name}/step-{steps:010d}.npz could not be written: {type(error).__name__}: {error}. It "
                f"needs {size:.1f} MiB. The checkpoints before it are whole: make room or fix the folder, then start "
                "again to go on from there."
            ) from error
