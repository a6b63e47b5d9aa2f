"""Values of a thread that are others within a block: a strategy runs each replica in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class ThreadLocal(threading.local):
    """Attributes that every thread begins with, and that `set` replaces for a block.

    ```python
    from mirrorkit.thread_local import ThreadLocal

    _within = ThreadLocal(alone=False)
    with _within.set(alone=True):
        _within.alone    # True here, and False in other threads
    ```
    """

    def __init__(self, **values: Any) -> None:  # called in each thread, with the same values
        vars(self).update(values)

    @contextmanager
    def set(self, **values: Any) -> Iterator[None]:
        """Let these attributes have these values within the block."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)
