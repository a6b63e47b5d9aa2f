"""Choose and make a `tf.distribute.Strategy`, and say in one line what was chosen.

```python
strategy = mk.strategy.create("auto")                         # the cluster, or every GPU, or else the CPU
strategy = mk.strategy.create("mirrored", devices="cpu:4")    # four replicas on virtual CPU devices
print(mk.strategy.describe(strategy))                         # MirroredStrategy, 4 replicas on CPU:0 CPU:1 CPU:2 CPU:3
if mk.strategy.is_chief(strategy):                            # on several workers: the one that writes
    ...
```
"""

from __future__ import annotations

from mirrorkit.strategy.creation import create, describe
from mirrorkit.strategy.lost import naming_lost_workers
from mirrorkit.strategy.workers import is_chief, num_workers, of_all_workers, worker_index

__all__ = ["create", "describe", "is_chief", "naming_lost_workers", "num_workers", "of_all_workers", "worker_index"]
