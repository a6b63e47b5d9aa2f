"""What NVIDIA's driver says about its GPUs, whether TensorFlow can use them or not. Needs no TensorFlow."""

from __future__ import annotations

import subprocess


def nvidia_smi(*fields: str) -> list[list[str]]:
    """Return these fields ("name", "memory.used") of each GPU that the driver knows; empty without a driver."""
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == len(fields)]
