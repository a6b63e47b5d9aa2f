"""The replicas of a process are traced in turns, each in a thread: where one communicates, the next one goes on.

What Python objects keep of a trace, such as the losses that a layer has added, would then be another replica's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Save = Callable[[], Callable[[], None]]  # saves something, and returns what puts it back

_within = threading.local()


@contextmanager
def keeping(save: Save) -> Iterator[None]:
    """Let what `save` saves be this replica's again whenever it goes on within the block."""
    before = getattr(_within, "save", None)
    _within.save = save
    try:
        yield
    finally:
        _within.save = before


@contextmanager
def switching() -> Iterator[None]:
    """The block communicates, so that other replicas go on within it."""
    save: Save | None = getattr(_within, "save", None)
    put_back = None if save is None else save()
    yield
    if put_back is not None:
        put_back()
