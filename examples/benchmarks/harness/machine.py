"""What a figure must be read with: the machine, the versions, the command and the time."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from mirrorkit import processor

# What sets up TensorFlow's kernels, XLA, NCCL or threads; not all of TF_, which is also the log's and Terraform's
_SPEED_VARIABLES = (
    *("TF_ENABLE_", "TF_NUM_", "TF_XLA_", "TF_GPU_", "TF_CUDNN_", "TF_ONEDNN_", "TF_SET_ONEDNN_", "TF_FORCE_GPU_"),
    *("XLA_", "NCCL_", "OMP_"),
)
_PACKAGES = ("mirrorkit", "tensorflow", "keras", "numpy")


def about(*packages: str) -> dict[str, Any]:
    """Return processor, cores, memory (GiB), GPUs, versions, environment, command and time, for a JSON file.

    Does not load TensorFlow; GPUs are known only where it is loaded already. `packages` are more distributions whose
    versions are wanted, where they are installed.
    """
    return {
        "processor": processor.model(),
        "cores": processor.cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "gpus": _gpus(),
        "system": f"{platform.system()} {platform.release()}",
        "environment": {n: os.environ[n] for n in sorted(os.environ) if n.startswith(_SPEED_VARIABLES)},
        "versions": {"python": platform.python_version(), **_versions((*_PACKAGES, *packages))},
        "command": _command(),
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def about_with_gpus() -> dict[str, Any]:
    """`about`, with TensorFlow loaded, so that it knows the GPUs."""
    import tensorflow  # noqa: F401

    return about()


def in_a_line(about: dict[str, Any]) -> str:
    """Return the machine and the versions for people."""
    gpus = f"; {', '.join(about['gpus'])}" if about["gpus"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    environment = "".join(f"; {name}={value}" for name, value in about["environment"].items())
    return f"{about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB{gpus}; {versions}{environment}"


def _command() -> str:
    """Return the command as it is typed where it was started."""
    path, *arguments = sys.argv
    program = Path(path)
    if program.name == "__main__.py":
        first = ["python", "-m", program.parent.name]
    elif program.suffix == ".py":
        here, program = Path.cwd(), program.absolute()
        first = ["python", str(program.relative_to(here)) if program.is_relative_to(here) else program.name]
    else:
        first = [program.name]
    return shlex.join([*first, *arguments])


def _gpus() -> list[str]:
    if "tensorflow" not in sys.modules:
        return []
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    return [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
