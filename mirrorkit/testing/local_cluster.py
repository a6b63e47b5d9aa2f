"""A cluster with parameter servers inside one process, for tests and notebooks."""

from __future__ import annotations

import dataclasses
import os
import socket
from typing import Any

from mirrorkit.cluster import Cluster
from mirrorkit.errors import ClusterError
from mirrorkit.strategy import start_server

_servers: list[Any] = []  # TensorFlow cannot stop a server; it serves until the process ends


def local_cluster(workers: int = 2, ps: int = 1) -> Cluster:
    """Start workers and parameter servers in this process, on free local ports; return the cluster as its chief.

    ```python
    strategy = mk.strategy.create("parameter_server", cluster=mk.testing.local_cluster(workers=2, ps=1))
    ```

    They share this process's cores, and serve until it ends. Call it before the first tensor of the program.

    Args:
        workers: how many.
        ps: number of parameter servers.

    Raises:
        ClusterError: not at least one of each.
    """
    if workers < 1 or ps < 1:
        raise ClusterError(f"A local cluster needs at least one worker and one ps; found {workers} and {ps}.")
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(1 + workers + ps)]
    chief = Cluster(
        chief=addresses[0],
        workers=tuple(addresses[1 : 1 + workers]),
        ps=tuple(addresses[1 + workers :]),
        task_type="chief",
        source="local_cluster",
    )
    # The servers of one process share its threads, and wait for each other: with too few they wait for ever.
    threads = max(os.cpu_count() or 1, 2 * (workers + ps) + 1)
    for job, count in (("worker", workers), ("ps", ps)):
        for index in range(count):
            task = dataclasses.replace(chief, task_type=job, task_index=index)
            _servers.append(start_server(task, threads=threads))
    return chief


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
