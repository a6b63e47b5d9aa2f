"""What runs on a node of a Ray cluster: an actor that holds the room of one worker, and starts its tasks.

The class is an ordinary one until the launcher makes an actor of it.
"""

from __future__ import annotations

import os
import queue
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from mirrorkit.cluster import free_ports
from mirrorkit.launch.process import CALL, Process

_MOST_LINES = 10_000  # that wait to be read; then the script waits to print, as at a full pipe


class Slot:
    """Room for one worker: of each attempt it runs one task.

    Its methods run in threads: `stay` and `read` wait in theirs while others are called.
    """

    def __init__(self) -> None:
        self._told: queue.Queue = queue.Queue(_MOST_LINES)
        self._reading, self._number = threading.Lock(), 0

    def address(self) -> str:
        """Return an address of this node, with a port at which nothing listens now."""
        import ray

        host = ray.util.get_node_ip_address()
        return f"{f'[{host}]' if ':' in host else host}:{free_ports(1)[0]}"

    def stay(self) -> None:
        """Never return: Ray fails the call when this process has ended."""
        threading.Event().wait()

    def start(self, command: Sequence[str], environment: Mapping[str, str], folder: str, call: bytes | None) -> None:
        """Start a task.

        Args:
            command: Python's arguments.
            environment: variables, beside those of the node.
            folder: where it starts; where the node has no such folder, it starts in that of the actor.
            call: the pickled function that the command reads from stdin and calls, if it calls one.
        """
        given = {**os.environ, **environment}
        if call is not None:  # what the function imports may lie where Ray's driver finds it: beside its script
            given |= {CALL: "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        where = folder if os.path.isdir(folder) else None
        with tempfile.TemporaryFile() as stdin:
            stdin.write(call or b"")
            stdin.seek(0)
            self._process = Process(
                [sys.executable, *command], given, lambda *event: self._told.put(event), where, stdin
            )

    def send(self, number: int, started: None) -> None:
        """Send a signal to the task; `started` is what `start` returned, without which Ray does not call this."""
        self._process.send(number)

    def read(self, number: int) -> list[tuple[str, Any]]:
        """Return what the task tells (see `Process`), after a wait for it.

        Each question has a larger number than the one before. The same again means that the answer has got lost.
        """
        with self._reading:
            if number > self._number:
                self._number = number
                self._answer = [self._told.get() for _ in range(self._told.qsize() or 1)]
            return self._answer
