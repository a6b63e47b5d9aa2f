"""TPUs: find one, reach it within a time limit, initialise it.

Where nothing answers at an address, TensorFlow waits for many minutes and holds its locks meanwhile. So a TPU on a
network is first tried from another process, which can be ended.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
import sys
from collections.abc import Mapping

import tensorflow as tf

from mirrorkit.cluster import unreachable
from mirrorkit.errors import DeviceError

_CONNECT_SECONDS = 5.0
_NAMES = ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
_LOCAL_DEVICES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
_TRY = """
import sys
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TPUClusterResolver(sys.argv[1])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
"""


def find(environ: Mapping[str, str]) -> str | None:
    """Return where the environment says a TPU is, or None; nothing is contacted.

    $TPU_NAME (a name, an address, or "local"), $KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, or "local" where this machine has
    TPU devices and Google's libtpu is installed.
    """
    for name in _NAMES:
        if environ.get(name):
            return environ[name]
    has_devices = any(glob.glob(pattern) for pattern in _LOCAL_DEVICES)
    return "local" if has_devices and _libtpu_is_installed() else None


def build(where: str | None, *, start_timeout: float) -> tuple[tf.distribute.Strategy, str]:
    """Return a TPUStrategy on the TPU at `where`: a name, an address "host:port" (with or without "grpc://"), "local",
    or None for `find`.
    """
    place = where or find(os.environ)
    if place is None:
        raise DeviceError(
            "'tpu' was asked for, but none was found: neither TPU_NAME nor KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS is set, and "
            "this machine has no TPU. Give the name or address as devices=, or allow GPUs and the CPU: fallback=True."
        )
    if place != "local":
        _reach(place, start_timeout)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(place)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # whatever the runtime, the cloud client and its HTTP library may raise
        line = str(error).strip().partition("\n")[0]
        raise DeviceError(f"The TPU at {place!r} cannot be used: {type(error).__name__}: {line}") from error
    return strategy, f'TPU at {place!r}; keras.config.set_dtype_policy("mixed_bfloat16") is its native precision'


def is_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Return whether the replicas are TPU cores, which need static shapes."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def _reach(place: str, start_timeout: float) -> None:
    """Raise unless another process can initialise the TPU within the time limit."""
    for address in place.split(","):
        bare = address.removeprefix("grpc://")
        if re.fullmatch(r"[^/\s]+:\d+", bare) and unreachable(
            {"TPU": bare}, seconds=min(_CONNECT_SECONDS, start_timeout)
        ):
            raise DeviceError(
                f"Nobody listens at the TPU's address {bare}. Look at TPU_NAME, at whether the TPU is running, and at "
                "the network between it and this machine."
            )
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY, place], timeout=start_timeout, capture_output=True, text=True, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"The TPU at {place!r} did not answer within {start_timeout:g} s (start_timeout). Look at whether it is "
            "running and whether its software has the same TensorFlow version as this program."
        ) from None
    if tried.returncode != 0:
        lines = tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"]
        raise DeviceError(f"The TPU at {place!r} cannot be used: {lines[-1]}")


def _libtpu_is_installed() -> bool:
    # Not importlib.util.find_spec alone: TPU machine images bring the library without the Python package.
    import importlib.util

    return importlib.util.find_spec("libtpu") is not None or os.path.exists("/lib/libtpu.so")
