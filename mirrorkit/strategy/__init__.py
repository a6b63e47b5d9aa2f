"""Choose and create a `tf.distribute.Strategy`, and describe it in one line.

```python
strategy = mk.strategy.create("auto")                         # the cluster, or every GPU, or else the CPU
strategy = mk.strategy.create("mirrored", devices="cpu:4")    # four replicas on virtual CPU devices
print(mk.strategy.describe(strategy))                         # MirroredStrategy, 4 replicas on CPU:0 CPU:1 CPU:2 CPU:3
if mk.strategy.is_chief(strategy):                            # on several workers: the one that writes
    ...
```
"""

from __future__ import annotations

# The names "as" themselves are for mirrorkit's other packages.
from mirrorkit.strategy.agreement import of_chief as of_chief, require_same as require_same
from mirrorkit.strategy.barrier import wait_for_all, waiting_for_the_chief as waiting_for_the_chief
from mirrorkit.strategy.creation import chosen as chosen, create, describe
from mirrorkit.strategy.exchange import (
    arrays_of_all_workers as arrays_of_all_workers,
    bytes_of_all_workers as bytes_of_all_workers,
    each_worker as each_worker,
    of_all_workers,
    place as place,
)
from mirrorkit.strategy.forked import require_own_process as require_own_process
from mirrorkit.strategy.kinds import (
    class_name as class_name,
    has_copies as has_copies,
    is_central_storage as is_central_storage,
    is_on_own_devices as is_on_own_devices,
)
from mirrorkit.strategy.lost import (
    ENDED_BY_OTHERS as ENDED_BY_OTHERS,
    name_lost_workers as name_lost_workers,
    naming_lost_workers,
)
from mirrorkit.strategy.multi_worker import gathers as gathers
from mirrorkit.strategy.parameter_server import is_parameter_server as is_parameter_server, start_server as start_server
from mirrorkit.strategy.tpu import is_tpu as is_tpu
from mirrorkit.strategy.workers import (
    addresses as addresses,
    by_replica as by_replica,
    first_replica as first_replica,
    input_context as input_context,
    is_chief,
    local_replica as local_replica,
    num_workers,
    replica_devices as replica_devices,
    task_addresses as task_addresses,
    worker_index,
)

__all__ = [
    "create",
    "describe",
    "is_chief",
    "naming_lost_workers",
    "num_workers",
    "of_all_workers",
    "wait_for_all",
    "worker_index",
]
