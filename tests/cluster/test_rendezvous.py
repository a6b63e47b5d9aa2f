from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from mirrorkit.cluster import Cluster, free_ports, rendezvous
from mirrorkit.cluster.messages import Signature
from mirrorkit.cluster.network import door
from mirrorkit.cluster.rendezvous import wait_for_all
from mirrorkit.errors import ClusterError

GREETING = b"mirrorkit " + b"0" * 32 + b"\n"


@pytest.fixture
def cluster():
    """Three workers on ports that are free, as worker 0 sees them."""
    return three_workers()


def three_workers():
    return Cluster(workers=tuple(f"127.0.0.1:{port}" for port in free_ports(3)))


def at_once(function, cases):
    """What the function returns for each case, with a cluster of its own; most of it is waiting."""
    with ThreadPoolExecutor(len(cases)) as pool:
        return list(pool.map(function, [three_workers() for _ in cases], cases))


def together(*clusters, timeout=20.0, agree=None, tokens=None):
    """What `wait_for_all` ends with in each: None or its error."""

    def one(cluster, must_agree, token):
        try:
            environ = {} if token is None else {"MIRRORKIT_JOB_TOKEN": token}
            wait_for_all(cluster, timeout=timeout, must_agree=must_agree or {}, environ=environ)
        except ClusterError as error:
            return str(error)

    nothing = [None] * len(clusters)
    with ThreadPoolExecutor(len(clusters)) as pool:
        return list(pool.map(one, clusters, agree or nothing, tokens or nothing))


def as_task(cluster, index):
    return replace(cluster, task_index=index)


def test_all_go_when_all_are_there_and_the_port_is_free_at_once(cluster):
    for _ in range(2):  # also right after another time
        assert together(*(as_task(cluster, i) for i in (2, 0, 1)), agree=[{"version": 1}] * 3) == [None] * 3
        with socket.create_server(("127.0.0.1", int(cluster.workers[0].rpartition(":")[2]))):
            pass


def test_a_chief_beside_the_workers_comes_first_and_parameter_servers_stay_out(cluster):
    a, b, c = cluster.workers
    worker = Cluster(workers=(a,), ps=(c,), chief=b)
    assert together(worker, replace(worker, task_type="chief")) == [None, None]


def test_a_task_alone_waits_for_nobody():
    wait_for_all(Cluster(workers=("nowhere:1",)), timeout=0.0, must_agree={})


def test_those_who_do_not_come_are_named_everywhere(cluster):
    errors = together(as_task(cluster, 0), as_task(cluster, 2), timeout=3.0)
    for error in errors:
        assert f"worker 1 ({cluster.workers[1]}) did not start within 3 s; 2 of 3 tasks are there" in error
        assert "worker 2" not in error


def test_tasks_whose_lists_differ_say_soon_where_each_of_them_waits(cluster, monkeypatch, caplog):
    monkeypatch.setattr(rendezvous, "_PATIENCE", 0.2)
    other = three_workers()  # with another port of worker 0
    together(as_task(cluster, 0), as_task(other, 1), timeout=1.0)
    same = "All tasks need the same list of addresses (TF_CONFIG)."
    for start, end in (
        (f"worker 0 ({cluster.workers[0]}) has been waiting", f"for worker 1, worker 2. {same}"),
        ("worker 1 has been waiting", f"for worker 0 ({other.workers[0]}), which does not answer. {same}"),
    ):
        (said,) = [text for text in caplog.messages if text.startswith(start)]
        assert said.endswith(end)


def test_a_task_that_left_again_is_missing_and_may_come_back(cluster):
    with ThreadPoolExecutor() as pool:
        host = pool.submit(together, cluster)
        (error,) = together(as_task(cluster, 1), timeout=2.0)
        assert "worker 2" in error
        assert not host.done()
        assert together(as_task(cluster, 2), as_task(cluster, 1)) == [None, None]
        assert host.result() == [None]


def test_two_processes_with_the_same_index_are_refused(cluster):
    errors = together(cluster, as_task(cluster, 1), as_task(cluster, 1))
    assert all("Two processes say that they are worker 1" in error for error in errors[:1])
    assert sum("Two processes" in (error or "") for error in errors) >= 2


def test_a_task_that_comes_just_after_the_end_is_not_taken_in(cluster):
    async def comes():
        host = rendezvous._Host(cluster, ["worker 1", "worker 2"], {"tasks": cluster.addresses}, None)
        host._met = asyncio.get_running_loop().create_future()
        host._met.set_exception(ClusterError("another was refused"))
        guest = rendezvous._Guest(None, Signature(None, "0" * 32, ""))
        host.guests.append(guest)
        host._welcome(guest, a_hello(cluster))
        host._met.exception()
        return guest.task

    assert asyncio.run(comes()) == ""


def test_tasks_that_were_told_different_things_are_refused(cluster):
    other = Cluster(workers=(*cluster.workers[:2], "127.0.0.1:1"), task_index=1)
    for error in together(cluster, other):
        assert "worker 1 was started with other tasks than worker 0" in error
    for error in together(cluster, as_task(cluster, 1), agree=[{"TensorFlow": "2.21"}, {"TensorFlow": "2.20"}]):
        assert "worker 1 was started with other TensorFlow than worker 0: '2.20' instead of '2.21'" in error


def connected(cluster):
    """A connection to worker 0 as soon as it listens."""
    host, _, port = cluster.workers[0].rpartition(":")
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=5)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def waiting(cluster):
    """`waiting(timeout)` lets worker 0 wait in a thread; its result is what it ends with."""
    with ThreadPoolExecutor() as pool:
        yield lambda timeout=30.0, **more: pool.submit(lambda: together(cluster, timeout=timeout, **more)[0])


def a_hello(cluster, index=1, **other):
    hello = {"task": f"worker {index}", "tasks": cluster.addresses, "nonce": "0" * 32, **other}
    return b"- " + json.dumps(hello).encode() + b"\n"


STRANGERS = {
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "no end": b"no end",
    "nothing": b"",
    "a list": b"[1]\n",
    "an object": b"{}\n",
    "another task, signed": b'- {"task": "evil"}\n',
    "a task alone": b'- {"task": "worker 1"}\n',
    "the first task": b'- {"task": "worker 0", "nonce": "%s", "tasks": {}}\n' % (b"0" * 32),
    "no nonce": b'- {"task": "worker 1", "tasks": {"worker 0": "a:1"}}\n',
    "a task of no name": b'- {"task": ["worker 1"], "nonce": "%s", "tasks": {}}\n' % (b"0" * 32),
    "brackets": b"- " + b"[" * 5_000 + b"\n",
    "brackets in a hello": b'- {"task": "worker 1", "tasks": ' + b'{"":' * 900 + b"1" + b"}" * 901 + b"\n",
    "lists in a name": b'- {"nonce": "%s", "task": ' % (b"0" * 32) + b"[" * 900 + b"]" * 900 + b"}\n",
    "no line": b"x" * 1_000_000,
    "no text": b"\xff\xfe\x00" * 10 + b"\n",
    "UTF-16": '- {"task": "worker 1"}\n'.encode("utf-16"),
    "a long number": b'- {"task": ' + b"9" * 60_000 + b"}\n",
}


def test_strangers_at_the_port_do_not_disturb(cluster, waiting, caplog):
    host = waiting()
    for name, said in STRANGERS.items():
        with connected(cluster) as stranger, contextlib.suppress(ConnectionError):
            stranger.sendall(said)
            if name not in ("no end", "nothing"):
                while stranger.recv(1000):  # until worker 0 closes it
                    pass
        assert not host.done(), name
    assert together(*(as_task(cluster, i) for i in (1, 2))) == [None, None]
    assert host.result() is None
    assert "worker 0 dropped a connection from 127.0.0.1, which " in caplog.text
    assert "asyncio" not in {record.name for record in caplog.records}, "an error that nobody handles"
    warned = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len([record for record in warned if "dropped" in record.getMessage()]) == 1


def test_a_stranger_learns_nothing_but_a_nonce(cluster, waiting):
    host = waiting(timeout=0.6)
    with connected(cluster) as stranger:
        stranger.sendall(b"{}\n")
        heard = b"".join(iter(lambda: stranger.recv(1000), b""))
    assert re.fullmatch(rb"mirrorkit [0-9a-f]{32}\n", heard)
    with connected(cluster) as silent:
        assert "worker 1" in host.result()
        assert silent.makefile("rb").read().count(b"\n") == 1  # nothing of the error


def test_a_silent_connection_is_dropped_after_a_while_and_a_task_is_not(cluster, waiting, monkeypatch, caplog):
    monkeypatch.setattr(rendezvous, "_HELLO", 0.3)
    host = waiting()
    with connected(cluster) as silent, connected(cluster) as task:
        task.sendall(a_hello(cluster))
        lines = silent.makefile("rb")
        assert lines.readline().startswith(b"mirrorkit ")
        assert lines.read() == b""
        assert together(as_task(cluster, 2)) == [None]
        assert b'- {"go": true}\n' in task.makefile("rb").read()
    assert host.result() is None
    assert "asyncio" not in {record.name for record in caplog.records}, "a task that does not leave"


def test_a_byte_now_and_then_does_not_prolong_the_wait(cluster, waiting):
    """Not even after a hello, or when all is over and the connections are about to be closed."""
    host = waiting(timeout=0.6)
    with connected(cluster) as slow, connected(cluster) as task:
        task.sendall(a_hello(cluster))
        start = time.monotonic()
        while not host.done():
            assert time.monotonic() - start < 15
            for connection in (slow, task):
                with contextlib.suppress(OSError):
                    connection.send(b"x")
            time.sleep(0.1)
    assert "worker 2" in host.result()


def test_many_open_connections_do_not_keep_a_task_out(cluster, waiting, monkeypatch):
    monkeypatch.setattr(rendezvous, "_STRANGERS", 5)
    host = waiting()
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connected(cluster)) for _ in range(40)]
        ended = 0
        for connection in crowd[:30]:
            ended += connection.makefile("rb").read().startswith(b"mirrorkit")  # the oldest have been dropped
        assert ended == 30
        assert together(*(as_task(cluster, i) for i in (1, 2))) == [None, None]
        assert host.result() is None


ALL = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
OWN = {
    "loopback": (("127.0.0.1:{}", "127.0.0.1:1"), "127.0.0.1"),
    "its own address": (("127.0.0.1:{}", "192.0.2.1:1"), "127.0.0.1"),
    "a name": (("localhost:{}", "localhost:1"), ALL),
    "an address that is forwarded": (("192.0.2.1:{}", "192.0.2.2:1"), ALL),
}


@pytest.mark.parametrize("kind", OWN)
def test_where_the_first_task_listens(kind, cluster):
    addresses, expected = OWN[kind]
    port = cluster.workers[0].rpartition(":")[2]
    with door(Cluster(workers=tuple(address.format(port) for address in addresses))) as listening:
        assert listening.getsockname()[:2] == (expected, int(port))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_tasks_meet_whose_names_have_addresses_of_one_kind(address, monkeypatch, caplog):
    if address == "::1" and ALL != "::":
        pytest.skip("there is no IPv6 here")
    look_up = socket.getaddrinfo
    mine = {"node-a": address, "node-b": address}
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **kw: look_up(mine.get(host, host), *rest, **kw))
    first, second = free_ports(2)
    cluster = Cluster(workers=(f"node-a:{first}", f"node-b:{second}"))
    with ThreadPoolExecutor() as pool:
        host = pool.submit(together, cluster)
        with contextlib.suppress(ConnectionError), connected(cluster) as stranger:
            stranger.sendall(STRANGERS["HTTP"])
            while stranger.recv(1000):  # until worker 0 closes it
                pass
        assert together(as_task(cluster, 1)) == [None]
        assert host.result() == [None]
    assert f"dropped a connection from {address}, which" in caplog.text


ANSWERS = [
    [b"HTTP/1.1 400 Bad Request\r\n"],
    [b"[1]\n"],
    [b"x" * 10_000_000],
    [b"mirrorkit no-nonce\n"],
    [GREETING, b"- " + b"[" * 50_000 + b"\n"],
    [GREETING, b"- [1]\n"],
    [GREETING, b"0 {}\n"],
    [GREETING, b"- {}" * 1_000_000],
]


def test_another_program_at_the_address_of_the_first_task_is_told_apart():
    def said_of(cluster, answer):
        with serving(cluster, lambda connection: [connection.sendall(part) for part in answer]):
            return together(as_task(cluster, 1), timeout=0.6)[0]

    for answer, error in zip(ANSWERS, at_once(said_of, ANSWERS), strict=True):
        assert "worker 0" in error
        assert "answers, but" in error, answer[-1][:12]


def test_an_answer_that_comes_byte_by_byte_or_never_does_not_prolong_the_wait():
    def said_of(cluster, case):
        first, bytes_after = case

        def drip(connection):
            connection.sendall(first)
            for _ in range(bytes_after):
                connection.sendall(b"x")
                time.sleep(0.1)

        with serving(cluster, drip):
            start = time.monotonic()
            (error,) = together(as_task(cluster, 1), timeout=0.6)
        return error, time.monotonic() - start

    for error, seconds in at_once(said_of, [(b"", 200), (GREETING, 200), (b"", 0)]):
        assert "answers, but" in error
        assert seconds < 15


def test_what_another_program_says_is_shown_without_control_characters(cluster):
    with serving(cluster, lambda c: c.sendall(GREETING + b'- {"waiting for": "\\u001b[2J\\nyou"}\n')):
        (error,) = together(as_task(cluster, 1), timeout=0.5)
    assert "is waiting for ?[2J?you" in error
    with serving(cluster, lambda c: c.sendall(GREETING + b'- {"error": "\\u001b]0;title\\u0007"}\n')):
        (error,) = together(as_task(cluster, 1), timeout=5)
    assert error == "?]0;title?"


@contextlib.contextmanager
def serving(cluster, answer):
    """Another program at the address of worker 0."""
    host, _, port = cluster.workers[0].rpartition(":")
    with socket.create_server((host, int(port))) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    answer(connection)
                    connection.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


TOKENS = {
    ("a", "b"): ("which gave a wrong job token", "gave no job token, or another one than this task has"),
    ("a", None): ("which gave no job token", "worker 0 says: this task gave no job token"),
    (None, "b"): ("which gave an unexpected job token", "gave no job token, or another one than this task has"),
}


def test_tokens_that_differ_are_named_on_both_sides():
    def ends(cluster, tokens):
        return together(cluster, as_task(cluster, 1), timeout=3.0, tokens=tokens)

    for (host, guest), errors in zip(TOKENS.values(), at_once(ends, list(TOKENS)), strict=True):
        assert re.search(rf"did not start within 3 s.*{host} \(MIRRORKIT_JOB_TOKEN\)", errors[0])
        assert guest in errors[1]
        assert "MIRRORKIT_JOB_TOKEN" in errors[1]


def test_with_a_token_a_stranger_can_neither_end_nor_join_nor_copy(cluster, waiting):
    host = waiting(tokens=["secret"])
    with connected(cluster) as stranger:
        stranger.sendall(a_hello(cluster, 1, tasks={}))
        stranger.makefile("rb").read()
    hello = {"task": "worker 1", "tasks": cluster.addresses, "nonce": "0" * 32}
    copied = Signature(b"secret", "1" * 32, "0" * 32).line("guest", hello)  # overheard
    with connected(cluster) as stranger:
        stranger.sendall(copied)
        stranger.makefile("rb").read()
    assert not host.done()
    assert together(*(as_task(cluster, i) for i in (1, 2)), tokens=["secret"] * 2) == [None, None]
    assert host.result() is None


def test_a_guest_with_a_token_listens_to_no_stranger(cluster):
    with serving(cluster, lambda c: c.sendall(GREETING + b'- {"go": true}\n- {"error": "leave"}\n')):
        (error,) = together(as_task(cluster, 1), timeout=0.5, tokens=["secret"])
    assert "which gave no job token" in error


def test_what_a_visit_was_told_is_not_forgotten_at_the_next_one(cluster):
    """The first visit is told who is missing; the later ones meet somebody who says nothing."""
    answers = [GREETING + b'- {"waiting for": "worker 2"}\n']
    with serving(cluster, lambda c: c.sendall(answers.pop() if answers else b"")):
        (error,) = together(as_task(cluster, 1), timeout=2.0)
    assert not answers
    assert "which is waiting for worker 2" in error


def test_the_token_is_neither_sent_nor_logged(cluster, waiting, caplog):
    caplog.set_level("DEBUG")
    heard = []

    def listen(connection):
        connection.sendall(GREETING)
        heard.append(connection.recv(100_000))

    with serving(cluster, listen):
        (error,) = together(as_task(cluster, 1), timeout=0.5, tokens=["open sesame"])
    assert b"worker 1" in heard[0]
    assert all("sesame" not in text for text in (repr(heard), error, caplog.text))
