"""Checks for training: are the replicas in sync, which layer produced the first NaN, what each device holds.

```python
report = mk.checks.in_sync(strategy, step)                       # true, or names the first variable that differs
loop.fit(train, callbacks=[mk.checks.InSync(every=500), mk.checks.NanWatch()])
print(mk.checks.on_devices(loop, train))                         # bytes and operations of each device
```
"""

from __future__ import annotations

from mirrorkit.checks.by_device import OnDevices, on_devices
from mirrorkit.checks.nan_watch import NanWatch
from mirrorkit.checks.non_finite import NonFinite, find_non_finite
from mirrorkit.checks.sync import Difference, SyncReport, in_sync, repair
from mirrorkit.checks.sync_callback import InSync

__all__ = [
    "Difference",
    "InSync",
    "NanWatch",
    "NonFinite",
    "OnDevices",
    "SyncReport",
    "find_non_finite",
    "in_sync",
    "on_devices",
    "repair",
]
