"""The processor's model and features, from Linux; elsewhere from Python's `platform`. Needs no TensorFlow."""

from __future__ import annotations

import platform
from pathlib import Path

_INFO = Path("/proc/cpuinfo")
_WIDEST_FIRST = {"amx_tile": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}


def model() -> str:
    """The name and the widest vector instructions, such as "AMD EPYC 9654 (AVX-512 VNNI)"."""
    name = _field("model name") or platform.processor() or platform.machine()
    vectors = next((text for flag, text in _WIDEST_FIRST.items() if flag in flags()), None)
    return f"{name} ({vectors})" if vectors else name


def flags() -> frozenset[str]:
    """The features of an x86 processor, as Linux names them: "avx2", "avx512_vnni"; empty elsewhere."""
    return frozenset(_field("flags").split())


def _field(name: str) -> str:
    """The value of the first line of that name, or ""."""
    lines = (line.partition(":") for line in _INFO.read_text().splitlines()) if _INFO.exists() else ()
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")
