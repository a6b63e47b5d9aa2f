"""Check that each device really computes: a job that silently trains on the CPU is an expensive mistake."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.arguments import checks_arguments
from mirrorkit.devices import onednn
from mirrorkit.devices.layout import find, kind_and_count, listed, owners, short_name
from mirrorkit.errors import DeviceArgumentError, DeviceError


@dataclass(frozen=True)
class Device:
    """One verified logical device. Memory in bytes; None where it is not known.

    ```python
    first = mk.devices.verify().devices[0]
    print(first.name, first.kind)  # /device:CPU:0 CPU
    print(first.model, first.memory)
    ```
    """

    name: str
    kind: str
    model: str
    memory: int | None
    compute_capability: tuple[int, int] | None


@dataclass(frozen=True)
class Verification:
    """The devices that passed `verify`, the versions they run on (None where there is none), and whether TensorFlow
    uses oneDNN on the CPU (None where it does not say).

    ```python
    found = mk.devices.verify()
    print([device.name for device in found.devices][:2])  # ['/device:CPU:0', '/device:CPU:1']
    print(found.tensorflow, found.keras, found.cuda, found.driver)
    ```
    """

    devices: tuple[Device, ...]
    tensorflow: str
    keras: str
    cuda: str | None
    cudnn: str | None
    driver: str | None
    onednn: bool | None = None

    def __str__(self) -> str:
        """A few lines for people."""
        lines = [f"TensorFlow {self.tensorflow}, Keras {self.keras}"]
        if self.cuda:
            lines[0] += f", built for CUDA {self.cuda} and cuDNN {self.cudnn}"
        if self.driver:
            lines[0] += f", NVIDIA driver {self.driver}"
        if self.onednn is not None:
            lines[0] += f", oneDNN {'on' if self.onednn else 'off'} on the CPU"
        for device in self.devices:
            memory = f", {device.memory / 2**30:.1f} GiB" if device.memory else ""
            version = ".".join(map(str, device.compute_capability or ()))
            capability = f", compute capability {version}" if version else ""
            lines.append(f"{device.name}  computes correctly  ({device.model}{memory}{capability})")
        return "\n".join(lines)


@checks_arguments(DeviceArgumentError)
def verify(*, require: str | None = None) -> Verification:
    """Run a matrix product and a convolution on every logical device, check the results, and describe the devices.

    ```python
    print(mk.devices.verify(require="cpu"))
    ```

    Call it at the start of a job so that it does not train on the CPU by accident.

    Args:
        require: "gpu" (at least one) or "gpu:4" (at least four); likewise "cpu" and "tpu".

    Raises:
        DeviceArgumentError: `require` cannot be read.
        DeviceError: what is required is not there, or a device fails or computes wrong results.
    """
    names = find()
    nvidia = nvidia_smi("name", "memory.total", "driver_version")
    if require is not None:
        _check_required(require, nvidia)
    failures = [failure for name in names if (failure := _failure(name))]
    if failures:
        raise DeviceError("\n".join(failures))
    memory = {model: int(mib) * 2**20 for model, mib, _ in nvidia if mib.isdigit()}
    build = tf.sysconfig.get_build_info()
    return Verification(
        devices=tuple(_described(name, memory) for name in names),
        tensorflow=tf.__version__,
        keras=keras.__version__,
        cuda=build.get("cuda_version"),
        cudnn=build.get("cudnn_version"),
        driver=nvidia[0][2] if nvidia else None,
        onednn=onednn.enabled(),
    )


def _check_required(require: str, nvidia: list[list[str]]) -> None:
    kind, asked = kind_and_count(require) or ("", 0)
    count = 1 if asked is None else asked
    if count < 1:
        raise DeviceArgumentError(f"require={require!r} is not understood. Write 'gpu', or 'gpu:4' for at least four.")
    found = find(kind)
    if len(found) >= count:
        return
    message = f"At least {count} {kind} required, {len(found)} found: {listed(found)}."
    if kind == "GPU" and len(nvidia) > len(found):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        message += (
            f" The driver has {len(nvidia)} GPU(s) that TensorFlow does not use: check CUDA_VISIBLE_DEVICES (now "
            f"{visible!r}) and install TensorFlow with its CUDA libraries (pip install 'tensorflow[and-cuda]')."
        )
    elif kind == "GPU":
        message += " nvidia-smi shows no other: ask the scheduler for GPUs, or check the driver on this machine."
    raise DeviceError(message)


def _failure(name: str) -> str | None:
    """Return what is wrong with the device, or None. Small whole numbers, so that TF32 gives the exact result too."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (2, 128, 128)).astype(np.float32)
    patches = np.lib.stride_tricks.sliding_window_view(a, (3, 3))
    try:
        with tf.device(name):
            product = tf.linalg.matmul(tf.constant(a), tf.constant(b))
            # On a GPU this loads cuDNN, the library that is missing most often.
            filtered = tf.nn.conv2d(a[None, :, :, None], b[:3, :3, None, None], strides=1, padding="VALID")
        computed = {
            "matrix product": (product, a @ b),
            "convolution": (filtered, np.einsum("xyij,ij", patches, b[:3, :3])),
        }
        for what, (got, expected) in computed.items():
            if short_name(got.device) != name:
                return f"{name}: the {what} ran on {got.device} instead."
            error = float(np.abs(np.squeeze(got.numpy()) - expected).max())
            if not error < 1e-2:
                return f"{name}: the {what} is wrong by up to {error:g}, compared with NumPy's result."
    except tf.errors.OpError as error:
        return f"{name}: does not compute: {error.message}"
    return None


def _described(name: str, gpu_memory: dict[str, int]) -> Device:
    kind = name.split(":")[1]
    if kind == "GPU":
        details = tf.config.experimental.get_device_details(owners()[name])
        model = details.get("device_name", "unknown GPU")
        return Device(name, kind, model, gpu_memory.get(model), details.get("compute_capability"))
    if kind == "CPU":
        return Device(name, kind, f"{os.cpu_count()} cores, shared by all CPU devices", _host_memory(), None)
    return Device(name, kind, kind, None, None)


def _host_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def nvidia_smi(*fields: str) -> list[list[str]]:
    """Return these fields ("name", "memory.used" in MiB) of each GPU that the driver knows; empty without a driver."""
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == len(fields)]
