"""Names, ports and the other workers of a cluster; plain Python, before TensorFlow would wait for them in silence."""

from __future__ import annotations

import contextlib
import platform
import socket
from collections.abc import Iterator, Mapping

from mirrorkit.cluster import (
    JOB_TOKEN,
    Cluster,
    host_and_port,
    job_token,
    outside_interfaces,
    require_free_port,
    require_hosts,
    wait_for_all,
)
from mirrorkit.doctor import versions
from mirrorkit.doctor.finding import Finding, of_message
from mirrorkit.errors import ClusterError
from mirrorkit.supported import __version__


def hosts(cluster: Cluster, *, seconds: float) -> Iterator[Finding]:
    """Check that all names have addresses, and that this task's own is one of this machine's."""
    require_hosts(cluster, timeout=seconds)
    names = {host_and_port(address)[0] for address in cluster.addresses.values()}
    own = cluster.addresses.get(cluster.task)
    if own is not None and not _is_of_this_machine(host_and_port(own)[0]):
        found = f"{cluster.task} is to run at {own}, which is no address of this machine ({platform.node()})"
        cure = (
            "Is the task's index the right one for this machine? Behind a Kubernetes service or in a container whose "
            "ports are forwarded this may be right."
        )
        yield Finding("hosts", "warning", found, cure)
    else:
        more = ", ..." if len(names) > 4 else ""
        yield Finding("hosts", "ok", f"found the addresses of {', '.join(sorted(names)[:4])}{more}")


def _is_of_this_machine(host: str) -> bool:
    """Return whether a socket can be bound to an address of that name."""
    for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(address)
            return True
    return False


def port(cluster: Cluster) -> Iterator[Finding]:
    """Check that nothing listens yet where this task will."""
    require_free_port(cluster)
    if cluster.task in cluster.addresses:
        yield Finding("port", "ok", f"{cluster.addresses[cluster.task]} is free")


def exposure(cluster: Cluster, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Say who may reach this task once it listens, and whether tasks know each other by a token."""
    own = cluster.addresses.get(cluster.task)
    if own is None:  # an evaluator
        return
    outside = outside_interfaces()
    listens = f"TensorFlow's server will listen at port {host_and_port(own)[1]} of"
    if outside:
        found = f"{listens} all interfaces ({', '.join(outside[:4])}), and does not ask who connects"
        cure = (
            "Close the ports to all but the job's hosts: whoever reaches them runs operations, and reads and writes "
            "files, as this user. docs/security.md says how, for one machine and for several."
        )
        yield Finding("exposure", "warning", found, cure)
    else:
        yield Finding("exposure", "ok", f"{listens} loopback alone, the only interface here")
    token = job_token(environ)
    if cluster.ps:  # they do not meet before TensorFlow starts
        return
    several = len({host_and_port(address)[0] for address in cluster.addresses.values()}) > 1
    if token is not None:
        yield Finding("job token", "ok", "set: workers start with those that have the same alone")
    elif several:
        found = (
            f"{JOB_TOKEN} is not set: whoever reaches the port of {next(iter(cluster.addresses))} can pose as a task"
        )
        cure = "Optional. Set it to the same secret in all tasks: docs/security.md."
        yield Finding("job token", "ok", found, cure)


def workers(cluster: Cluster, *, seconds: float) -> Iterator[Finding]:
    """Wait for all workers, which run the doctor too, and compare their versions; say of each that is missing why."""
    must_agree = {"mirrorkit": __version__, "TensorFlow": versions.tensorflow(), "Keras": versions.installed("keras")}
    try:
        wait_for_all(cluster, timeout=seconds, must_agree=must_agree)
    except ClusterError as error:
        yield of_message("workers", "failure", str(error))
        for task, address in cluster.addresses.items():
            if task != cluster.task and f"{task} ({address})" in str(error) and (why := _silence(address)):
                yield Finding("workers", "failure", f"{task} ({address}): {why[0]}", why[1])
        return
    yield Finding("workers", "ok", f"all {cluster.num_workers} found each other, with the same versions")


def _silence(address: str) -> tuple[str, str] | None:
    """Return why nobody answers at an address, and what to do; None where somebody does."""
    try:
        socket.create_connection(host_and_port(address), timeout=3.0).close()
    except ConnectionRefusedError:
        return (
            "its machine answers, but nothing listens there",
            "Start the doctor there at the same time (under Slurm by srun), and look at its output.",
        )
    except OSError as error:
        return (
            f"its machine does not answer ({error})",
            "Look at the address, whether the machine is up, and at the firewall: every worker needs every port.",
        )
    return None


def on_this_machine(cluster: Cluster) -> int:
    """Return how many tasks that compute have the same host as this one."""
    own = cluster.addresses.get(cluster.task)
    if own is None:
        return 1
    computing = [address for task, address in cluster.addresses.items() if task.startswith("worker")]
    if cluster.chief and not cluster.ps:
        computing.append(cluster.chief)
    return sum(host_and_port(address)[0] == host_and_port(own)[0] for address in computing)
