"""Training: the step that every strategy runs, and the loop around it.

```python
step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"])
loop = mk.train.Loop(strategy, step)
report = loop.fit(train, epochs=2, validation_data=test)
```
"""

from __future__ import annotations

from mirrorkit.train.checkpoints import Checkpoints
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.exporting import export
from mirrorkit.train.loop.loop import Loop
from mirrorkit.train.loop.report import Epoch, Report
from mirrorkit.train.partitioned_table import PartitionedTable
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.reduce.update import Update
from mirrorkit.train.step.custom import TrainStep
from mirrorkit.train.step.loss_scale import LossScale
from mirrorkit.train.step.seeds import seeds_by_replica
from mirrorkit.train.step.step import Step

__all__ = [
    "Checkpoints",
    "Epoch",
    "Loop",
    "LossScale",
    "PartitionedTable",
    "Position",
    "Report",
    "Step",
    "TrainStep",
    "Update",
    "all_reduce",
    "export",
    "seeds_by_replica",
]
