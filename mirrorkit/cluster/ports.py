"""Ports of this machine for tasks that are about to start on it."""

from __future__ import annotations

import random
import socket

from mirrorkit.errors import ClusterError

# Linux takes the local ports of outgoing connections from 32768 on: one of those may be taken before the task starts.
_PORTS = range(12000, 32000)


def free_ports(count: int) -> list[int]:
    """Return different ports of this machine at which nothing listens now, chosen at random."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if len(ports) == count:
            break
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
    if len(ports) < count:
        raise ClusterError(f"{count} free ports are needed between {_PORTS.start} and {_PORTS.stop}; close some.")
    return ports
