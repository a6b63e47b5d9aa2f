from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from mirrorkit.cluster import Cluster
from mirrorkit.cluster.network import unreachable
from mirrorkit.cluster.rendezvous import wait_for_all
from mirrorkit.errors import ClusterError


@pytest.fixture
def cluster():
    """Three workers on ports that are free, as worker 0 sees them."""
    with socket.socket() as a, socket.socket() as b, socket.socket() as c:
        for probe in (a, b, c):
            probe.bind(("127.0.0.1", 0))
        addresses = tuple(f"127.0.0.1:{probe.getsockname()[1]}" for probe in (a, b, c))
    return Cluster(workers=addresses)


def together(*clusters, timeout=20.0, agree=None):
    """What `wait_for_all` ends with in each: None or its error."""

    def one(cluster, must_agree):
        try:
            wait_for_all(cluster, timeout=timeout, must_agree=must_agree)
        except ClusterError as error:
            return str(error)

    with ThreadPoolExecutor(len(clusters)) as pool:
        return list(pool.map(one, clusters, agree or [None] * len(clusters)))


def as_task(cluster, index):
    return replace(cluster, task_index=index)


def test_all_go_when_all_are_there_and_the_port_is_free_at_once(cluster):
    for _ in range(3):  # also right after another time
        assert together(*(as_task(cluster, i) for i in (2, 0, 1)), agree=[{"version": 1}] * 3) == [None] * 3
        with socket.create_server(("127.0.0.1", int(cluster.workers[0].rpartition(":")[2]))):
            pass


def test_a_chief_beside_the_workers_comes_first_and_parameter_servers_stay_out(cluster):
    a, b, c = cluster.workers
    worker = Cluster(workers=(a,), ps=(c,), chief=b)
    assert together(worker, replace(worker, task_type="chief")) == [None, None]


def test_a_task_alone_waits_for_nobody():
    wait_for_all(Cluster(workers=("nowhere:1",)), timeout=0.0)


def test_those_who_do_not_come_are_named_everywhere(cluster):
    errors = together(as_task(cluster, 0), as_task(cluster, 2), timeout=1.5)
    for error in errors:
        assert f"worker 1 ({cluster.workers[1]}) did not start within 1.5 s; 2 of 3 tasks are there" in error
        assert "worker 2" not in error


def test_a_first_task_that_does_not_come_is_named(cluster):
    for error in together(as_task(cluster, 1), as_task(cluster, 2), timeout=0.5):
        assert f"for worker 0 ({cluster.workers[0]}), which does not answer" in error


def test_who_gives_up_first_names_those_for_whom_the_first_task_waits(cluster):
    host = threading.Thread(target=together, args=(cluster,), kwargs={"timeout": 2.5})
    host.start()
    (error,) = together(as_task(cluster, 1), timeout=0.5)
    assert f"for worker 0 ({cluster.workers[0]}), which is waiting for worker 2" in error
    host.join()


def test_a_task_that_left_again_is_missing_and_may_come_back(cluster):
    with ThreadPoolExecutor() as pool:
        host = pool.submit(together, cluster)
        (error,) = together(as_task(cluster, 1), timeout=1.0)
        assert "worker 2" in error
        assert not host.done()
        assert together(as_task(cluster, 2), as_task(cluster, 1)) == [None, None]
        assert host.result() == [None]


def test_two_processes_with_the_same_index_are_refused(cluster):
    errors = together(cluster, as_task(cluster, 1), as_task(cluster, 1))
    assert all("Two processes say that they are worker 1" in error for error in errors[:1])
    assert sum("Two processes" in (error or "") for error in errors) >= 2


def test_tasks_that_were_told_different_things_are_refused(cluster):
    other = Cluster(workers=(*cluster.workers[:2], "127.0.0.1:1"), task_index=1)
    for error in together(cluster, other):
        assert "worker 1 was started with other tasks than worker 0" in error
    for error in together(cluster, as_task(cluster, 1), agree=[{"TensorFlow": "2.21"}, {"TensorFlow": "2.20"}]):
        assert "worker 1 was started with other TensorFlow than worker 0: '2.20' instead of '2.21'" in error


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n\r\n", b"no end", b"[1]\n", b"{}\n", b""])
def test_strangers_at_the_port_do_not_disturb(cluster, line):
    def stranger():
        host, _, port = cluster.workers[0].rpartition(":")
        while True:
            try:
                connection = socket.create_connection((host, int(port)), timeout=1)
            except OSError:
                time.sleep(0.02)
                continue
            with connection:
                connection.sendall(line)
                time.sleep(0.3)
                return

    with ThreadPoolExecutor() as pool:
        host = pool.submit(together, cluster)
        pool.submit(stranger).result()
        assert together(*(as_task(cluster, i) for i in (1, 2))) == [None, None]
        assert host.result() == [None]


@pytest.mark.parametrize(
    "answer",
    [pytest.param(b"", marks=pytest.mark.slow), b"HTTP/1.1 400 Bad Request\r\n", json.dumps([1]).encode() + b"\n"],
)
def test_another_program_at_the_address_of_the_first_task_is_told_apart(cluster, answer):
    host, _, port = cluster.workers[0].rpartition(":")
    with socket.create_server((host, int(port))) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        (error,) = together(as_task(cluster, 1), timeout=0.5)
        assert "worker 0" in error
        assert "answers, but" in error
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_unreachable_names_the_tasks_at_whose_address_nobody_listens(cluster):
    host, _, port = cluster.workers[1].rpartition(":")
    with socket.create_server((host, int(port))):
        assert unreachable({**cluster.addresses, "ps 0": "no-such-host.invalid:1"}) == ["worker 0", "worker 2", "ps 0"]
