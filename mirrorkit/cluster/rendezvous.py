"""Meet the other tasks before TensorFlow starts: it waits for a missing one forever, without a word.

The first task listens at its own address, where TensorFlow will listen later; the others connect to it. When all are
there, and were started with the same cluster, it lets them go. Messages are lines of JSON; nothing stays open.
"""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any

from mirrorkit.cluster.cluster import Cluster, with_addresses
from mirrorkit.cluster.network import host_and_port
from mirrorkit.errors import ClusterError

_log = logging.getLogger("mirrorkit")

_PATIENCE = 10.0  # seconds after which to say for whom this task is waiting
_RETRY = 0.2
_VERDICT = 1.0  # seconds more for the first task to say who is missing, which it knows best
_LINE = 2**20  # bytes; a line of a cluster of thousands of tasks is shorter


def wait_for_all(cluster: Cluster, *, timeout: float, must_agree: Mapping[str, Any] | None = None) -> None:
    """Wait until every chief and worker has called this, and check that all describe the same cluster.

    `must_agree` holds more values that must be the same in all tasks, by name, such as the version of TensorFlow. A
    ClusterError names the tasks that did not start, started twice, or were started with other values.
    """
    tasks = [task for task in cluster.addresses if not task.startswith("ps ")]
    if len(tasks) < 2:
        return
    hello = {"task": cluster.task, "tasks": cluster.addresses, **(must_agree or {})}
    if cluster.task == tasks[0]:
        _Host(cluster, tasks[1:], hello, timeout).wait()
    else:
        _join(cluster, tasks[0], hello, timeout)


class _Host:
    """The first task: waits for the others."""

    def __init__(self, cluster: Cluster, others: list[str], hello: dict[str, Any], timeout: float) -> None:
        self._cluster = cluster
        self._hello = hello
        self._timeout = timeout
        self._others = others
        self._guests: dict[socket.socket, bytes] = {}  # what each has sent so far
        self._present: dict[str, socket.socket] = {}

    def wait(self) -> None:
        host, port = host_and_port(self._cluster.addresses[self._cluster.task])
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        start, said = time.monotonic(), False
        with socket.create_server(("", port), family=family, backlog=128) as door, selectors.DefaultSelector() as ready:
            ready.register(door, selectors.EVENT_READ)
            try:
                while missing := [task for task in self._others if task not in self._present]:
                    waited = time.monotonic() - start
                    if waited > self._timeout:
                        raise ClusterError(self._did_not_come(missing))
                    if waited > _PATIENCE and not said:
                        _log.warning("%s has been waiting %.0f s for %s", self._cluster.task, waited, _few(missing))
                        said = True
                    for key, _ in ready.select(timeout=min(1.0, self._timeout - waited + 0.01)):
                        self._receive(key.fileobj, door, ready)
                self._tell({"go": True}, self._present.values())
            except ClusterError as error:
                self._tell({"error": f"{self._cluster.task} says: {error}"}, list(self._guests))
                raise
            finally:
                for guest in self._guests:
                    # The guests close first, so that no closed connection of ours keeps the port busy for a while.
                    guest.settimeout(1.0)
                    with guest, contextlib.suppress(OSError):
                        while guest.recv(65536):
                            pass

    def _receive(self, ready: Any, door: socket.socket, selector: selectors.BaseSelector) -> None:
        if ready is door:
            guest, _ = door.accept()
            guest.setblocking(False)
            self._guests[guest] = b""
            selector.register(guest, selectors.EVENT_READ)
            return
        try:
            data = ready.recv(65536)
        except OSError:
            data = b""
        self._guests[ready] += data
        line, complete, _ = self._guests[ready].partition(b"\n")
        if not data or len(self._guests[ready]) > _LINE:  # it left, or is not one of the tasks
            selector.unregister(ready)
            ready.close()
            del self._guests[ready]
            self._present = {task: guest for task, guest in self._present.items() if guest is not ready}
        elif complete and ready not in self._present.values():
            self._welcome(ready, line)

    def _welcome(self, guest: socket.socket, line: bytes) -> None:
        try:
            hello = json.loads(line)
            task = hello["task"]
        except (ValueError, TypeError, KeyError):
            return  # some other program that connects to this port
        for name, mine in self._hello.items():
            if name != "task" and hello.get(name) != mine:
                raise ClusterError(
                    f"{task} was started with other {name} than {self._cluster.task}: {hello.get(name)!r} instead of "
                    f"{mine!r}. Start all tasks with the same."
                )
        if task not in self._others or task in self._present:
            raise ClusterError(
                f"Two processes say that they are {task}. Give each task its own index, and end what is left of an "
                "earlier run."
            )
        self._present[task] = guest
        missing = [t for t in self._others if t not in self._present]
        self._tell({"waiting for": missing}, self._present.values())

    def _tell(self, message: dict[str, Any], guests: Iterable[socket.socket]) -> None:
        for guest in guests:
            with contextlib.suppress(OSError):  # it left; the loop notices
                guest.sendall(json.dumps(message).encode() + b"\n")

    def _did_not_come(self, missing: list[str]) -> str:
        named = with_addresses({task: self._cluster.addresses[task] for task in missing})
        return (
            f"{named} did not start within {self._timeout:g} s; {len(self._present) + 1} of {len(self._others) + 1} "
            f"tasks are there ({self._cluster.source}). Look at their output; they must run the same script and "
            f"reach {self._cluster.addresses[self._cluster.task]}. A longer start_timeout waits longer."
        )


def _join(cluster: Cluster, first: str, hello: dict[str, Any], timeout: float) -> None:
    """Connect to the first task, and try again until it lets this one go."""
    address = cluster.addresses[first]
    start, seen, said = time.monotonic(), "does not answer", False
    while (left := timeout - (time.monotonic() - start)) > 0:
        if timeout - left > _PATIENCE and not said:
            _log.warning("%s has been waiting %.0f s for %s, which %s", cluster.task, timeout - left, first, seen)
            said = True
        try:
            with socket.create_connection(host_and_port(address), timeout=min(2.0, left)) as connection:
                seen = _ask(connection, hello, start + timeout + _VERDICT)
        except OSError:
            pass
        if seen == "go":
            return
        time.sleep(_RETRY)
    raise ClusterError(
        f"{cluster.task} waited {timeout:g} s for {first} ({address}), which {seen} ({cluster.source}). Look at its "
        "output. All tasks must be started together, and after a failure all of them again; a longer start_timeout "
        "waits longer."
    )


def _ask(connection: socket.socket, hello: dict[str, Any], deadline: float) -> str:
    """Say who this is and wait; returns "go", or what there is to say about the first task."""
    seen = "answers, but not as a task that is starting (another program, or the job already runs without this task)"
    connection.sendall(json.dumps(hello).encode() + b"\n")
    with connection.makefile("rb") as lines:
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            try:
                message = json.loads(lines.readline(_LINE))
                if "error" in message:
                    raise ClusterError(message["error"])
                if "go" in message:
                    return "go"
                seen = f"is waiting for {_few(message['waiting for'])}"
            except (OSError, TypeError, KeyError, json.JSONDecodeError):  # it left, or is not one of the tasks
                break
    return seen


def _few(tasks: list[str]) -> str:
    return ", ".join(tasks[:8]) + (f" and {len(tasks) - 8} more" if len(tasks) > 8 else "")
