"""Which devices there are, how the CPU is split into several, and whether each of them really computes.

```python
mk.devices.split_cpu(4)              # first thing in a program: four virtual CPU devices to rehearse on
mk.devices.resolve("cpu:4")          # ('/device:CPU:0', ..., '/device:CPU:3')
print(mk.devices.verify(require="gpu"))
```

API pages: https://www.tensorflow.org/api_docs/python/tf/config and https://www.tensorflow.org/guide/gpu
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import tensorflow as tf

from mirrorkit.errors import DeviceError

Devices = None | str | int | Sequence[str]

_KINDS = ("CPU", "GPU", "TPU")


def find(kind: str | None = None) -> tuple[str, ...]:
    """Names of the logical devices, such as `("/device:CPU:0", "/device:GPU:0")`.

    Starts TensorFlow, so split the CPU and set memory growth before.

    Args:
        kind: "cpu", "gpu" or "tpu"; None means all of these.

    Raises:
        DeviceError: for another kind.
    """
    kinds = _KINDS if kind is None else (_known_kind(kind),)
    return tuple(_short_name(device.name) for k in kinds for device in tf.config.list_logical_devices(k))


def split_cpu(n: int) -> tuple[str, ...]:
    """Split the CPU into `n` virtual devices and return their names. Does nothing when it is already split so.

    The virtual devices share the same cores and memory: they serve to rehearse and test several replicas.

    Raises:
        DeviceError: `n` is not a positive whole number, or TensorFlow has started with another layout.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise DeviceError(f"split_cpu needs a whole number of devices of at least 1, got {n!r}.")
    cpu = tf.config.list_physical_devices("CPU")[0]
    if _cpus_laid_out() != n:
        try:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * n)
        except RuntimeError as error:
            raise DeviceError(
                f"Asked to split the CPU into {n} devices, but TensorFlow has already started with "
                f"{_cpus_laid_out()}. Move mk.devices.split_cpu({n}), or mk.strategy.create(..., devices='cpu:{n}'), "
                "to the top of the program, before the first tensor, variable, model or dataset is made."
            ) from error
    return find("cpu")


def resolve(devices: Devices) -> tuple[str, ...]:
    """Logical device names for what a user writes as `devices=`.

    | written | means |
    |---|---|
    | `None` | all GPUs, or else the first CPU device |
    | `"gpu"`, `"gpu:2"`, `2` | all GPUs; the first two |
    | `"cpu"`, `"cpu:4"` | all CPU devices; the first four, splitting the CPU when TensorFlow has not started |
    | `["gpu:1", "gpu:3"]` | just these |

    Raises:
        DeviceError: there are not that many, one of them does not exist, or it is written otherwise.
    """
    if devices is None:
        return find("gpu") or find("cpu")[:1]
    if isinstance(devices, bool):
        raise _unreadable(devices)
    if isinstance(devices, int):
        return _first("GPU", devices)
    if isinstance(devices, str):
        match = re.fullmatch(r"(cpu|gpu|tpu)(?::(\d+))?", devices.strip(), re.IGNORECASE)
        if match is None:
            raise _unreadable(devices)
        return _first(match[1].upper(), None if match[2] is None else int(match[2]))
    if isinstance(devices, Sequence) and devices and all(isinstance(name, str) for name in devices):
        return _named(devices)
    raise _unreadable(devices)


def _first(kind: str, count: int | None) -> tuple[str, ...]:
    if count == 0 or (count is not None and count < 0):
        raise DeviceError(f"Asked for {count} {kind} devices; ask for at least 1.")
    if kind == "CPU" and count is not None and _cpus_laid_out() < count:
        return split_cpu(count)
    found = find(kind)
    if len(found) < (count or 1):
        asked = f"{count} {kind}s" if count else f"{kind}s"
        raise DeviceError(f"{asked} asked, {len(found)} found: {_listed(found)}. {_how_to_rehearse(count)}")
    return found[:count]


def _named(names: Sequence[str]) -> tuple[str, ...]:
    found = find()
    short = tuple(_short_name(name) for name in names)
    missing = [name for name, s in zip(names, short, strict=True) if s not in found]
    if missing:
        raise DeviceError(f"{_listed(missing)} asked, found: {_listed(found)}. {_how_to_rehearse(len(names))}")
    if len(set(short)) < len(short):
        raise DeviceError(f"devices={list(names)} names a device twice; each replica needs its own.")
    return short


def _how_to_rehearse(count: int | None) -> str:
    return f"Rehearse on this machine's CPU with devices='cpu:{count or 2}'."


def _unreadable(devices: object) -> DeviceError:
    return DeviceError(
        f"devices={devices!r} is not understood. Write None, 'gpu', 'cpu:4' (four virtual CPU devices), "
        "4 (four GPUs) or a list of names such as ['gpu:0', 'gpu:1']."
    )


def _known_kind(kind: str) -> str:
    if kind.upper() not in _KINDS:
        raise DeviceError(f"Unknown kind of device {kind!r}. The kinds are 'cpu', 'gpu' and 'tpu'.")
    return kind.upper()


def _cpus_laid_out() -> int:
    """How many CPU devices there are or will be, asked in a way that does not start TensorFlow."""
    layout = tf.config.get_logical_device_configuration(tf.config.list_physical_devices("CPU")[0])
    return len(layout) if layout else 1


def _short_name(name: str) -> str:
    """'/job:localhost/replica:0/task:0/device:GPU:0', '/gpu:0' and 'GPU:0' all become '/device:GPU:0'."""
    match = re.search(r"(cpu|gpu|tpu):(\d+)$", name.strip(), re.IGNORECASE)
    return f"/device:{match[1].upper()}:{int(match[2])}" if match else name


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"
