"""Parameter servers hold the variables, workers compute, a chief coordinates.

The same script is started in every task. In a worker or a parameter server it stays in `create` and serves until the
chief is over, then the process ends; only in the chief it goes on. TensorFlow's own runtime does the work:
https://www.tensorflow.org/tutorials/distribute/parameter_server_training
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import Any, NoReturn

import tensorflow as tf

from mirrorkit import cluster as _cluster
from mirrorkit.cluster import Cluster
from mirrorkit.cluster.network import unreachable
from mirrorkit.devices import Devices
from mirrorkit.errors import ClusterError, StrategyError

_log = logging.getLogger("mirrorkit")

_LOOK_SECONDS = 1.0  # between two looks at the chief
_CHIEF_IS_OVER = 3  # looks in a row at which nobody listened at the chief's address
_THREADS = 4  # at least, for a task's operations: with a single one it waits for another task for ever


def build(
    devices: Devices, cluster: Cluster | None, *, start_timeout: float = 300.0
) -> tuple[tf.distribute.Strategy, str]:
    """Return the strategy in the chief; in a worker or a parameter server serve, and end the process.

    Args:
        devices: None; what a worker computes on is decided where it is started.
        cluster: the cluster this process is a part of; None asks `mk.cluster.detect()`.
        start_timeout: seconds to wait for the other tasks.

    Raises:
        StrategyError: there is no cluster with parameter servers, `devices` were given, a worker has several GPUs.
        ClusterError: there is no chief; tasks did not start in time, by name; this task's port is taken.
    """
    found = _cluster.detect() if cluster is None else cluster
    if found is None or not found.ps or not found.workers:
        what = "this process belongs to none" if found is None else f"found {found}"
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
    if found.chief is None or found.task_type == "evaluator":
        raise ClusterError(
            f"{found.source}: with parameter servers the tasks are one chief, which coordinates, workers and ps; "
            f"this is {found}. Add the chief's address to the cluster."
        )
    _cluster.check_network(found, timeout=start_timeout)
    if found.task_type != "chief":
        _serve(found, start_timeout)
    others = {task: address for task, address in found.addresses.items() if task != "chief"}
    _wait_for(others, found, start_timeout)
    return _coordinate(found), f"{found}; asynchronous, variables on {len(found.ps)} ps"


def is_parameter_server(strategy: tf.distribute.Strategy) -> bool:
    """Return whether workers train asynchronously under this strategy, their variables on parameter servers."""
    return isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)


def describe(strategy: tf.distribute.Strategy) -> str:
    """Say in one line what the strategy is made of: its workers compute, each one replica for itself."""
    spec = strategy._cluster_resolver.cluster_spec()  # private to TensorFlow; the public property is None here
    workers, servers = spec.num_tasks("worker"), spec.num_tasks("ps")
    # TensorFlow's own name for this class is ParameterServerStrategyV2.
    return f"ParameterServerStrategy, {workers} worker{'s' if workers > 1 else ''}, {servers} ps"


def _wait_for(addresses: dict[str, str], cluster: Cluster, timeout: float) -> None:
    """TensorFlow itself would wait for a missing task for many minutes, without a word."""
    deadline, said = time.monotonic() + timeout, False
    while missing := unreachable(addresses):
        if time.monotonic() > deadline:
            named = ", ".join(f"{task} ({addresses[task]})" for task in missing)
            raise ClusterError(
                f"{cluster.task} waited {timeout:g} s for {named}, where nobody listens ({cluster.source}). Look at "
                "the logs of these tasks, at the addresses and at the firewall; a longer wait is start_timeout."
            )
        if not said:
            _log.info("Waiting up to %g s for %s.", timeout, ", ".join(missing))
            said = True
        time.sleep(0.2)


def _coordinate(cluster: Cluster) -> tf.distribute.Strategy:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        _spec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
    # Loop traces a step of the user's own here to learn the names of its logs, which TensorFlow warns of at length.
    strategy.extended._allow_run_without_coordinator = True
    if strategy.num_replicas_in_sync > 1:
        raise StrategyError(
            f"Each worker has {strategy.num_replicas_in_sync} GPUs; under 'parameter_server' a worker computes on one. "
            "Start one worker for each GPU, and give it that one by CUDA_VISIBLE_DEVICES."
        )
    return strategy


def _serve(cluster: Cluster, start_timeout: float) -> NoReturn:
    """Serve until the chief is over, then end this process.

    SIGTERM and Ctrl-C come to all tasks of a job at once. They change nothing here as long as the chief is there: it
    cannot save without the tasks that hold its variables.
    """
    assert cluster.chief is not None
    chief = {"chief": cluster.chief}
    asked = _remember_signals()
    _have_enough_threads()
    server = start_server(cluster)
    _log.info("%s: serving until the chief at %s is over.", cluster, cluster.chief)
    deadline, seen, absent = time.monotonic() + start_timeout, False, 0
    while absent < (1 if asked else _CHIEF_IS_OVER):
        is_absent = bool(unreachable(chief))
        if not seen and is_absent and asked:
            raise SystemExit(128 + asked[0])
        if not seen and is_absent and time.monotonic() > deadline:
            raise ClusterError(
                f"{cluster.task} waited {start_timeout:g} s for the chief ({cluster.chief}), where nobody listens "
                f"({cluster.source}). Look at its log; a longer wait is start_timeout."
            )
        seen = seen or not is_absent
        absent = absent + 1 if seen and is_absent else 0
        time.sleep(_LOOK_SECONDS)
    del server
    _log.info("%s: the chief is over.", cluster.task)
    raise SystemExit(0)


def _remember_signals() -> list[int]:
    """Return a list that gets the signals on which a process should leave, which from now on do nothing else."""
    received: list[int] = []
    if threading.current_thread() is threading.main_thread():  # only that one can catch signals
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, frame: received.append(number))
    return received


def _have_enough_threads() -> None:
    """Let a task that may use one core have more threads than that; a server's own config is not asked for them."""
    name = "TF_NUM_INTEROP_THREADS"
    asked = os.environ.get(name, "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = int(asked) if asked.isdigit() else cores
    if threads < _THREADS:
        if asked:
            _log.warning("%s=%s is not enough for a task of parameter servers; %d are taken.", name, asked, _THREADS)
        os.environ[name] = str(_THREADS)


def start_server(cluster: Cluster, *, threads: int = 0) -> Any:
    """Start TensorFlow's server for this task; it serves as long as the process lives.

    Args:
        cluster: as the task sees it.
        threads: how many operations it runs at the same time; 0 for as many as there are cores.
    """
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
    if cluster.task_type == "ps":
        config.device_count["GPU"] = 0  # variables live in the host's memory, the GPUs are the workers'
    return tf.distribute.Server(
        _spec(cluster), job_name=cluster.task_type, task_index=cluster.task_index, protocol="grpc", config=config
    )


def _spec(cluster: Cluster) -> tf.train.ClusterSpec:
    return tf.train.ClusterSpec({"chief": [cluster.chief], "worker": list(cluster.workers), "ps": list(cluster.ps)})
