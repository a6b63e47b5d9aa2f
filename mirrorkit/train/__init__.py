"""Training: the step that every strategy runs, and the loop around it.

```python
step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"])
loop = mk.train.Loop(strategy, step)
report = loop.fit(train, epochs=2, validation_data=test)
```
"""

from __future__ import annotations

# The names "as" themselves are for mirrorkit's other packages.
from mirrorkit.train.callback import LoopCallback as LoopCallback
from mirrorkit.train.calls.compiled import Calls as Calls
from mirrorkit.train.checkpoints import Checkpoints
from mirrorkit.train.checkpoints.position import Position
from mirrorkit.train.exporting import export
from mirrorkit.train.input.epoch import EpochIterator as EpochIterator, shards as shards
from mirrorkit.train.input.input import Input as Input
from mirrorkit.train.keras_fit import evaluate as evaluate, fit as fit, predict as predict
from mirrorkit.train.keras_model import custom_gradients as custom_gradients  # for what it replaces
from mirrorkit.train.keras_model.layer_state import training_argument as training_argument
from mirrorkit.train.keras_model.outputs import UnpackedBatch as UnpackedBatch, unpack_batch as unpack_batch
from mirrorkit.train.keras_model.seeds import seeds_by_replica
from mirrorkit.train.loop.loop import Loop
from mirrorkit.train.loop.replay import Replay as Replay
from mirrorkit.train.loop.report import Epoch, Report
from mirrorkit.train.reduce.gathering import all_gather
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.reduce.tracing import TraceOnce as TraceOnce
from mirrorkit.train.reduce.transforms import Transform
from mirrorkit.train.reduce.update import Update
from mirrorkit.train.requirements.model import check_variables as check_variables, variables_of as variables_of
from mirrorkit.train.step.custom import TrainStep
from mirrorkit.train.step.global_batch import OwnRows as OwnRows
from mirrorkit.train.step.loss_scale import LossScale
from mirrorkit.train.step.step import Step

__all__ = [
    "Checkpoints",
    "Epoch",
    "Loop",
    "LossScale",
    "Position",
    "Report",
    "Step",
    "TrainStep",
    "Transform",
    "Update",
    "all_gather",
    "all_reduce",
    "export",
    "seeds_by_replica",
]
