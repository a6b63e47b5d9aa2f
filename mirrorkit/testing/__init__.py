"""Helpers for testing distributed training on one machine: virtual replicas and fresh processes.

```python
strategy = mk.testing.virtual_replicas(4)
answer = mk.testing.run_in_fresh_process("import json; print(json.dumps([1, 2]))").json()
```
"""

from __future__ import annotations

from mirrorkit.testing.equivalence import Equivalence, assert_equivalent

# The names "as" themselves are for mirrorkit's other packages.
from mirrorkit.testing.equivalence_data import global_batches as global_batches
from mirrorkit.testing.equivalence_data import permuted as permuted
from mirrorkit.testing.equivalence_runs import Arrangement as Arrangement
from mirrorkit.testing.equivalence_runs import Comparison as Comparison
from mirrorkit.testing.equivalence_runs import Trial as Trial
from mirrorkit.testing.equivalence_runs import distances as distances
from mirrorkit.testing.equivalence_runs import train as train
from mirrorkit.testing.local import local_cluster, virtual_replicas
from mirrorkit.testing.process import ProcessResult, run_in_fresh_process

__all__ = [
    "Equivalence",
    "ProcessResult",
    "assert_equivalent",
    "local_cluster",
    "run_in_fresh_process",
    "virtual_replicas",
]
