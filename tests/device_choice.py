"""Where the tests have their replicas: on virtual CPU devices, or on parts of a GPU.

With $MIRRORKIT_TEST_DEVICE=gpu the first GPU is split into four logical GPUs. What is in no strategy is computed there
too. TF32 is off and TensorFlow's operations are deterministic, so that a test's tolerances mean what they mean on a
CPU: without that, plain TensorFlow in bfloat16 did not give the same weights twice on an H200 (4.2e-4 apart).
"""

from __future__ import annotations

import os

import tensorflow as tf

from mirrorkit import devices
from mirrorkit.devices.verification import nvidia_smi

DEVICE = os.environ.get("MIRRORKIT_TEST_DEVICE", "cpu")
PARTS = 4
_MEBIBYTES = 1024  # of each part; several processes share the GPU


def split() -> None:
    """Split the CPU, and the GPU where it is tested."""
    if DEVICE == "gpu":
        part = tf.config.LogicalDeviceConfiguration(memory_limit=_MEBIBYTES)
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("GPU")[0], [part] * PARTS)
        tf.config.experimental.enable_tensor_float_32_execution(False)
        tf.config.experimental.enable_op_determinism()
    devices.split_cpu(PARTS)


def what() -> str:
    """Say which they are."""
    if DEVICE == "cpu":
        return "the CPU as four virtual devices"
    return f"four logical GPUs, parts of one {nvidia_smi('name')[0][0]}"


def device_name(number: int) -> str:
    """Return "CPU:1", say."""
    return f"{DEVICE.upper()}:{number}"


def first(replicas: int) -> str:
    """Return the first so many devices, as `mk.strategy.create` takes them."""
    return f"{DEVICE}:{replicas}"
