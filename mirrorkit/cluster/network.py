"""What needs the network: free ports, whether the hosts of a cluster have addresses, and whether its tasks listen."""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import logging
import random
import socket
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import wait

from mirrorkit.cluster.cluster import Cluster
from mirrorkit.errors import ClusterError
from mirrorkit.within import started

_log = logging.getLogger("mirrorkit")

# Seconds more for an attempt that has not ended in time: on a busy machine a thread may wait that long for its turn.
_BUSY = 10.0
# Linux takes the local ports of outgoing connections from 32768 on: one of those may be taken before a task starts.
_PORTS = range(12000, 32000)


def free_ports(count: int) -> list[int]:
    """Return different ports of this machine at which nothing listens now, chosen at random."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if len(ports) == count:
            return ports
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))  # as TensorFlow's server will
            ports.append(port)
    raise ClusterError(f"{count} free ports are needed between {_PORTS.start} and {_PORTS.stop}; free some.")


def require_network(cluster: Cluster, *, timeout: float = 10.0) -> None:
    """Refuse a cluster on which TensorFlow would hang: a host without address, or this process's port in use.

    Unknown host names are looked up again until `timeout` (seconds for all names together): the name of a Kubernetes
    pod appears only with the pod.
    """
    look_up = functools.partial(socket.getaddrinfo, port=None)
    deadline = time.monotonic() + timeout
    tasks_by_host: dict[str, list[str]] = {}
    for task, address in cluster.addresses.items():
        tasks_by_host.setdefault(host_and_port(address)[0], []).append(task)
    unknown, has_told = [*tasks_by_host], False
    while (unknown := _failing(look_up, unknown, deadline)) and time.monotonic() < deadline:
        if not has_told:
            _log.warning("Waiting up to %.0f s for the host names %s to become known.", timeout, ", ".join(unknown))
            has_told = True
        time.sleep(0.5)
    if unknown:
        named = ", ".join(f"{host!r} ({', '.join(tasks_by_host[host])})" for host in unknown)
        raise ClusterError(
            f"No address was found within {timeout:g} s for {named} ({cluster.source}). Look for a misspelled host "
            "name; this machine must be able to resolve the names of all tasks."
        )
    if cluster.task in cluster.addresses:  # an evaluator has none
        # At all interfaces, as TensorFlow's server listens, which cannot be told to listen at one.
        _listening(cluster, "").close()


def host_and_port(address: str) -> tuple[str, int]:
    """Split "host:port" or "[::1]:port"."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def unreachable(addresses: Mapping[str, str], *, seconds: float = 2.0) -> list[str]:
    """Return the tasks at whose addresses nothing listens, in the order given.

    All are tried at once. It takes at most `seconds`, and a little more where this machine is busy or a name server
    does not answer.
    """

    def connect(task: str) -> None:
        socket.create_connection(host_and_port(addresses[task]), timeout=seconds).close()

    return _failing(connect, addresses, time.monotonic() + seconds + _BUSY)


def _failing(look: Callable[[str], object], names: Collection[str], deadline: float) -> list[str]:
    """Return the names for which a function fails, or has not returned by the deadline; all at once, in threads.

    The system's resolver has no time limit.
    """
    answers = {name: started(functools.partial(look, name)) for name in names}
    wait(answers.values(), max(0.01, deadline - time.monotonic()))
    return [name for name, answer in answers.items() if not answer.done() or answer.exception()]


def door(cluster: Cluster) -> socket.socket:
    """Return a socket at which the other tasks reach this one.

    It listens at this task's own address where that is an IP address. A host name may mean another interface to other
    machines, and an address may be forwarded to this machine: then the socket listens at all interfaces.
    """
    host, _ = host_and_port(cluster.addresses[cluster.task])
    with contextlib.suppress(ValueError):  # also the error of the second line, which is a `ClusterError`
        ipaddress.ip_address(host)
        return _listening(cluster, host)
    return _listening(cluster, "")


def _listening(cluster: Cluster, interface: str) -> socket.socket:
    """Return a socket that listens at this task's port, at the address of an interface or with "" at all of them."""
    address = cluster.addresses[cluster.task]
    host, port = host_and_port(address)
    both = not interface and socket.has_dualstack_ipv6()  # a name may have addresses of either kind
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    try:
        return socket.create_server((interface, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ClusterError(f"{cluster.task} cannot listen on port {port} ({address}): {error}.") from error
        raise ClusterError(
            f"{cluster.task} should listen on port {port} ({address}, {cluster.source}), but another process of this "
            "machine already does. End it (an earlier run?) or choose another port."
        ) from error
