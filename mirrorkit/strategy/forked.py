"""Forked processes: TensorFlow's threads do not live on in them, so that a computation there waits forever."""

from __future__ import annotations

import os

from mirrorkit.errors import StepError

_user: int | None = None  # the process that made a strategy or a loop


def require_own_process(what: str) -> None:
    """Refuse a child that was forked from a process which had begun to use TensorFlow."""
    global _user
    if _user is None:
        _user = os.getpid()
    if _user != os.getpid():
        raise StepError(
            f"{what} was called in process {os.getpid()}, which was forked from process {_user} after that had created "
            "a strategy or a loop. A fork lacks TensorFlow's threads, so it would wait forever. Start new processes, "
            "with multiprocessing.get_context('spawn'), and create strategy and loop there; or fork before."
        )
