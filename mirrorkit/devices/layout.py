"""The layout of devices: which there are, how the CPU is split, and which of them a `devices` argument means."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import tensorflow as tf

from mirrorkit import processor
from mirrorkit.arguments import checks_arguments, is_whole
from mirrorkit.errors import DeviceArgumentError, DeviceError

Devices = None | str | int | Sequence[str]

_KINDS = ("CPU", "GPU", "TPU")
_MOST_CPUS = 256  # each starts its own threads; thousands would take minutes to start
_KIND_AND_COUNT = re.compile(r"(CPU|GPU|TPU)(?::(-?\d+))?")


def find(kind: str | None = None) -> tuple[str, ...]:
    """Names of the logical devices, such as `("/device:CPU:0", "/device:GPU:0")`.

    ```python
    print(mk.devices.find("cpu")[:2])  # ('/device:CPU:0', '/device:CPU:1')
    ```

    This starts TensorFlow, so split the CPU and set memory growth before.

    Args:
        kind: "cpu", "gpu" or "tpu"; None means all of these.

    Raises:
        DeviceArgumentError: an unknown kind.
    """
    kinds = _KINDS if kind is None else (kind.upper(),)
    if not set(kinds) <= set(_KINDS):
        raise DeviceArgumentError(f"Unknown kind of device {kind!r}. The kinds are 'cpu', 'gpu' and 'tpu'.")
    return tuple(short_name(device.name) for k in kinds for device in tf.config.list_logical_devices(k))


def split_cpu(n: int) -> tuple[str, ...]:
    """Split the CPU into `n` virtual devices and return their names. Does nothing if there are `n` already.

    ```python
    names = mk.devices.split_cpu(4)   # at the top of the program
    print(names[-1])  # /device:CPU:3
    ```

    The virtual devices share the same cores and memory: they are for rehearsing and testing several replicas.
    Operations of several replicas would slow each other down if each took all cores. So each gets its replica's share
    of the cores (at least one), unless the program or $TF_NUM_INTRAOP_THREADS says otherwise.

    Raises:
        DeviceArgumentError: `n` is not a positive whole number.
        DeviceError: TensorFlow has started with another layout.
    """
    if not is_whole(n) or n > _MOST_CPUS:
        raise DeviceArgumentError(f"The CPU can be split into 1 to {_MOST_CPUS} devices (a whole number), not {n!r}.")
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
        threads = tf.config.threading
        if n > 1 and not threads.get_intra_op_parallelism_threads() and "TF_NUM_INTRAOP_THREADS" not in os.environ:
            threads.set_intra_op_parallelism_threads(max(1, processor.cores() // n))
    return find("cpu")


@checks_arguments(DeviceArgumentError)
def set_memory_growth(enabled: bool = True) -> int:
    """Let each GPU's memory grow as needed, instead of taking all of it at the start; return the number of GPUs.

    ```python
    gpus = mk.devices.set_memory_growth()   # at the top of the program
    ```

    Does nothing where there is no GPU. https://www.tensorflow.org/guide/gpu#limiting_gpu_memory_growth

    Raises:
        DeviceError: TensorFlow has already started with another setting, or a GPU is split into virtual devices.
    """
    gpus = tf.config.list_physical_devices("GPU")
    try:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, enabled)
    except (RuntimeError, ValueError) as error:
        raise DeviceError(
            f"Asked to set GPU memory growth to {enabled}, but TensorFlow answered: {error}. Move "
            "mk.devices.set_memory_growth() to the top of the program, before the first tensor, model or dataset is "
            "made, and do not split a GPU whose memory is to grow."
        ) from error
    return len(gpus)


def share_physical_device(names: Sequence[str]) -> bool:
    """Return whether two of these logical devices are parts of one physical device, as virtual CPU devices are."""
    physical = owners()
    used = [physical[name] for name in names if name in physical]
    return len(set(used)) < len(used)


def resolve(devices: Devices) -> tuple[str, ...]:
    """Return the logical device names for a `devices` argument.

    ```python
    print(mk.devices.resolve("cpu:2"))  # ('/device:CPU:0', '/device:CPU:1')
    ```

    | written | means |
    |---|---|
    | `None` | all GPUs, or else the first CPU device |
    | `"gpu"`, `"gpu:2"`, `2`, `"2"` | all GPUs; the first two |
    | `"cpu"`, `"cpu:4"` | all CPU devices; the first four, splitting the CPU when TensorFlow has not started |
    | `["gpu:1", "gpu:3"]` | just these |

    Raises:
        DeviceArgumentError: the argument cannot be read, asks for no device, or names one twice.
        DeviceError: there are not that many, or one of them does not exist.
    """
    if devices is None:
        return find("gpu") or find("cpu")[:1]
    if asked := kind_and_count(devices):
        return _first(*asked)
    if isinstance(devices, Sequence) and not isinstance(devices, str) and set(map(type, devices)) == {str}:
        return _named(devices)
    raise DeviceArgumentError(
        f"devices={devices!r} is not understood. Write None, 'gpu', 'cpu:4' (four virtual CPU devices), "
        "4 (four GPUs) or a list of names such as ['gpu:0', 'gpu:1']."
    )


def kind_and_count(written: Devices) -> tuple[str, int | None] | None:
    """Return ("GPU", 2) for "gpu:2", 2 and "2", and ("CPU", None) for "cpu"; None for what is not written so."""
    text = str(written).strip().upper()
    found = _KIND_AND_COUNT.fullmatch(f"GPU:{text}") or _KIND_AND_COUNT.fullmatch(text)
    return found and (found[1], None if found[2] is None else int(found[2]))


def _first(kind: str, count: int | None) -> tuple[str, ...]:
    if count is not None and count < 1:
        raise DeviceArgumentError(f"{count} {kind}s were asked for; ask for at least 1.")
    if kind == "CPU" and count is not None and _cpus_laid_out() < count:
        return split_cpu(count)
    found = find(kind)
    if len(found) < (count or 1):
        asked = f"{count or 'All'} {kind}{' was' if count == 1 else 's were'} asked for"
        raise DeviceError(f"{asked}, {len(found)} found: {listed(found)}. {_how_to_rehearse(count)}")
    return found[:count]


def _named(names: Sequence[str]) -> tuple[str, ...]:
    found = find()
    missing = [name for name in names if short_name(name) not in found]
    if missing:
        raise DeviceError(f"{listed(missing)} asked for, found: {listed(found)}. {_how_to_rehearse(len(names))}")
    short = tuple(map(short_name, names))
    if len(set(short)) < len(short):
        raise DeviceArgumentError(f"devices={list(names)} names a device twice; each replica needs its own.")
    return short


def _how_to_rehearse(count: int | None) -> str:
    return f"Rehearse on this machine's CPU with devices='cpu:{count or 2}'."


def _cpus_laid_out() -> int:
    """Return how many CPU devices there are or will be, without starting TensorFlow."""
    return _parts(tf.config.list_physical_devices("CPU")[0])


def owners() -> dict[str, tf.config.PhysicalDevice]:
    """Return the physical device of each logical CPU and GPU, which are numbered in the order of the physical ones."""
    physical = {}
    for kind in ("CPU", "GPU"):
        parts = (p for p in tf.config.get_visible_devices(kind) for _ in range(_parts(p)))
        physical.update({f"/device:{kind}:{i}": part for i, part in enumerate(parts)})
    return physical


def _parts(physical: tf.config.PhysicalDevice) -> int:
    return len(tf.config.get_logical_device_configuration(physical) or [physical])


def short_name(name: str) -> str:
    """Return "/device:GPU:0" for "/job:localhost/replica:0/task:0/device:GPU:0", "/gpu:0" and "GPU:0"."""
    match = re.search(r"(?:^|[/:])(cpu|gpu|tpu):(\d+)$", name.strip(), re.IGNORECASE)
    return f"/device:{match[1].upper()}:{int(match[2])}" if match else name


def listed(names: Sequence[str]) -> str:
    """Return the names as a message shows them."""
    return ", ".join(names) if names else "none"
