"""Honest timing: a timer that waits for the devices, and throughput with the first call kept apart.

```python
with mk.timing.Timer() as timer:
    loop_of_many_steps()
timer.seconds
```
"""

from __future__ import annotations

from mirrorkit.timing.throughput import Throughput
from mirrorkit.timing.timer import Timer

__all__ = ["Throughput", "Timer"]
