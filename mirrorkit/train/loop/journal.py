"""What `launch` is told of a training whose number of workers may change: when it goes on, and how far it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from mirrorkit import journal
from mirrorkit.errors import JobError
from mirrorkit.strategy import is_chief
from mirrorkit.train.callback import LoopCallback
from mirrorkit.train.checkpoints.callback import Checkpoints


class Journal(LoopCallback):
    """Writes a line at the beginning of a fit, when its state is restored, and after each call.

    Args:
        path: of the journal; None on a worker that writes none.
    """

    def __init__(self, path: str | None) -> None:
        super().__init__()
        self._path = path
        self._write(journal.BEGAN, 0)

    def on_train_begin(self, logs: Any = None) -> None:
        """Write where the training goes on; refuse another global batch size than before."""
        before, now = self.loop.position.global_batch_size, self.params["global_batch_size"]
        if before is not None and before != now:
            raise JobError(
                "launch was asked for a number of workers that may change, and the checkpoint has global batches of "
                f"{before} examples; found {now}. Give mk.data.batches a global_batch_size that does not depend on the "
                "number of workers: otherwise the result depends on it."
            )
        self._write(journal.RESTORED, self.loop.position.steps)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Write how many steps are done."""
        self._write(journal.STEPS, self.loop.position.steps)

    def _write(self, what: str, steps: int) -> None:
        if self._path is not None:
            journal.write(self._path, what, steps)


def journals(strategy: Any, callbacks: Sequence[Any]) -> Iterator[Journal]:
    """Yield the callback for a fit, where the job keeps a journal; its chief writes it.

    Raises:
        JobError: the fit keeps no checkpoints, or ends with 0 after one at SIGTERM.
    """
    path = os.environ.get(journal.JOURNAL)
    if not path:
        return
    savers = [callback for callback in callbacks if isinstance(callback, Checkpoints)]
    if not savers:
        raise JobError(
            "launch was asked for a number of workers that may change. Whenever it does, the script starts again, and "
            "this fit keeps no checkpoints to go on from: it would train from the beginning each time. Give it "
            "callbacks=[mk.train.Checkpoints(folder)], or launch with a fixed number of workers."
        )
    if any(saver.exit_code == 0 for saver in savers):
        raise JobError(
            "launch was asked for a number of workers that may change, and Checkpoints(exit_code=0) says after a save "
            "that the script is done. Leave exit_code out."
        )
    yield Journal(path if is_chief(strategy) else None)
