"""Who am I: which processes train together, and which of them is this one. Plain Python, no TensorFlow.

```python
cluster = mk.cluster.detect()        # None where this process trains alone
print(cluster)                       # worker 1 of 4 workers (Slurm), gpu02:12033
cluster.is_chief                     # False
```

`detect` reads what starts the processes - TF_CONFIG, Slurm's `srun`, a Kubernetes Job - from environment variables.
Whatever else starts yours only has to set TF_CONFIG, https://www.tensorflow.org/guide/distributed_training#TF_CONFIG.
"""

from __future__ import annotations

from mirrorkit.cluster.cluster import TASK_TYPES, Cluster, task_name
from mirrorkit.cluster.detection import detect
from mirrorkit.cluster.network import check_network
from mirrorkit.cluster.rendezvous import meet

__all__ = ["TASK_TYPES", "Cluster", "check_network", "detect", "meet", "task_name"]
