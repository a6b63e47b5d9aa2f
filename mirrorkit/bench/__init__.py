"""Benchmarks: how speed changes with replicas, strategies and message sizes, measured in turns.

```python
print(mk.bench.scaling(replicas=[1, 2, 4]))      # or: python -m mirrorkit bench scaling --replicas 1,2,4
print(mk.bench.strategies(epochs=2))
print(mk.bench.collectives())
print(mk.bench.gpu(minutes=20))                  # all of it on GPUs, and Keras's fit beside it
print(mk.bench.anatomy(loop, train))             # where the time of a step goes
```

The first four return a `Report`: a table by `print`, `save_json(path)`, `save_plot(path)`. Each layout runs in its own
process, and all are measured in turns.
"""

from __future__ import annotations

from mirrorkit.bench.allreduce_speed import collectives
from mirrorkit.bench.breakdown import Anatomy, anatomy
from mirrorkit.bench.gpu_suite import gpu
from mirrorkit.bench.report import Report
from mirrorkit.bench.training_speed import scaling, strategies

__all__ = ["Anatomy", "Report", "anatomy", "collectives", "gpu", "scaling", "strategies"]
