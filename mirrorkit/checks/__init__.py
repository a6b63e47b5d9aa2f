"""Checks for training: are the replicas in sync, which layer produced the first NaN, what would run where on GPUs.

```python
report = mk.checks.in_sync(strategy, step)                       # true, or names the first variable that differs
loop.fit(train, callbacks=[mk.checks.InSync(every=500), mk.checks.NanWatch()])
print(mk.checks.placement(make_step, train, devices="gpu:4"))    # needs no GPU
```
"""

from __future__ import annotations

from mirrorkit.checks.nan_watch import NanWatch
from mirrorkit.checks.non_finite import NonFinite, find_non_finite
from mirrorkit.checks.sync import Difference, SyncReport, in_sync, repair
from mirrorkit.checks.sync_callback import InSync
from mirrorkit.placement import CallPlacement, OnDevices, Placement, on_devices, placement

__all__ = [
    "CallPlacement",
    "Difference",
    "InSync",
    "NanWatch",
    "NonFinite",
    "OnDevices",
    "Placement",
    "SyncReport",
    "find_non_finite",
    "in_sync",
    "on_devices",
    "placement",
    "repair",
]
