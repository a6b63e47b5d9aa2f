"""What two workers send each other in a step, counted: the rows of tables that a batch looks up, not the tables."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

import pytest

_READS = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as one:
    left = int(sys.argv[2])
    while left:
        left -= len(one.recv(left))
    one.sendall(b"7 bytes")
    one.recv(1)
"""


def test_bytes_of_a_connection_to_another_process_are_counted(script):
    """Those of one within this process are not."""
    count = 12_345
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.getsockname()[1]
        within = [stack.enter_context(socket.create_connection(("127.0.0.1", port)))]
        within.append(stack.enter_context(server.accept()[0]))
        process = stack.enter_context(subprocess.Popen([sys.executable, "-c", _READS, str(port), str(count)]))
        one = stack.enter_context(server.accept()[0])
        ends = one.getsockname(), one.getpeername()
        connections = script("bytes_between_workers").connections
        sent, received = connections()[ends]
        assert received == 0
        within[0].sendall(b"not counted")
        one.sendall(bytes(count))
        assert one.recv(7, socket.MSG_WAITALL) == b"7 bytes"
        found = connections()
        assert found[ends] == (sent + count, 7)
        assert not {(own.getsockname(), own.getpeername()) for own in within} & found.keys()
        one.sendall(b".")
        assert process.wait() == 0


@pytest.mark.slow
def test_workers_send_rows_and_not_tables(script):
    """1,024 examples look up 2,048 of 1,200,000 rows of 32 numbers: 0.3 MB, where the tables have 154.

    The smaller table has 24 MiB: in one process Adam would be given its dense gradient.
    """
    benchmark, sizes = script("bytes_between_workers"), script("kinds.models")
    tables = (sizes.USERS + sizes.ITEMS) * sizes.FEATURES * 4
    (dense,) = benchmark.measured("dense", "adagrad", steps=2, epochs=1)
    assert min(dense) > tables, "what is sent is not counted"
    for optimizer in ("adagrad", "adam"):
        (rows,) = benchmark.measured("rows", optimizer, steps=2, epochs=1)
        assert all(0.2e6 < one <= 1e6 for one in rows), (optimizer, rows)
