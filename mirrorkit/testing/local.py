"""Several replicas, and a cluster with parameter servers, inside one process, for tests and notebooks."""

from __future__ import annotations

import tensorflow as tf

from mirrorkit import processor, strategy
from mirrorkit.arguments import whole_number
from mirrorkit.cluster import Cluster
from mirrorkit.errors import ArgumentError
from mirrorkit.launch import clusters
from mirrorkit.strategy import start_server


def virtual_replicas(n: int, *, kind: str = "mirrored") -> tf.distribute.Strategy:
    """Return a strategy with `n` replicas on virtual CPU devices; split the CPU if TensorFlow has not started.

    ```python
    strategy = mk.testing.virtual_replicas(2)
    print(strategy.num_replicas_in_sync)  # 2
    ```

    Call it at the top of the program with the largest number needed; a later call with fewer takes the first of them.

    Raises:
        DeviceError: TensorFlow has already started with fewer CPU devices.
        StrategyError: an unknown kind, or one that cannot have `n` replicas.
    """
    return strategy.create(kind, devices=f"cpu:{n}")


def local_cluster(workers: int = 2, ps: int = 1) -> Cluster:
    """Start workers and parameter servers in this process, on free local ports; return the cluster as its chief.

    ```python
    strategy = mk.strategy.create("parameter_server", cluster=mk.testing.local_cluster(workers=2, ps=1))
    ```

    They share this process's cores, and serve until it exits. Call it before the first tensor of the program.

    Args:
        workers: how many.
        ps: number of parameter servers.

    Raises:
        ArgumentError: a number of workers below 1, or of parameter servers below 0.
    """
    whole_number("workers", workers, ArgumentError)
    whole_number("ps", ps, ArgumentError, least=0)
    tasks = clusters(workers, ps=ps, chief=True, source="local_cluster")
    # The servers of one process share its threads and wait for each other: with too few they wait forever.
    threads = max(processor.cores(), 2 * (workers + ps) + 1)
    for name, cluster in tasks.items():
        if name != "chief":
            start_server(cluster, threads=threads)
    return tasks["chief"]
