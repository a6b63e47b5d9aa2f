"""Meet the other tasks before TensorFlow starts: it waits for a missing one forever, without a word.

The first task listens at its own address, where TensorFlow will listen later; the others connect to it. When all are
there, and were started with the same cluster, it lets them go. Whoever else connects is dropped, and the waiting goes
on; nothing stays open. The messages are in messages.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mirrorkit.cluster import messages
from mirrorkit.cluster.cluster import Cluster, with_addresses
from mirrorkit.cluster.messages import Signature
from mirrorkit.cluster.network import door, host_and_port
from mirrorkit.cluster.variables import JOB_TOKEN, job_token
from mirrorkit.errors import ClusterError

_log = logging.getLogger("mirrorkit")

_PATIENCE = 10.0  # seconds after which to say for whom this task is waiting
_SAME = "All tasks need the same list of addresses (TF_CONFIG)."
_RETRY = 0.2
_VERDICT = 1.0  # seconds more for the first task to say who is missing, which it knows best
_HELLO = 5.0  # seconds that who has connected has to say who it is
_STRANGERS = 64  # connections at the same time, beside those of the tasks, that have not said who they are


def wait_for_all(
    cluster: Cluster,
    *,
    timeout: float,
    must_agree: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Wait until every chief and worker has called this, and check that all describe the same cluster.

    `must_agree` holds more values that must be the same in all tasks, by name, such as the version of TensorFlow. A
    ClusterError names the tasks that did not start, started twice, or were started with other values. Where
    $MIRRORKIT_JOB_TOKEN is set, only tasks that have the same are listened to.
    """
    tasks = [task for task in cluster.addresses if not task.startswith("ps ")]
    if len(tasks) < 2:
        return
    hello = json.loads(json.dumps({"task": cluster.task, "tasks": cluster.addresses, **(must_agree or {})}))
    token = job_token(os.environ if environ is None else environ)
    if cluster.task == tasks[0]:
        _Host(cluster, tasks[1:], hello, token, timeout).wait()
    else:
        _join(cluster, tasks[0], hello, token, timeout)


@dataclass(eq=False)
class _Guest:
    """A connection to the first task."""

    connection: socket.socket
    host: str
    nonce: str  # of this connection, made by the first task
    since: float
    received: bytearray = field(default_factory=bytearray)
    signature: Signature | None = None  # of a guest that has shown itself to be a task of this job

    def tell(self, **values: Any) -> None:
        """Send it a message; where it has left, or does not read, the loop notices."""
        signature = self.signature or Signature(None, self.nonce, "")
        with contextlib.suppress(OSError):
            self.connection.sendall(signature.line("host", values))


class _Host:
    """The first task: waits for the others."""

    def __init__(
        self, cluster: Cluster, others: list[str], hello: dict[str, Any], token: bytes | None, timeout: float
    ) -> None:
        self._cluster = cluster
        self._hello = hello
        self._token = token
        self._timeout = timeout
        self._others = others
        self._limit = messages.longest(hello)
        self._selector = selectors.DefaultSelector()
        self._guests: list[_Guest] = []  # the oldest first
        self._present: dict[str, _Guest] = {}
        self._dropped = ""  # what the first connection was that was dropped; others may come again and again

    def wait(self) -> None:
        start, said = time.monotonic(), False
        with self._selector, door(self._cluster) as listening:
            self._selector.register(listening, selectors.EVENT_READ)
            try:
                while missing := [task for task in self._others if task not in self._present]:
                    waited = time.monotonic() - start
                    if waited > self._timeout:
                        raise ClusterError(self._did_not_come(missing))
                    if waited > _PATIENCE and not said:
                        here = with_addresses({self._cluster.task: self._cluster.addresses[self._cluster.task]})
                        _log.warning("%s has been waiting %.0f s for %s. %s", here, waited, _few(missing), _SAME)
                        said = True
                    for key, _ in self._selector.select(timeout=min(0.5, self._timeout - waited + 0.01)):
                        if key.data is None:
                            self._let_in(listening)
                        elif key.data in self._guests:
                            self._receive(key.data)
                    self._drop_those_who_say_nothing()
                for guest in self._present.values():
                    guest.tell(go=True)
            except ClusterError as error:
                for guest in self._guests:
                    if guest.signature:
                        guest.tell(error=f"{self._cluster.task} says: {error}")
                raise
            finally:
                self._close_all()

    def _let_in(self, listening: socket.socket) -> None:
        try:
            connection, (host, *_) = listening.accept()
        except OSError:  # it has left already, or this process has too many files open
            return
        connection.setblocking(False)
        guest = _Guest(connection, host, messages.new_nonce(), time.monotonic())
        self._guests.append(guest)
        self._selector.register(connection, selectors.EVENT_READ, guest)
        with contextlib.suppress(OSError):
            connection.sendall(messages.greeting(guest.nonce))

    def _receive(self, guest: _Guest) -> None:
        try:
            data = guest.connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        searched = len(guest.received)
        guest.received += data
        if guest in self._present.values():
            if data:
                self._drop(guest, "went on after naming its task")
            else:
                self._forget(guest)  # it left, and may come back
        elif not data:
            self._drop(guest, "left without naming a task")
        else:
            try:
                line = messages.take_line(guest.received, limit=self._limit, searched=searched)
            except messages.NotOurs:
                self._drop(guest, f"sent more than {self._limit} bytes")
            else:
                if line is not None:
                    self._welcome(guest, line)

    def _welcome(self, guest: _Guest, line: bytes) -> None:
        """Take a guest among those present; an error only where a task of this job was started wrongly."""
        me = self._cluster.task
        try:
            message = messages.read(line)
            hello = message.values
            signature = Signature(self._token, guest.nonce, messages.require_nonce(hello.get("nonce")))
            task, tasks = hello.get("task"), hello.get("tasks")
            if not (isinstance(task, str) and isinstance(tasks, dict)):
                raise messages.NotOurs
        except messages.NotOurs:
            self._drop(guest, "sent something else than a task of this version of mirrorkit does")
            return
        if not signature.fits("guest", message):
            gave = "no" if message.mac == messages.UNSIGNED else "a wrong" if self._token else "an unexpected"
            guest.tell(error=f"{me} says: this task gave {gave} job token. Give all tasks the same {JOB_TOKEN}.")
            self._drop(guest, f"gave {gave} job token ({JOB_TOKEN})")
            return
        guest.signature = signature
        if task not in self._others:
            guest.tell(
                error=f"{me} says: there is no other task {messages.printable(task, length=50)!r} in its cluster."
            )
            self._drop(guest, "named a task that is not in this cluster")
            return
        for name, mine in self._hello.items():
            if name != "task" and hello.get(name) != mine:
                theirs = messages.printable(repr(hello.get(name)))
                raise ClusterError(
                    f"{task} was started with other {name} than {me}: {theirs} instead of "
                    f"{messages.printable(repr(mine))}. Start all tasks with the same."
                )
        if task in self._present:
            raise ClusterError(
                f"Two processes say that they are {task}. Give each task its own index, and end what is left of an "
                "earlier run."
            )
        self._present[task] = guest
        missing = [t for t in self._others if t not in self._present]
        for one in self._present.values():
            one.tell(**{"waiting for": _few(missing)})

    def _drop_those_who_say_nothing(self) -> None:
        silent = [guest for guest in self._guests if guest.signature is None]  # the oldest first
        late = time.monotonic() - _HELLO
        for i, guest in enumerate(silent):
            if guest.since < late:
                self._drop(guest, f"named no task within {_HELLO:g} s")
            elif len(silent) - i > _STRANGERS + len(self._others):
                self._drop(guest, "came while too many others had not named a task")

    def _drop(self, guest: _Guest, why: str) -> None:
        if not self._dropped:
            self._dropped = f" {self._cluster.task} dropped a connection from {guest.host}, which {why}."
            _log.warning(self._dropped.strip())
        self._forget(guest)

    def _forget(self, guest: _Guest) -> None:
        self._selector.unregister(guest.connection)
        guest.connection.close()
        self._guests.remove(guest)
        self._present = {task: one for task, one in self._present.items() if one is not guest}

    def _close_all(self) -> None:
        deadline = time.monotonic() + 1.0
        for guest in self._guests:
            with guest.connection:
                # Tasks close first, so that no closed connection of ours keeps the port busy for a while.
                if guest.signature:
                    messages.wait_until_closed(guest.connection, deadline)

    def _did_not_come(self, missing: list[str]) -> str:
        named = with_addresses({task: self._cluster.addresses[task] for task in missing})
        return (
            f"{named} did not start within {self._timeout:g} s; {len(self._present) + 1} of {len(self._others) + 1} "
            f"tasks are there ({self._cluster.source}).{self._dropped} Look at their output; they must run the "
            f"same script and reach {self._cluster.addresses[self._cluster.task]}. A longer start_timeout waits longer."
        )


def _join(cluster: Cluster, first: str, hello: dict[str, Any], token: bytes | None, timeout: float) -> None:
    """Connect to the first task, and try again until it lets this one go."""
    address = cluster.addresses[first]
    start, seen, said = time.monotonic(), "does not answer", False
    while (left := timeout - (time.monotonic() - start)) > 0:
        if (waited := timeout - left) > _PATIENCE and not said:
            where = with_addresses({first: address})
            _log.warning("%s has been waiting %.0f s for %s, which %s. %s", cluster.task, waited, where, seen, _SAME)
            said = True
        answered = False
        try:
            with socket.create_connection(host_and_port(address), timeout=min(2.0, left)) as connection:
                answered = True
                seen = _ask(connection, hello, token, start + timeout + _VERDICT)
        except OSError:
            pass
        if seen == "go":
            return
        time.sleep(max(0.0, min(1.0 if answered else _RETRY, timeout - (time.monotonic() - start))))
    raise ClusterError(
        f"{cluster.task} waited {timeout:g} s for {first} ({address}), which {seen} ({cluster.source}). Look at its "
        "output. Start all tasks together, also after a failure; a longer start_timeout waits longer."
    )


def _ask(connection: socket.socket, hello: dict[str, Any], token: bytes | None, deadline: float) -> str:
    """Send this task's name and wait; returns "go", or the reason why the first task does not start."""
    seen = (
        "answers, but not as a task that is starting (another program, another version of mirrorkit, or the job "
        "already runs without this task)"
    )
    received, nonce, limit = bytearray(), messages.new_nonce(), messages.longest(hello)
    with contextlib.suppress(OSError, messages.NotOurs):  # it left, or is not one of the tasks
        soon = min(deadline, time.monotonic() + _HELLO)
        greeting = messages.next_line(connection, received, limit=limit, deadline=soon)
        signature = Signature(token, messages.nonce_of_greeting(greeting), nonce)
        connection.sendall(signature.line("guest", {**hello, "nonce": nonce}))
        while True:
            line = messages.next_line(connection, received, limit=limit, deadline=deadline)
            message = messages.read(line)
            if not signature.fits("host", message):
                if token is None:
                    break
                return f"gave no job token, or another one than this task has ({JOB_TOKEN}: give all tasks the same)"
            if "error" in message.values:
                raise ClusterError(messages.printable(message.values["error"], length=limit))
            if "go" in message.values:
                return "go"
            seen = f"is waiting for {messages.printable(message.values.get('waiting for'))}"
    return seen


def _few(tasks: list[str]) -> str:
    return ", ".join(tasks[:8]) + (f" and {len(tasks) - 8} more" if len(tasks) > 8 else "")
