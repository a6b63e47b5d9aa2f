"""Find, split and choose devices, and check that each of them really computes.

```python
mk.devices.split_cpu(4)              # at the top of a program: four virtual CPU devices to rehearse on
mk.devices.resolve("cpu:4")          # ('/device:CPU:0', ..., '/device:CPU:3')
print(mk.devices.verify(require="gpu"))
```

API pages: https://www.tensorflow.org/api_docs/python/tf/config and https://www.tensorflow.org/guide/gpu
"""

from __future__ import annotations

# The names "as" themselves are for mirrorkit's other packages.
from mirrorkit.devices.layout import (
    Devices,
    find,
    kind_and_count as kind_and_count,
    resolve,
    set_memory_growth,
    share_physical_device as share_physical_device,
    short_name as short_name,
    split_cpu,
)
from mirrorkit.devices.verification import Device, Verification, nvidia_smi as nvidia_smi, verify

__all__ = ["Device", "Devices", "Verification", "find", "resolve", "set_memory_growth", "split_cpu", "verify"]
