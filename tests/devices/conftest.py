"""What `mk.devices` answers in fresh processes, each with its own layout of the CPU; started once for all tests."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorkit.devices import onednn

CODE = """
import json
import tensorflow as tf
from mirrorkit import devices
from mirrorkit.devices import onednn
if {threads}:
    tf.config.threading.set_intra_op_parallelism_threads({threads})
split = devices.resolve("cpu:3")
try:
    devices.resolve("cpu:5")
except devices.layout.DeviceError as error:
    message = str(error)
verification = devices.verify()
print(json.dumps({{
    "split": split,
    "message": message,
    "first two": devices.resolve("cpu:2"),
    "verified": [device.name for device in verification.devices],
    "threads": tf.config.threading.get_intra_op_parallelism_threads(),
    "onednn": [onednn.enabled(), "oneDNN on" in str(verification)],
}}))
"""


@pytest.fixture(scope="session")
def fresh_process(run_python) -> dict[str, Any]:
    """The answers of a "plain" program without oneDNN, and of one that chooses "7 threads" itself and has oneDNN."""
    found = {}
    for name, threads, value in (("plain", None, "0"), ("7 threads", 7, "1")):
        env = {"TF_NUM_INTRAOP_THREADS": None, onednn.VARIABLE: value}
        found[name] = run_python(CODE.format(threads=threads), env=env).json()
    return found
