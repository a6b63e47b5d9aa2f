"""Choose a strategy by its kind, the devices and the cluster, and create it."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from mirrorkit import devices as _devices
from mirrorkit.arguments import checks_arguments, seconds
from mirrorkit.cluster import Cluster, detect
from mirrorkit.devices import Devices, onednn
from mirrorkit.errors import DeviceError, StrategyError
from mirrorkit.strategy import communication as _communication, multi_worker, parameter_server, tpu
from mirrorkit.strategy.forked import require_own_process
from mirrorkit.strategy.kinds import class_name
from mirrorkit.strategy.workers import num_workers, replica_devices, task_addresses

_log = logging.getLogger("mirrorkit")


@checks_arguments(StrategyError)
def create(
    kind: str = "auto",
    *,
    devices: Devices = None,
    cluster: Cluster | None = None,
    communication: str = "auto",
    start_timeout: float = 300.0,
    fallback: bool = False,
) -> tf.distribute.Strategy:
    """Create the strategy of this kind on these devices, and log one INFO line that says what was chosen and why.

    ```python
    strategy = mk.strategy.create("mirrored", devices="cpu:4")
    print(strategy.num_replicas_in_sync)  # 4
    ```

    Call it before the first tensor, variable or dataset of the program: "cpu:4" splits the CPU, and several workers
    connect to each other, which is only possible before TensorFlow starts. If the CPU could compute convolutions faster
    than by TensorFlow's default, a warning says how.

    Args:
        kind: "one_device"; "mirrored" (several devices of one machine, each with a copy of the variables);
            "central_storage" (one copy of the variables, on the CPU when there are several replicas); "multi_worker"
            (several processes, each with a copy); "parameter_server" (workers train asynchronously); "tpu". "auto"
            takes "parameter_server" in a cluster with ps, "multi_worker" in one with several workers, "tpu" if
            $TPU_NAME or the machine says that there is one, else "mirrored" for several devices and "one_device" for
            one.
        devices: None (all GPUs, or else the CPU), "gpu", "cpu:4" (four virtual CPU devices), 4 (four GPUs) or a list of
            names; see `mirrorkit.devices.resolve`. For each worker of a cluster: None, "cpu", "gpu" or "gpu:2". For a
            TPU: its name, its address, or "local".
        cluster: the cluster this process is a part of; None asks `mk.cluster.detect()`.
        communication: how replicas add up their sums. "auto"; for "mirrored" also "nccl", "ring" (between CPU devices),
            "hierarchical" and "one_device"; for "multi_worker" also "nccl" and "ring" (over gRPC, where "auto" gathers
            short messages).
        start_timeout: seconds to wait for the other tasks of the cluster, or for a TPU; TensorFlow would wait forever.
        fallback: if no TPU answers, take all GPUs, or else the CPU, and log a warning.

    Raises:
        StrategyError: an unknown kind, or one that does not fit these devices or this cluster.
        StepError: the process was forked from one that had created a strategy.
        ClusterError: the environment describes an invalid cluster, or some of its tasks did not start in time.
        DeviceError: a requested device does not exist, or a TPU does not answer.
    """
    if kind not in _BUILDERS:
        raise StrategyError(f"Unknown strategy kind {kind!r}. The kinds are {', '.join(map(repr, _BUILDERS))}.")
    require_own_process("mk.strategy.create")
    seconds("start_timeout", start_timeout, StrategyError)
    strategy, why = _BUILDERS[kind](_Request(devices, cluster or detect(), communication, start_timeout, fallback))
    strategy._mirrorkit_why = why  # for the line of a training
    _log.info("%s: %s", describe(strategy), why)
    if any(":CPU:" in name for name in replica_devices(strategy)):
        _warn_of_slow_cpu()
    return strategy


@functools.cache  # once in a process
def _warn_of_slow_cpu() -> None:
    if onednn.left_off():
        _log.warning(onednn.HINT)


def describe(strategy: tf.distribute.Strategy) -> str:
    """Return one line: the class, the number of replicas and their devices; with parameter servers the tasks.

    ```python
    print(mk.strategy.describe(strategy))  # MirroredStrategy, 2 replicas on CPU:0 CPU:1
    ```
    """
    if parameter_server.is_parameter_server(strategy):
        tasks, servers = len(task_addresses(strategy, "worker")), len(task_addresses(strategy, "ps"))
        # TensorFlow's own name for this class is ParameterServerStrategyV2. Each worker is one replica.
        return f"ParameterServerStrategy, {tasks} worker{'s' if tasks > 1 else ''}, {servers} ps"
    n, workers = strategy.num_replicas_in_sync, num_workers(strategy)
    names = " ".join(name.rpartition("device:")[2] for name in replica_devices(strategy))
    each = f" of each of {workers} workers" if workers > 1 else ""
    return f"{class_name(strategy)}, {n} replica{'s' if n > 1 else ''} on {names}{each}"


def chosen(strategy: tf.distribute.Strategy) -> str:
    """Return the line of a training: what `describe` says, and why; warn of GPUs that are left idle by accident.

    A model that was made in no scope has TensorFlow's default strategy.
    """
    why = getattr(strategy, "_mirrorkit_why", "")
    if class_name(strategy) == "DefaultDistributionStrategy":
        why = "the model was made in no strategy's scope"
        if (gpus := len(_devices.find("gpu"))) > 1:
            _log.warning(
                "This machine has %d GPUs, and the training uses one: %s. Make model and optimizer in `with "
                "mk.strategy.create().scope():`.",
                gpus,
                why,
            )
    return ": ".join(filter(None, [describe(strategy), why]))


class _Request(NamedTuple):
    """What the user asked for."""

    devices: Devices
    cluster: Cluster | None
    communication: str
    start_timeout: float
    fallback: bool

    @property
    def others(self) -> Cluster | None:
        """The cluster, where this process trains with others of it; an evaluator does not train."""
        found = self.cluster
        if found is None or found.task_type == "evaluator" or not (found.ps or found.num_workers > 1):
            return None
        return found


_Built = tuple[tf.distribute.Strategy, str]


def _auto(asked: _Request) -> _Built:
    if asked.others:
        return _BUILDERS["parameter_server" if asked.others.ps else "multi_worker"](asked)
    if asked.devices is None and tpu.find(os.environ):
        return _tpu(asked)
    return _on_this_machine(asked)


def _on_this_machine(asked: _Request) -> _Built:
    names = _devices.resolve(asked.devices)
    kind = "mirrored" if len(names) > 1 else "one_device"
    strategy, why = _BUILDERS[kind](asked._replace(devices=names))
    return strategy, f"'auto' took '{kind}' for {len(names)} device{'s' if len(names) > 1 else ''}; {why}"


def _one_device(asked: _Request) -> _Built:
    names = _devices.resolve(asked.devices)
    if asked.devices is not None and len(names) > 1:
        raise StrategyError(
            f"'one_device' was asked for with {len(names)} devices ({', '.join(names)}). "
            "Name one device, or take 'mirrored' to use them all."
        )
    return tf.distribute.OneDeviceStrategy(names[0]), f"everything on {names[0]}"


def _mirrored(asked: _Request) -> _Built:
    _refuse_cluster("mirrored", asked)
    names = _devices.resolve(asked.devices)
    reduction, why = _communication.mirrored(asked.communication, names)
    return tf.distribute.MirroredStrategy(list(names), cross_device_ops=reduction), why


def _central_storage(asked: _Request) -> _Built:
    _refuse_cluster("central_storage", asked)
    names = _devices.resolve(asked.devices)
    home = names[0] if len(names) == 1 else "/device:CPU:0"
    strategy = tf.distribute.experimental.CentralStorageStrategy(list(names), parameter_device=home)
    return strategy, f"variables on {home}"


def _tpu(asked: _Request) -> _Built:
    if not isinstance(asked.devices, str | None):
        raise StrategyError(
            f"devices={asked.devices!r} does not name a TPU. Give its name or address, or leave devices out."
        )
    try:
        return tpu.build(asked.devices, start_timeout=asked.start_timeout)
    except DeviceError as error:
        if not asked.fallback:
            raise
        _log.warning("No TPU (%s) Taking GPUs or the CPU instead, as fallback=True allows.", error)
        return _on_this_machine(asked._replace(devices=None))


def _refuse_cluster(kind: str, asked: _Request) -> None:
    if others := asked.others:
        raise StrategyError(
            f"{kind!r} was asked for inside a cluster: this is {others}. It works on one machine, so each task would "
            f"train an unrelated model. Take {'parameter_server' if others.ps else 'multi_worker'!r}, or start this "
            "process alone, without TF_CONFIG, srun or an Indexed Job."
        )


_BUILDERS: dict[str, Callable[[_Request], _Built]] = {
    "auto": _auto,
    "one_device": _one_device,
    "mirrored": _mirrored,
    "central_storage": _central_storage,
    "multi_worker": lambda asked: multi_worker.build(
        asked.devices, asked.cluster, communication=asked.communication, start_timeout=asked.start_timeout
    ),
    "parameter_server": lambda asked: parameter_server.build(
        asked.devices, asked.cluster, start_timeout=asked.start_timeout
    ),
    "tpu": _tpu,
}
