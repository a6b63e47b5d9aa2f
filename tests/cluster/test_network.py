"""Messages between the tasks of a cluster, and the network on which they travel."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import pytest
from hypothesis import given, settings, strategies as st

from mirrorkit.cluster import Cluster, free_ports, messages, network, rendezvous
from mirrorkit.cluster.messages import Signature
from mirrorkit.cluster.network import require_network, unreachable
from mirrorkit.errors import ClusterError


def listening():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    return server


def test_known_hosts_and_a_free_port_pass():
    require_network(Cluster(workers=(f"localhost:{free_ports(1)[0]}", "127.0.0.1:1", "[::1]:2")), timeout=5)


def test_a_port_in_use_is_named_with_the_task():
    with listening() as server:
        port = server.getsockname()[1]
        cluster = Cluster(workers=("localhost:1", f"127.0.0.1:{port}"), task_index=1, source="TF_CONFIG")
        with pytest.raises(ClusterError, match=rf"worker 1 .* port {port} .*TF_CONFIG"):
            require_network(cluster)


def test_the_ports_of_others_and_of_an_evaluator_are_not_tried():
    with listening() as server:
        busy = f"127.0.0.1:{server.getsockname()[1]}"
        require_network(Cluster(workers=(f"127.0.0.1:{free_ports(1)[0]}", busy)))
        require_network(Cluster(workers=(busy,), task_type="evaluator"))


def test_hosts_without_an_address_are_named_with_their_tasks(monkeypatch):
    def look_up(host, port):
        if host != "localhost":
            raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    cluster = Cluster(workers=(f"localhost:{free_ports(1)[0]}", "nowhere:1", "nowhere:2"), ps=("lost:1",))
    with pytest.raises(ClusterError, match=r"within 0.2 s for 'nowhere' \(worker 1, worker 2\), 'lost' \(ps 0\)"):
        require_network(cluster, timeout=0.2)


def test_a_name_that_appears_in_time_is_waited_for(monkeypatch, caplog):
    asked = []

    def look_up(host, port):
        asked.append(host)
        if host == "pod-1.service" and asked.count(host) < 2:
            raise socket.gaierror("not yet")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    require_network(Cluster(workers=(f"localhost:{free_ports(1)[0]}", "pod-1.service:1")), timeout=30)
    assert asked.count("pod-1.service") == 2
    assert asked.count("localhost") == 1
    assert "Waiting up to 30 s for the host names pod-1.service" in caplog.text


def test_a_resolver_that_does_not_answer_is_given_up(monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: answer.wait(20))
    start = time.monotonic()
    with pytest.raises(ClusterError, match="'silent'"):
        require_network(Cluster(workers=("silent:1",)), timeout=0.2)
    assert time.monotonic() - start < 10
    answer.set()


def test_who_does_not_listen_is_named_and_who_does_is_not():
    with listening() as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        others = {"worker 1": "localhost:1", "worker 2": "no-such-host.invalid:1"}
        assert unreachable({"ps 0": f"127.0.0.1:{free_ports(1)[0]}", "worker 0": there, **others}) == ["ps 0", *others]


def test_a_machine_too_busy_to_look_in_time_does_not_make_others_unreachable(monkeypatch):
    connect = socket.create_connection

    def late(*args, **options):
        time.sleep(0.4)  # as a thread does which gets no processor
        return connect(*args, **options)

    monkeypatch.setattr(socket, "create_connection", late)
    with listening() as server:
        assert unreachable({"chief": f"127.0.0.1:{server.getsockname()[1]}"}, seconds=0.1) == []


def test_ports_are_free_different_and_below_those_that_linux_hands_out():
    found = set(free_ports(40))
    assert len(found) == 40
    assert max(found) < 32768
    for port in found:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])  # Linux has all of 127.*
def test_ports_in_use_are_left_out(monkeypatch, host):
    with socket.socket() as busy:
        busy.bind((host, 0))
        taken = busy.getsockname()[1]
        monkeypatch.setattr(network, "_PORTS", range(taken, taken + 1))
        with pytest.raises(ClusterError, match="1 free ports"):
            free_ports(1)


NONCES = ("0" * 32, "1" * 32)


def test_what_was_written_is_read():
    values = {"task": "worker 1", "tasks": {"worker 1": "[::1]:2222"}, 'a "quoted" \\ ]]]{{{': ["é", None, 1.5]}
    for token in (None, b"secret"):
        signature = Signature(token, *NONCES)
        message = messages.read(signature.line("guest", values).rstrip(b"\n"))
        assert message.values == values
        assert signature.fits("guest", message)


@pytest.mark.parametrize("other", [(b"other", *NONCES), (b"secret", *NONCES[::-1]), (b"secret", "2" * 32, NONCES[1])])
def test_a_mac_holds_for_one_token_and_one_connection(other):
    line = Signature(b"secret", *NONCES).line("guest", {"task": "worker 1"})
    message = messages.read(line.rstrip(b"\n"))
    assert Signature(b"secret", *NONCES).fits("guest", message)
    assert not Signature(b"secret", *NONCES).fits("host", message)
    assert not Signature(*other).fits("guest", message)
    assert not Signature(None, *NONCES).fits("guest", message)


PIECES = (b"[" * 3000, b'{"":' * 3000, b'"', b"\\ud800", b"\n", b"null", b"1e999", b"\xff", b"x" * 66_000)


def changed(line: bytes, draws: st.DataObject) -> bytes:
    """The line with one to three parts left out, or replaced by pieces or noise."""
    found = bytearray(line)
    for _ in range(draws.draw(st.integers(1, 3))):
        first, end = sorted(draws.draw(st.integers(0, len(found))) for _ in range(2))
        found[first:end] = draws.draw(st.sampled_from(PIECES) | st.binary(max_size=20))
    return bytes(found)


async def last_answer(connection, hello, token):
    reader, writer = await asyncio.open_connection(sock=connection, limit=messages.longest(hello))
    said = "nothing"
    with contextlib.closing(writer):
        async for said in rendezvous._answers(reader, writer, hello, token):
            if said == "go":
                break
    return said


@settings(max_examples=50, deadline=None)
@given(st.data(), st.sampled_from([None, b"secret"]))
def test_a_changed_answer_is_said_or_ends_in_a_named_error(draws, token):
    """What a guest makes of whoever answers at the address of the first task."""
    tasks = {"worker 0": "127.0.0.1:1", "worker 1": "127.0.0.1:2"}
    answer = draws.draw(st.sampled_from([{"waiting for": "worker 2"}, {"error": "worker 0 says: no"}, {"go": True}]))
    line = Signature(None, *NONCES).line("host", answer)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**19)  # nobody reads yet
        theirs.sendall(messages.greeting(NONCES[0]) + changed(line, draws))
        theirs.shutdown(socket.SHUT_WR)
        try:
            said = asyncio.run(last_answer(ours, {"task": "worker 1", "tasks": tasks}, token)).split()[0]
        except ClusterError as error:
            said = "error" if str(error).isprintable() else repr(error)
    assert said in (("go", "error", "is", "nothing") if token is None else ("gave", "nothing"))


def test_a_line_may_be_as_long_as_the_cluster_needs():
    tasks = {f"worker {i}": f"a-long-name-of-a-host-{i}.example.com:2222" for i in range(3000)}
    assert messages.longest({"task": "worker 0"}) == 2**16
    assert messages.longest({"tasks": tasks}) > 3 * len(str(tasks))
