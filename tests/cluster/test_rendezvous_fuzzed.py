"""Mutated messages, sent over the loopback interface: each is dropped, or ends in a ClusterError; nothing else."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mirrorkit.cluster import Cluster, free_ports, messages, rendezvous
from mirrorkit.errors import ClusterError

MUTATIONS = 3_000
PIECES = (b"[" * 3000, b'{"":' * 3000, b'"', b"\\", b"\\ud800", b"\n", b" ", b"null", b"1e999", b"NaN", b"\xff", b"\0")
GREETING = messages.greeting("0" * 32)


def mutated(chance: random.Random, line: bytes) -> bytes:
    """The line with one to four bytes or pieces changed, left out, doubled or put in."""
    found = bytearray(line)
    for _ in range(chance.randint(1, 4)):
        at, upto = sorted(chance.randrange(len(found) + 1) for _ in range(2))
        kind = chance.randrange(6)
        if kind == 0 and found:
            found[at % len(found)] = chance.randrange(256)
        elif kind == 1:
            del found[at:upto]
        elif kind == 2:
            found[at:at] = found[at:upto]
        elif kind == 3:
            found[at:at] = chance.choice(PIECES)
        elif kind == 4:
            found[at:upto] = chance.randbytes(chance.randrange(20))
        else:
            found += b"x" * chance.choice((1, 100, 100_000))
    return bytes(found)


@contextlib.contextmanager
def bounded(seconds: float, megabytes: float) -> Iterator[None]:
    """Time and memory of all that is within."""
    tracemalloc.start()
    start = time.monotonic()
    try:
        yield
        assert time.monotonic() - start < seconds
        assert tracemalloc.get_traced_memory()[1] < megabytes * 2**20
    finally:
        tracemalloc.stop()


def hello(cluster: Cluster, index: int) -> dict[str, object]:
    return {"task": f"worker {index}", "tasks": cluster.addresses, "TensorFlow": "2.21.0"}


def two() -> Cluster:
    return Cluster(workers=tuple(f"127.0.0.1:{port}" for port in free_ports(2)))


class Host:
    """Worker 0 in a thread, which waits again after each time until `leave` is set."""

    def __init__(self, cluster: Cluster, token: str | None) -> None:
        self.errors: list[ClusterError] = []
        self.others: list[BaseException] = []
        self.met = 0
        self.leave = threading.Event()
        self._cluster, self._environ = cluster, {} if token is None else {"MIRRORKIT_JOB_TOKEN": token}
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.leave.is_set():
            try:
                agree = {"TensorFlow": "2.21.0"}
                rendezvous.wait_for_all(self._cluster, timeout=250, must_agree=agree, environ=self._environ)
                self.met += 1
            except ClusterError as error:
                self.errors.append(error)
            except BaseException as error:
                self.others.append(error)
                return

    def say(self, line: bytes) -> None:
        """Send it from a connection of its own, and wait until it has been dealt with."""
        host, port = self._cluster.workers[0].split(":")
        while not self.others:
            try:
                connection = socket.create_connection((host, int(port)), timeout=20)
            except ConnectionError:  # it has ended with an error, and starts again
                time.sleep(0.01)
                continue
            with connection, contextlib.suppress(OSError):
                connection.sendall(line)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
            return


@pytest.mark.slow
@pytest.mark.parametrize("token", ["secret", None])
def test_mutated_hellos_are_dropped_or_end_in_a_named_error(token, monkeypatch, caplog):
    monkeypatch.setattr(rendezvous, "_HELLO", 600.0)  # a connection is closed since it was dealt with, not by time
    chance, cluster = random.Random(0), two()
    host = Host(cluster, token)
    with bounded(seconds=240, megabytes=20):
        for i in range(MUTATIONS):
            sealed = messages.Signature(None if i % 2 else b"secret", "0" * 32, "1" * 32)
            line = sealed.line("guest", {**hello(cluster, 1), "nonce": "1" * 32})
            host.say(mutated(chance, line))
    assert not host.others
    assert (len(host.errors) == 0) == (token is not None)  # without a token somebody else may pose as a task
    assert all("worker 1" in str(error) and len(str(error)) < 10_000 for error in host.errors)
    assert (host.met == 0) == (token is not None)
    host.leave.set()
    environ = {} if token is None else {"MIRRORKIT_JOB_TOKEN": token}
    guest = replace(cluster, task_index=1)
    rendezvous.wait_for_all(guest, timeout=20, must_agree={"TensorFlow": "2.21.0"}, environ=environ)
    host.thread.join()
    assert not host.others


@pytest.mark.slow
@pytest.mark.parametrize("token", [b"secret", None])
def test_mutated_answers_are_said_or_end_in_a_named_error(token):
    """What a guest makes of whoever answers at the address of the first task."""
    chance, cluster, seen = random.Random(1), two(), set()
    own = json.loads(json.dumps(hello(cluster, 1)))
    signature = messages.Signature(None, "0" * 32, "1" * 32)
    answers = [{"waiting for": "worker 2"}, {"error": "worker 0 says: no"}, {"go": True}]
    with bounded(seconds=240, megabytes=20):
        for i in range(MUTATIONS):
            line = signature.line("host", answers[i % 3])
            said = mutated(chance, GREETING + line) if i % 2 else GREETING + mutated(chance, line)
            ours, theirs = socket.socketpair()
            speaker = threading.Thread(target=_say, args=(theirs, said))
            speaker.start()
            with ours:
                try:
                    seen.add(rendezvous._ask(ours, own, token, time.monotonic() + 20).split()[0])
                except ClusterError as error:
                    seen.add("error" if str(error).isprintable() else repr(error))
            speaker.join()
    expected = {"go", "error", "is", "answers,"} if token is None else {"gave", "answers,"}
    assert seen == expected


def _say(connection: socket.socket, said: bytes) -> None:
    with connection, contextlib.suppress(OSError):
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


@pytest.mark.slow
def test_a_mutated_line_is_read_or_is_not_ours():
    chance = random.Random(2)
    line = messages.Signature(b"t", "0" * 32, "1" * 32).line("guest", {"a": {"b": ['[\\"', 1]}})
    read = 0
    with bounded(seconds=240, megabytes=20):
        for _ in range(MUTATIONS):
            with contextlib.suppress(messages.NotOurs):
                read += isinstance(messages.read(mutated(chance, line)).values, dict)
    assert 0 < read < MUTATIONS
