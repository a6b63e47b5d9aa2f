"""Choose a strategy by its kind, the devices and the cluster, and make it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import tensorflow as tf

from mirrorkit import cluster as _cluster
from mirrorkit import devices as _devices
from mirrorkit.cluster import Cluster
from mirrorkit.devices import Devices
from mirrorkit.errors import StrategyError
from mirrorkit.strategy import parameter_server

_log = logging.getLogger("mirrorkit")


def create(kind: str = "auto", *, devices: Devices = None, cluster: Cluster | None = None) -> tf.distribute.Strategy:
    """Make the strategy of this kind on these devices, and log one INFO line that says what was chosen and why.

    Make it before the first tensor, variable or dataset of the program: "cpu:4" splits the CPU, which is only possible
    before TensorFlow starts.

    Args:
        kind: "auto" takes "mirrored" for several devices and "one_device" for one; "one_device"; "mirrored" (each
            replica holds the variables); "central_storage" (one copy of the variables, on the CPU when there are
            several replicas).
        devices: None (all GPUs, or else the CPU), "gpu", "cpu:4" (four virtual CPU devices), 4 (four GPUs) or a list of
            names; see `mirrorkit.devices.resolve`.
        cluster: the cluster this process is a part of; None asks `mk.cluster.detect()`.

    Raises:
        StrategyError: unknown kind, or one that these devices or this cluster cannot give.
        ClusterError: the environment describes a cluster, but wrongly.
        DeviceError: a device was asked for that is not there.
    """
    if kind not in _BUILDERS:
        raise StrategyError(f"Unknown strategy kind {kind!r}. The kinds are {', '.join(map(repr, _BUILDERS))}.")
    strategy, why = _BUILDERS[kind](devices, cluster)
    _log.info("%s: %s", describe(strategy), why)
    return strategy


def describe(strategy: tf.distribute.Strategy) -> str:
    """One line: the class, the number of replicas and the devices they compute on."""
    n = strategy.num_replicas_in_sync
    names = " ".join(name.rpartition("device:")[2] for name in strategy.extended.worker_devices)
    return f"{type(strategy).__name__}, {n} replica{'s' if n > 1 else ''} on {names}"


_Built = tuple[tf.distribute.Strategy, str]


def _auto(devices: Devices, cluster: Cluster | None) -> _Built:
    workers, servers = _cluster_size(cluster)
    if servers:
        return _BUILDERS["parameter_server"](devices, cluster)
    if workers > 1:
        return _BUILDERS["multi_worker"](devices, cluster)
    names = _devices.resolve(devices)
    chosen = "mirrored" if len(names) > 1 else "one_device"
    strategy, why = _BUILDERS[chosen](names, cluster)
    return strategy, f"'auto' took '{chosen}' for {len(names)} device{'s' if len(names) > 1 else ''}; {why}"


def _one_device(devices: Devices, cluster: Cluster | None) -> _Built:
    names = _devices.resolve(devices)
    if devices is not None and len(names) > 1:
        raise StrategyError(
            f"'one_device' was asked for with {len(names)} devices ({', '.join(names)}). "
            "Name one device, or take 'mirrored' to use them all."
        )
    return tf.distribute.OneDeviceStrategy(names[0]), f"everything on {names[0]}"


def _mirrored(devices: Devices, cluster: Cluster | None) -> _Built:
    _refuse_cluster("mirrored", cluster)
    names = _devices.resolve(devices)
    if _devices.share_hardware(names):
        # One packed tensor is all-reduced per step. Virtual devices share their memory, so adding on one of them and
        # copying back is all there is to do: 0.2 ms for 57k floats on 4 virtual CPUs, where TensorFlow's default (a
        # ring of collectives) takes 0.5 ms; from 8k to 10M floats on 2 and 4 of them it is 1.5 to 8 times faster.
        # HierarchicalCopyAllReduce was as fast within the noise. Rings of two strategies in one process collide
        # ("joining a group with size 4, but that group has size 2"), and NCCL refuses virtual GPUs.
        reduction = tf.distribute.ReductionToOneDevice()
        why = "sums on one device, as they share one physical device"
    else:
        reduction = None
        why = "sums by NCCL" if len(names) > 1 else "nothing to sum"
    return tf.distribute.MirroredStrategy(list(names), cross_device_ops=reduction), why


def _central_storage(devices: Devices, cluster: Cluster | None) -> _Built:
    _refuse_cluster("central_storage", cluster)
    names = _devices.resolve(devices)
    home = names[0] if len(names) == 1 else "/device:CPU:0"
    strategy = tf.distribute.experimental.CentralStorageStrategy(list(names), parameter_device=home)
    return strategy, f"variables on {home}"


def _not_yet(kind: str) -> Callable[[Devices, Cluster | None], _Built]:
    def build(devices: Devices, cluster: Cluster | None) -> _Built:
        raise StrategyError(
            f"'{kind}' is not available in this version of mirrorkit yet. "
            "Available: 'auto', 'one_device', 'mirrored', 'central_storage'."
        )

    return build


def _refuse_cluster(kind: str, cluster: Cluster | None) -> None:
    workers, servers = _cluster_size(cluster)
    if workers > 1 or servers:
        raise StrategyError(
            f"{kind!r} was asked for inside a cluster of {workers} worker{'s' if workers > 1 else ''} and {servers} "
            "parameter servers: it works on one machine, so each task would train an unrelated model. Take "
            f"{'parameter_server' if servers else 'multi_worker'!r}, or start this process alone, without TF_CONFIG, "
            "srun or an Indexed Job."
        )


def _cluster_size(cluster: Cluster | None) -> tuple[int, int]:
    """How many workers train together with this process, and how many parameter servers."""
    found = _cluster.detect() if cluster is None else cluster
    if found is None or found.task_type == "evaluator":  # which trains with nobody
        return 1, 0
    return found.num_workers, len(found.ps)


_BUILDERS: dict[str, Callable[[Devices, Cluster | None], _Built]] = {
    "auto": _auto,
    "one_device": _one_device,
    "mirrored": _mirrored,
    "central_storage": _central_storage,
    "multi_worker": _not_yet("multi_worker"),
    "parameter_server": parameter_server.build,
    "tpu": _not_yet("tpu"),
}
