"""Parameter servers hold the variables, workers compute, a chief coordinates.

The same script is started in every task. In a worker or a parameter server it stays in `create` and serves until the
chief has exited, then the process exits too; only in the chief the script goes on. TensorFlow's own runtime does the
work: https://www.tensorflow.org/tutorials/distribute/parameter_server_training
"""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any, NoReturn

import tensorflow as tf

from mirrorkit import processor, stop_signals
from mirrorkit.cluster import Cluster, jobs, require_network, unreachable, with_addresses
from mirrorkit.devices import Devices
from mirrorkit.errors import ClusterError, StrategyError

_log = logging.getLogger("mirrorkit")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CHECK_SECONDS = 1.0  # between two checks whether the chief listens
_CHECKS_UNTIL_EXIT = 3  # so many in a row find nothing at the chief's address: it has exited
_THREADS = "TF_NUM_INTEROP_THREADS"
_LEAST_THREADS = 4  # for the operations of a task: with a single one it waits for another task forever


def build(devices: Devices, cluster: Cluster | None, *, start_timeout: float) -> tuple[tf.distribute.Strategy, str]:
    """Return the strategy in the chief; in a worker or a parameter server serve, and exit the process."""
    if cluster is None or not cluster.ps or not cluster.workers:
        what = "this process is not in a cluster" if cluster is None else f"found {cluster}"
        raise StrategyError(
            f"'parameter_server' needs a cluster with a chief, workers and ps tasks; {what}. Start the script with "
            "`python -m mirrorkit launch --workers 2 --ps 1 script.py`, set TF_CONFIG, or in one process pass "
            "cluster=mk.testing.local_cluster(workers=2, ps=1)."
        )
    if devices is not None:
        raise StrategyError(
            f"devices={devices!r} was asked for, but under 'parameter_server' a worker computes on its GPU, or else "
            "its CPU. Leave devices out, and set CUDA_VISIBLE_DEVICES where the workers are started."
        )
    if cluster.chief is None or cluster.task_type == "evaluator":
        raise ClusterError(
            f"{cluster.source}: with parameter servers the tasks are one chief, which coordinates, workers and ps; "
            f"this is {cluster}. Add the chief's address to the cluster."
        )
    require_network(cluster, timeout=start_timeout)
    if cluster.task_type != "chief":
        _serve(cluster, start_timeout)
    others = {task: address for task, address in cluster.addresses.items() if task != "chief"}
    _wait_for(others, cluster, start_timeout)
    return _coordinate(cluster), f"{cluster}; asynchronous, variables on {len(cluster.ps)} ps"


def is_parameter_server(strategy: tf.distribute.Strategy) -> bool:
    """Return whether workers train asynchronously under this strategy, their variables on parameter servers."""
    return isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)


def _wait_for(addresses: dict[str, str], cluster: Cluster, timeout: float) -> None:
    """Raise where tasks are missing after the timeout; TensorFlow would wait for many minutes and print nothing."""
    deadline = time.monotonic() + timeout
    _log.info("Waiting up to %g s for %s.", timeout, ", ".join(addresses))
    while missing := unreachable(addresses):
        if time.monotonic() > deadline:
            named = with_addresses(addresses, missing)
            raise ClusterError(
                f"{cluster.task} waited {timeout:g} s for {named}, where nobody listens ({cluster.source}). Look at "
                "the logs of these tasks, at the addresses and at the firewall. A longer start_timeout waits longer."
            )
        time.sleep(0.2)


def _coordinate(cluster: Cluster) -> tf.distribute.Strategy:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs(cluster)), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
    # Loop traces a custom step here to learn the names of its logs, and TensorFlow would warn about it at length.
    strategy.extended._allow_run_without_coordinator = True
    if strategy.num_replicas_in_sync > 1:
        raise StrategyError(
            f"Each worker has {strategy.num_replicas_in_sync} GPUs; under 'parameter_server' a worker uses one. "
            "Start one worker for each GPU, and give it its GPU by CUDA_VISIBLE_DEVICES."
        )
    return strategy


def _serve(cluster: Cluster, start_timeout: float) -> NoReturn:
    """Serve until the chief has exited, then exit this process.

    All tasks of a job get SIGTERM and Ctrl-C at the same time. As long as the chief runs they change nothing here: it
    cannot save without the tasks that hold its variables. Handlers and threads are set for the rest of this process,
    which runs no more code of the user's.
    """
    chief = {"chief": cluster.addresses["chief"]}
    stop_signals.catch(_SIGNALS, stop_signals.leave)
    _raise_threads()
    start_server(cluster)
    _log.info("%s: serving until the chief at %s has exited.", cluster, cluster.chief)
    _wait_for(chief, cluster, start_timeout)
    received: list[int] = []
    stop_signals.catch(_SIGNALS, lambda number, frame: received.append(number))
    absent = 0
    while absent < (1 if received else _CHECKS_UNTIL_EXIT):
        time.sleep(_CHECK_SECONDS)
        absent = absent + 1 if unreachable(chief) else 0
    _log.info("%s: the chief has exited.", cluster.task)
    raise SystemExit(0)


def _raise_threads() -> None:
    """Let a task on few cores have enough threads: the one environment variable that mirrorkit sets (docs/speed.md).

    TensorFlow's server does not take their number from its own config.
    """
    given = os.environ.get(_THREADS, "")
    if (int(given) if given.isdigit() else processor.cores()) >= _LEAST_THREADS:
        return
    if given:
        _log.warning("%s=%s is too few for a task of parameter servers; it gets %d.", _THREADS, given, _LEAST_THREADS)
    os.environ[_THREADS] = str(_LEAST_THREADS)


def start_server(cluster: Cluster, *, threads: int = 0) -> Any:
    """Start TensorFlow's server for this task; it serves until the process exits, with or without a reference to it.

    It runs as many operations at the same time as `threads` says; with 0, as many as there are cores.
    """
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
    if cluster.task_type == "ps":
        config.device_count["GPU"] = 0  # variables are in the host's memory, and the GPUs belong to the workers
    return tf.distribute.Server(
        tf.train.ClusterSpec(jobs(cluster)),
        job_name=cluster.task_type,
        task_index=cluster.task_index,
        protocol="grpc",
        config=config,
    )
