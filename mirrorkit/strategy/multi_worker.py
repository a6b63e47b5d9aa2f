"""MultiWorkerMirroredStrategy: one process per worker, all updating equal copies of the variables together."""

from __future__ import annotations

import tensorflow as tf

from mirrorkit import __version__
from mirrorkit._keras import keras
from mirrorkit.cluster import Cluster, check_network, meet
from mirrorkit.devices import Devices
from mirrorkit.devices.layout import KIND_AND_COUNT
from mirrorkit.errors import StrategyError
from mirrorkit.strategy import communication as _communication

_made: list[Cluster] = []  # TensorFlow serves one cluster for as long as the process lives


def build(
    devices: Devices, cluster: Cluster | None, *, communication: str, start_timeout: float
) -> tuple[tf.distribute.Strategy, str]:
    """Meet the other workers, then make the strategy; returns it with a few words on it.

    Raises:
        StrategyError: there is no cluster, or the wrong one for this strategy, or it was made before.
        ClusterError: a task that did not come in time, a host without address, a port in use.
    """
    cluster = _require_workers(cluster)
    gpus = _gpus(devices)
    options, sums = _communication.multi_worker(communication, gpus=gpus)
    if _made:
        raise StrategyError(
            f"This process already made the strategy of {_made[0]}. TensorFlow allows one for each process; keep it."
        )
    check_network(cluster, timeout=start_timeout)
    versions = {"mirrorkit": __version__, "TensorFlow": tf.__version__, "Keras": keras.__version__}
    must_agree = {**versions, "GPUs per worker": gpus, "communication": communication}
    meet(cluster, timeout=start_timeout, must_agree=must_agree)
    jobs = {"chief": [cluster.chief] if cluster.chief else [], "worker": list(cluster.workers)}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({job: addresses for job, addresses in jobs.items() if addresses}),
        task_type=cluster.task_type,
        task_id=cluster.task_index,
        num_accelerators={"GPU": gpus},
        rpc_layer="grpc",
    )
    _made.append(cluster)
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, communication_options=options)
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise StrategyError(
            "TensorFlow had started before the strategy was made, and can no longer join the other workers. Move "
            "mk.strategy.create to the top of the program, before the first tensor, variable, model or dataset."
        ) from error
    if communication == "auto" and not gpus:
        _communication.gather_short_messages(strategy)
    return strategy, f"{cluster}; {sums}"


def _require_workers(cluster: Cluster | None) -> Cluster:
    if cluster is None:
        raise StrategyError(
            "'multi_worker' was asked for, but this process is in no cluster. Start it by `python -m mirrorkit launch "
            "--workers 2 script.py` on one machine, by srun, or with TF_CONFIG set; or take 'auto', which uses the "
            "devices of this machine when there is no cluster."
        )
    if cluster.ps:
        raise StrategyError(f"'multi_worker' was asked for in a cluster with ps: {cluster}. Take 'parameter_server'.")
    if cluster.task_type == "evaluator":
        raise StrategyError(
            "'multi_worker' was asked for by an evaluator, which trains with nobody. Take 'one_device'."
        )
    return cluster


def _gpus(devices: Devices) -> int:
    """Return how many GPUs each worker is to use, without starting TensorFlow: it must join the others first."""
    found = len(tf.config.list_physical_devices("GPU"))
    if devices is None:
        return found
    text = f"gpu:{devices}" if str(devices).isdigit() else str(devices)
    match = KIND_AND_COUNT.fullmatch(text.strip())
    kind, count = (match[1].lower(), match[2]) if match else ("", None)
    if kind == "cpu" and count in (None, "1"):
        return 0
    if kind != "gpu":
        raise StrategyError(
            f"devices={devices!r} was asked for 'multi_worker'. A worker takes its GPUs ('gpu', 'gpu:2', 2), or is one "
            "replica on its CPU ('cpu'): TensorFlow does not split the CPU of a worker. Start more workers instead."
        )
    if found < int(count or 1):
        raise StrategyError(
            f"devices={devices!r} was asked for, but this worker sees {found} GPUs. Take 'cpu', or look at "
            "CUDA_VISIBLE_DEVICES."
        )
    return int(count or found)
