"""Training: the step that every strategy runs, and the loop around it.

```python
step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"])
loop = mk.train.Loop(strategy, step)
report = loop.fit(train, epochs=2, validation_data=test)
```
"""

from __future__ import annotations

from mirrorkit.train.checkpoints import Checkpoints
from mirrorkit.train.custom import TrainStep
from mirrorkit.train.export import export
from mirrorkit.train.loop import Loop
from mirrorkit.train.loss_scale import LossScale
from mirrorkit.train.position import Position
from mirrorkit.train.reduction import all_reduce
from mirrorkit.train.report import Epoch, Report
from mirrorkit.train.step import Step
from mirrorkit.train.table import PartitionedTable
from mirrorkit.train.update import Update

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
]
