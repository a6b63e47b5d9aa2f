from __future__ import annotations

import socket
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorkit.cluster import messages, rendezvous
from mirrorkit.cluster.messages import NotOurs, Signature
from mirrorkit.errors import ClusterError

NONCES = ("0" * 32, "1" * 32)


def nested(depth: int) -> bytes:
    return b'- {"a": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_what_was_written_is_read():
    values = {"task": "worker 1", "tasks": {"worker 1": "[::1]:2222"}, 'a "quoted" \\ ]]]{{{': ["é", None, 1.5]}
    for token in (None, b"secret"):
        signature = Signature(token, *NONCES)
        message = messages.read(signature.line("guest", values).rstrip(b"\n"))
        assert message.values == values
        assert signature.fits("guest", message)


def test_depth_is_bounded_before_anything_is_parsed():
    assert messages.read(nested(16)).values == {"a": [[[[[[[[[[[[[[[]]]]]]]]]]]]]]]}
    closing = b'"]"'  # in a string it closes nothing
    hidden = b'- {"a": ' + b"".join(b"[" + closing + b"," for _ in range(20)) + b"1" + b"]" * 20 + b"}"
    escaped = b'- {"a": "\\"", "b": ' + b"[" * 20 + b"]" * 20 + b"}"
    for line in (nested(17), nested(100_000), hidden, escaped):
        with pytest.raises(NotOurs):
            messages.read(line)
    assert messages.read(b'- {"a": "' + b"[" * 1000 + b'\\""}').values == {"a": "[" * 1000 + '"'}


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
            said = rendezvous._ask(ours, {"task": "worker 1", "tasks": tasks}, token, time.monotonic() + 20).split()[0]
        except ClusterError as error:
            said = "error" if str(error).isprintable() else repr(error)
    assert said in (("go", "error", "is", "answers,") if token is None else ("gave", "answers,"))


def test_a_line_too_long_or_too_late_is_given_up():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        received = bytearray()
        theirs.sendall(b"first\nsecond\n" + b"x" * 200)
        soon = time.monotonic() + 5
        assert messages.next_line(ours, received, limit=100, deadline=soon) == b"first"
        assert messages.next_line(ours, received, limit=100, deadline=soon) == b"second"
        with pytest.raises(NotOurs):
            messages.next_line(ours, received, limit=100, deadline=soon)
        with pytest.raises(TimeoutError):
            messages.next_line(ours, received, limit=1000, deadline=time.monotonic() + 0.05)


def test_a_line_may_be_as_long_as_the_cluster_needs():
    tasks = {f"worker {i}": f"a-long-name-of-a-host-{i}.example.com:2222" for i in range(3000)}
    assert messages.longest({"task": "worker 0"}) == 2**16
    assert messages.longest({"tasks": tasks}) > 3 * len(str(tasks))
