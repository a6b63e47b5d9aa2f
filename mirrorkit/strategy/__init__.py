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
from mirrorkit.strategy.agreement import of_chief as of_chief
from mirrorkit.strategy.agreement import require_same as require_same
from mirrorkit.strategy.barrier import wait_for_all
from mirrorkit.strategy.barrier import waiting_for_the_chief as waiting_for_the_chief
from mirrorkit.strategy.creation import chosen as chosen
from mirrorkit.strategy.creation import create, describe
from mirrorkit.strategy.exchange import arrays_of_all_workers as arrays_of_all_workers
from mirrorkit.strategy.exchange import each_worker as each_worker
from mirrorkit.strategy.exchange import of_all_workers
from mirrorkit.strategy.exchange import place as place
from mirrorkit.strategy.exchange import texts_of_all_workers as texts_of_all_workers
from mirrorkit.strategy.forked import require_own_process as require_own_process
from mirrorkit.strategy.kinds import class_name as class_name
from mirrorkit.strategy.kinds import has_copies as has_copies
from mirrorkit.strategy.kinds import is_central_storage as is_central_storage
from mirrorkit.strategy.kinds import is_on_own_devices as is_on_own_devices
from mirrorkit.strategy.lost import ENDED_BY_OTHERS as ENDED_BY_OTHERS
from mirrorkit.strategy.lost import name_lost_workers as name_lost_workers
from mirrorkit.strategy.lost import naming_lost_workers
from mirrorkit.strategy.multi_worker import gathers as gathers
from mirrorkit.strategy.parameter_server import is_parameter_server as is_parameter_server
from mirrorkit.strategy.parameter_server import start_server as start_server
from mirrorkit.strategy.tpu import is_tpu as is_tpu
from mirrorkit.strategy.workers import addresses as addresses
from mirrorkit.strategy.workers import first_replica as first_replica
from mirrorkit.strategy.workers import input_context as input_context
from mirrorkit.strategy.workers import is_chief, num_workers, worker_index
from mirrorkit.strategy.workers import local_replica as local_replica
from mirrorkit.strategy.workers import replica_devices as replica_devices
from mirrorkit.strategy.workers import task_addresses as task_addresses

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
