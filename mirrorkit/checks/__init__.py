"""Checks of a running training: are the replicas in sync, and which layer made the first NaN.

```python
report = mk.checks.in_sync(strategy, step)                       # true, or it names the first variable that differs
loop.fit(train, callbacks=[mk.checks.InSync(every=500)])
```
"""

from __future__ import annotations

from mirrorkit.checks.sync import Difference, SyncReport, in_sync, repair
from mirrorkit.checks.sync_callback import InSync

__all__ = ["Difference", "InSync", "SyncReport", "in_sync", "repair"]
