from __future__ import annotations

import socket

import pytest

from mirrorkit.cluster import free_ports, ports
from mirrorkit.errors import ClusterError


def test_ports_are_free_different_and_below_those_that_linux_hands_out():
    found = set(free_ports(40))
    assert len(found) == 40
    assert max(found) < 32768
    for port in found:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_ports_in_use_are_left_out(monkeypatch):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        taken = busy.getsockname()[1]
        monkeypatch.setattr(ports, "_PORTS", range(taken, taken + 1))
        with pytest.raises(ClusterError, match="1 free ports are needed"):
            free_ports(1)
