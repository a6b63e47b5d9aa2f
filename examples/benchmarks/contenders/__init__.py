"""The contenders of against_peers.py: each trains the same net on the same data in a process of its own.

A contender is a class `Contender(work)` whose constructor makes data, strategy, model and optimizer. `build()` makes
the rest (compiles, builds the optimizer), and `train(epochs, steps=None)` trains and returns the seconds of each epoch,
everything between two epochs included, and the training accuracy of the last one.
"""

from __future__ import annotations

# name: (module, keyword arguments of its Contender, processes instead of replicas)
CONTENDERS = {
    "loop-resident": ("mirrorkit_loop", {"data": "resident"}, False),
    "loop": ("mirrorkit_loop", {"data": "batches"}, False),
    "loop-records": ("mirrorkit_loop", {"data": "records"}, False),
    "loop-workers": ("mirrorkit_loop", {"data": "resident", "kind": "multi_worker"}, True),
    "fit": ("keras_fit", {}, False),
    "fit-calls": ("keras_fit", {"steps_per_execution": 78}, False),
    "fit-records": ("keras_fit", {"data": "records"}, False),
    "hand": ("hand_written", {}, False),
    "hand-records": ("hand_written", {"data": "records"}, False),
    "orbit": ("orbit_trainer", {}, False),
    "ddp": ("torch_ddp", {}, True),
}
