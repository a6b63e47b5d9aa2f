"""The replicas of a process are traced in turns, each in a thread: where one communicates, the next one goes on.

What Python objects keep of a trace, such as the losses that a layer has added, would then be another replica's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from mirrorkit.thread_local import ThreadLocal

Save = Callable[[], Callable[[], None]]  # saves something, and returns what puts it back

_within = ThreadLocal(save=None)


def keeping(save: Save) -> AbstractContextManager[None]:
    """Let what `save` saves be this replica's again whenever it goes on within the block."""
    return _within.set(save=save)


@contextmanager
def switching() -> Iterator[None]:
    """The block communicates, so that other replicas go on within it."""
    put_back = None if _within.save is None else _within.save()
    yield
    if put_back is not None:
        put_back()
