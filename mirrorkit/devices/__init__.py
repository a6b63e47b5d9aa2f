"""Which devices there are, how the CPU is split into several, and whether each of them really computes.

```python
mk.devices.split_cpu(4)              # first thing in a program: four virtual CPU devices to rehearse on
mk.devices.resolve("cpu:4")          # ('/device:CPU:0', ..., '/device:CPU:3')
print(mk.devices.verify(require="gpu"))
```

API pages: https://www.tensorflow.org/api_docs/python/tf/config and https://www.tensorflow.org/guide/gpu
"""

from __future__ import annotations

from mirrorkit.devices.layout import Devices, find, resolve, set_memory_growth, share_hardware, split_cpu
from mirrorkit.devices.verification import Device, Report, verify

__all__ = [
    "Device",
    "Devices",
    "Report",
    "find",
    "resolve",
    "set_memory_growth",
    "share_hardware",
    "split_cpu",
    "verify",
]
