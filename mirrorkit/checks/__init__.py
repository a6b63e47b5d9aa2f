"""Checks for training: are the replicas in sync, and which layer produced the first NaN.

```python
report = mk.checks.in_sync(strategy, step)                       # true, or names the first variable that differs
loop.fit(train, callbacks=[mk.checks.InSync(every=500), mk.checks.NanWatch()])
```
"""

from __future__ import annotations

from mirrorkit.checks.nan_watch import NanWatch
from mirrorkit.checks.non_finite import NonFinite, find_non_finite
from mirrorkit.checks.sync import Difference, SyncReport, in_sync, repair
from mirrorkit.checks.sync_callback import InSync

__all__ = [
    "Difference",
    "InSync",
    "NanWatch",
    "NonFinite",
    "SyncReport",
    "find_non_finite",
    "in_sync",
    "repair",
]
