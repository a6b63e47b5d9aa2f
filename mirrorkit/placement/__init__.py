"""Where a step's operations and bytes would be on GPUs, found out on any machine.

A private room: users find `placement`, `Placement` and `CallPlacement` in `mk.checks`.
"""

from __future__ import annotations

from mirrorkit.placement.by_device import OnDevices, on_devices
from mirrorkit.placement.inspection import gpu_strategy, memory_of, of_loop, placement
from mirrorkit.placement.operations import walk
from mirrorkit.placement.report import CallPlacement, Placement
from mirrorkit.placement.tally import Tally

__all__ = [
    "CallPlacement",
    "OnDevices",
    "Placement",
    "Tally",
    "gpu_strategy",
    "memory_of",
    "of_loop",
    "on_devices",
    "placement",
    "walk",
]
