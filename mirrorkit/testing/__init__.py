"""Helpers to test distributed training on one machine: virtual replicas and fresh processes.

```python
strategy = mk.testing.virtual_replicas(4)
answer = mk.testing.run_in_fresh_process("import json; print(json.dumps([1, 2]))").json()
```
"""

from __future__ import annotations

from mirrorkit.testing.equivalence import Equivalence, assert_equivalent
from mirrorkit.testing.local_cluster import local_cluster
from mirrorkit.testing.process import ProcessResult, run_in_fresh_process
from mirrorkit.testing.replicas import virtual_replicas

__all__ = [
    "Equivalence",
    "ProcessResult",
    "assert_equivalent",
    "local_cluster",
    "run_in_fresh_process",
    "virtual_replicas",
]
