"""Helpers for testing distributed training on one machine: virtual replicas and fresh processes.

```python
strategy = mk.testing.virtual_replicas(4)
answer = mk.testing.run_in_fresh_process("import json; print(json.dumps([1, 2]))").json()
```
"""

from __future__ import annotations

from mirrorkit.testing.equivalence import Equivalence, assert_equivalent
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
