"""MultiWorkerMirroredStrategy: one process per worker, all updating equal copies of the variables together."""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.cluster import Cluster, jobs, require_network, wait_for_all
from mirrorkit.devices import Devices, kind_and_count
from mirrorkit.errors import StrategyError
from mirrorkit.strategy import communication as _communication
from mirrorkit.strategy.lost import name_lost_workers
from mirrorkit.strategy.workers import worker_name
from mirrorkit.supported import __version__
from mirrorkit.variables import mark_given

# A process belongs to one cluster until it ends: TensorFlow's server cannot be stopped. TensorFlow does not say so; it
# would report this process's own port as taken.
_joined: list[Cluster] = []
# What TensorFlow's error says where it has started before it could join the others; it has no class of its own.
_TOO_LATE = "program startup"
# And where workers have sent each other tensors of different shapes.
_OTHER_SHAPE = re.compile(
    r"Op at device (\S+) expected shape (\[.*?\]) but another member in the group expected shape (\[.*?\])"
)


class _NamingStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """One whose scope names a variable that the workers do not create alike."""

    def scope(self) -> Any:
        """Return TensorFlow's scope, within the other."""
        return _NamingScope(self, super().scope())


class _NamingScope:
    """The first value of a variable comes from the chief, by a message that fails where the shapes differ."""

    def __init__(self, strategy: tf.distribute.Strategy, scope: Any) -> None:
        self._strategy = strategy
        self._scope = scope
        self._entered: list[contextlib.ExitStack] = []

    def __enter__(self) -> Any:
        with contextlib.ExitStack() as stack:
            entered = stack.enter_context(self._scope)
            stack.enter_context(tf.variable_creator_scope(self._create))
            self._entered.append(stack.pop_all())
        return entered

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)

    def _create(self, create: Callable[..., Any], **options: Any) -> Any:
        try:
            value, variable = options.get("initial_value"), create(**options)
            if isinstance(value, tf.Tensor) and tf.executing_eagerly() and value.shape.rank == 0:
                mark_given(variable, value.numpy().item())
            return variable
        except tf.errors.OpError as error:
            if (found := _OTHER_SHAPE.search(str(error))) is None:
                name_lost_workers(self._strategy, error)
                raise
            resolver = self._strategy.cluster_resolver
            is_own = f"/job:{resolver.task_type}/replica:0/task:{resolver.task_id}/" in found[1]
            own, other = found.group(2, 3) if is_own else found.group(3, 2)
            with tf.name_scope(options.get("name") or "variable") as path:
                raise StrategyError(
                    f"{worker_name(self._strategy)} creates the variable {path.rstrip('/')!r} of shape {own}, where "
                    f"another worker creates one of shape {other}. All workers must create the same variables in the "
                    "same order: let them run the same script with the same model and optimizer."
                ) from error


class _GatheringStrategy(_NamingStrategy):
    """One in which `mk.train.all_reduce` gathers short messages; each worker, one replica on its CPU, adds them up."""


def gathers(strategy: tf.distribute.Strategy) -> bool:
    """Return whether short messages of this strategy are gathered, and added up by each worker for itself."""
    return isinstance(strategy, _GatheringStrategy)


def build(
    devices: Devices, cluster: Cluster | None, *, communication: str, start_timeout: float
) -> tuple[tf.distribute.Strategy, str]:
    """Wait for the other workers, then make the strategy; return it with a description."""
    cluster = _require_workers(cluster)
    gpus = _gpus(devices)
    options, sums = _communication.multi_worker(communication, gpus=gpus)
    if _joined:
        raise StrategyError(
            f"This process already made the strategy of {_joined[0]}. TensorFlow allows one per process; keep it."
        )
    require_network(cluster, timeout=start_timeout)
    must_agree = {
        "mirrorkit": __version__,
        "TensorFlow": tf.__version__,
        "Keras": keras.__version__,
        "NumPy": np.__version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "GPUs per worker": gpus,
        "communication": communication,
    }
    wait_for_all(cluster, timeout=start_timeout, must_agree=must_agree)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs(cluster)),
        task_type=cluster.task_type,
        task_id=cluster.task_index,
        num_accelerators={"GPU": gpus},
        rpc_layer="grpc",
    )
    _joined.append(cluster)
    kind = _GatheringStrategy if communication == "auto" and not gpus else _NamingStrategy
    try:
        return kind(resolver, communication_options=options), f"{cluster}; {sums}"
    except RuntimeError as error:
        if _TOO_LATE not in str(error):
            raise
        raise StrategyError(
            "TensorFlow had started before the strategy was made, and can no longer join the other workers. Move "
            "mk.strategy.create to the top of the program, before the first tensor, variable, model or dataset."
        ) from error


def _require_workers(cluster: Cluster | None) -> Cluster:
    if cluster is None:
        raise StrategyError(
            "'multi_worker' was asked for, but this process is not in a cluster. Start it by `python -m mirrorkit "
            "launch --workers 2 script.py` on one machine, by srun, or with TF_CONFIG set; or take 'auto', which uses "
            "the devices of this machine when there is no cluster."
        )
    if cluster.ps:
        raise StrategyError(f"'multi_worker' was asked for in a cluster with ps: {cluster}. Take 'parameter_server'.")
    if cluster.task_type == "evaluator":
        raise StrategyError("'multi_worker' was asked for by an evaluator, which does not train. Take 'one_device'.")
    return cluster


def _gpus(devices: Devices) -> int:
    """Return how many GPUs each worker uses, without starting TensorFlow, which must join the others first."""
    found = len(tf.config.list_physical_devices("GPU"))
    if devices is None:
        return found
    kind, count = kind_and_count(devices) or ("", 0)
    least = 1 if count is None else count
    if kind == "CPU" and least == 1:
        return 0
    if kind != "GPU" or least < 1:
        raise StrategyError(
            f"devices={devices!r} was asked for 'multi_worker'. A worker uses its GPUs ('gpu', 'gpu:2', 2), or is one "
            "replica on its CPU ('cpu'): TensorFlow does not split the CPU of a worker. Start more workers instead."
        )
    if found < least:
        raise StrategyError(
            f"devices={devices!r} was asked for, but this worker sees {found} GPUs. Take 'cpu', or look at "
            "CUDA_VISIBLE_DEVICES."
        )
    return count or found
