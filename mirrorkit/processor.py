"""What Linux says about the processor (elsewhere Python's `platform`). Needs no TensorFlow."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_INFO = Path("/proc/cpuinfo")
_WIDEST_FIRST = {"amx_tile": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}


def model() -> str:
    """The name and the widest vectors, such as "AMD EPYC 9654 (AVX-512 VNNI)"."""
    name = _field("model name") or platform.processor() or platform.machine()
    vectors = next((text for flag, text in _WIDEST_FIRST.items() if flag in flags()), None)
    return f"{name} ({vectors})" if vectors else name


def flags() -> frozenset[str]:
    """What an x86 processor can do, as Linux writes it: "avx2", "avx512_vnni"; empty elsewhere."""
    return frozenset(_field("flags").split())


def cores() -> int:
    """How many cores this process may use: fewer than the machine has where it is bound to some of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _field(name: str) -> str:
    """The value of the first line of that name, or ""."""
    lines = (line.partition(":") for line in _INFO.read_text().splitlines()) if _INFO.exists() else ()
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")
