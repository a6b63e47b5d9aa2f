"""Choose and make a `tf.distribute.Strategy`, and say in one line what was chosen.

```python
strategy = mk.strategy.create("auto")                         # every GPU, or else the CPU
strategy = mk.strategy.create("mirrored", devices="cpu:4")    # four replicas on virtual CPU devices
print(mk.strategy.describe(strategy))                         # MirroredStrategy, 4 replicas on CPU:0 CPU:1 CPU:2 CPU:3
```
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable

import tensorflow as tf

from mirrorkit import devices as _devices
from mirrorkit.devices import Devices
from mirrorkit.errors import StrategyError

_log = logging.getLogger("mirrorkit")


def create(kind: str = "auto", *, devices: Devices = None, cluster: object | None = None) -> tf.distribute.Strategy:
    """Make the strategy of this kind on these devices, and log one INFO line that says what was chosen and why.

    Make it before the first tensor, variable or dataset of the program: "cpu:4" splits the CPU, which is only possible
    before TensorFlow starts.

    Args:
        kind: "auto" takes "mirrored" for several devices and "one_device" for one; "one_device"; "mirrored" (each
            replica holds the variables); "central_storage" (one copy of the variables, on the CPU when there are
            several replicas).
        devices: None (all GPUs, or else the CPU), "gpu", "cpu:4" (four virtual CPU devices), 4 (four GPUs) or a list of
            names; see `mirrorkit.devices.resolve`.
        cluster: the cluster this process is a part of; None reads TF_CONFIG.

    Raises:
        StrategyError: unknown kind, or one that these devices or this cluster cannot give.
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


def _auto(devices: Devices, cluster: object | None) -> _Built:
    if _workers_in_cluster(cluster) > 1:
        return _BUILDERS["multi_worker"](devices, cluster)
    names = _devices.resolve(devices)
    chosen = "mirrored" if len(names) > 1 else "one_device"
    strategy, why = _BUILDERS[chosen](names, cluster)
    return strategy, f"'auto' found {len(names)} device{'s' if len(names) > 1 else ''}, so '{chosen}'; {why}"


def _one_device(devices: Devices, cluster: object | None) -> _Built:
    names = _devices.resolve(devices)
    if devices is not None and len(names) > 1:
        raise StrategyError(
            f"'one_device' was asked for with {len(names)} devices ({', '.join(names)}). "
            "Name one device, or take 'mirrored' to use them all."
        )
    return tf.distribute.OneDeviceStrategy(names[0]), f"everything on {names[0]}"


def _mirrored(devices: Devices, cluster: object | None) -> _Built:
    _refuse_cluster("mirrored", cluster)
    names = _devices.resolve(devices)
    return tf.distribute.MirroredStrategy(list(names)), "default cross-device ops"


def _central_storage(devices: Devices, cluster: object | None) -> _Built:
    _refuse_cluster("central_storage", cluster)
    names = _devices.resolve(devices)
    home = names[0] if len(names) == 1 else "/device:CPU:0"
    strategy = tf.distribute.experimental.CentralStorageStrategy(list(names), parameter_device=home)
    return strategy, f"variables on {home}"


def _not_yet(kind: str) -> Callable[[Devices, object | None], _Built]:
    def build(devices: Devices, cluster: object | None) -> _Built:
        raise StrategyError(
            f"'{kind}' is not available in this version of mirrorkit yet. "
            "Available: 'auto', 'one_device', 'mirrored', 'central_storage'."
        )

    return build


def _refuse_cluster(kind: str, cluster: object | None) -> None:
    workers = _workers_in_cluster(cluster)
    if workers > 1:
        raise StrategyError(
            f"{kind!r} was asked for inside a cluster of {workers} workers (TF_CONFIG): it works on one machine, "
            "so each worker would train an unrelated model. Take 'multi_worker', or unset TF_CONFIG to train on this "
            "machine alone."
        )


def _workers_in_cluster(cluster: object | None) -> int:
    """How many workers train together with this process, by TF_CONFIG; an evaluator trains with nobody."""
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        return 1
    try:
        config = json.loads(text)
        if config.get("task", {}).get("type") == "evaluator":
            return 1
        members = config.get("cluster", {})
        return max(1, len(members.get("chief", [])) + len(members.get("worker", [])))
    except (ValueError, AttributeError, TypeError) as error:
        raise StrategyError(
            f"TF_CONFIG is set but cannot be read ({error}): {text[:200]!r}. "
            "It must be a JSON object with 'cluster' and 'task'; unset it to train on this machine alone."
        ) from error


_BUILDERS: dict[str, Callable[[Devices, object | None], _Built]] = {
    "auto": _auto,
    "one_device": _one_device,
    "mirrored": _mirrored,
    "central_storage": _central_storage,
    "multi_worker": _not_yet("multi_worker"),
    "parameter_server": _not_yet("parameter_server"),
    "tpu": _not_yet("tpu"),
}
