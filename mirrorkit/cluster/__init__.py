"""Which processes train together, and which of them this one is. Plain Python, no TensorFlow.

```python
cluster = mk.cluster.detect()        # None where this process trains alone
print(cluster)                       # worker 1 of 4 workers (Slurm), gpu02:12033
cluster.is_chief                     # False
```

`detect` reads environment variables: TF_CONFIG, those of Slurm's `srun`, those of a Kubernetes Job. Anything else
that starts your processes only has to set TF_CONFIG, https://www.tensorflow.org/guide/distributed_training#TF_CONFIG.
"""

from __future__ import annotations

# The names "as" themselves are for mirrorkit's other packages.
from mirrorkit.cluster.cluster import (
    Cluster,
    as_each_task as as_each_task,
    computing as computing,
    jobs as jobs,
    task_name,
    with_addresses as with_addresses,
)
from mirrorkit.cluster.detection import detect
from mirrorkit.cluster.network import (
    free_ports as free_ports,
    host_and_port as host_and_port,
    require_network as require_network,
    unreachable as unreachable,
)
from mirrorkit.cluster.rendezvous import wait_for_all as wait_for_all
from mirrorkit.cluster.variables import JOB_TOKEN as JOB_TOKEN, job_token as job_token

__all__ = ["Cluster", "detect", "task_name"]
