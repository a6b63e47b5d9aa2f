"""Pieces that threads stage: several at the same time, or the next one while one is read."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from typing import Any

from mirrorkit.data.staging import Piece, cache
from mirrorkit.errors import MirrorkitError

THREADS = 16  # downloads at the same time


def staged_in_order(texts: Iterable[bytes]) -> Iterator[str]:
    """Yield the paths of copies of pieces, one after the other; each stays until the next one is asked for."""
    pieces = [Piece.of_text(text.decode()) for text in texts]
    for number, piece in enumerate(pieces):
        with cache().staged(piece) as path:
            stage_ahead(pieces[number + 1 : number + 2])
            yield path


def stage_ahead(pieces: Iterable[Piece]) -> None:
    """Let pieces that will be read soon be downloaded while others are read."""
    for piece in pieces:
        in_background(_stage, piece)


def contents(texts: Iterable[bytes]) -> list[bytes]:
    """Return the bytes of pieces, which are downloaded at the same time where they are not in the cache."""
    pieces = [Piece.of_text(text.decode()) for text in texts]
    futures = [in_background(cache().content, piece) for piece in pieces]
    wait(futures)
    return [future.result() for future in futures]


def _stage(piece: Piece) -> None:
    with contextlib.suppress(MirrorkitError), cache().staged(piece):  # who reads it meets the error
        pass


class _Threads:
    """Threads that do not keep the process from ending."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        for _ in range(THREADS):
            threading.Thread(target=self._work, daemon=True, name="mirrorkit-stage").start()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put((future, call))
        return future

    def _work(self) -> None:
        while True:
            future, call = self._tasks.get()
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


@functools.cache
def _threads() -> _Threads:
    return _Threads()


def in_background(call: Callable[..., Any], *args: Any) -> Future[Any]:
    """Let a thread call a function, after those that were given before."""
    return _threads().submit(functools.partial(call, *args))
