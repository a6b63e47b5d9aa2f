"""Where a step's operations and bytes would be on GPUs, found out on any machine.

```python
def make_step():                                  # called in the scope of a strategy on these GPUs
    model = mk.models.create("mnist_cnn")
    return mk.train.Step(model, keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"])

report = placement(make_step, train, devices="gpu:4")
assert report.problems == []                      # each with its line of code
```

TensorFlow's package holds the registrations of all GPU kernels, so each operation of a traced function can be looked up
and what would be copied is known. Nothing is run. ../figures.md explains the columns of the table and its limits.
"""

from __future__ import annotations

from gpu_placement.inspection import gpu_strategy, memory_of, of_loop, placement
from gpu_placement.operations import walk
from gpu_placement.report import CallPlacement, Placement
from gpu_placement.tally import Tally

__all__ = ["CallPlacement", "Placement", "Tally", "gpu_strategy", "memory_of", "of_loop", "placement", "walk"]
