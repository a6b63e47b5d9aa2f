"""The contenders of against_peers.py: each trains the same net on the same data in a process of its own.

A contender is a class `Contender(work, ...)` in a module of this folder, derived from `contenders.work.Base`.
"""

from __future__ import annotations

import importlib
from typing import Any

# name: (module, keyword arguments of its Contender, processes instead of replicas)
CONTENDERS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "loop-resident": ("mirrorkit_loop", {"data": "resident"}, False),
    "loop-xla": ("mirrorkit_loop", {"data": "resident", "jit_compile": True}, False),
    "loop": ("mirrorkit_loop", {"data": "batches"}, False),
    "loop-records": ("mirrorkit_loop", {"data": "records"}, False),
    "loop-workers": ("mirrorkit_loop", {"data": "resident"}, True),
    "loop-apart": ("mirrorkit_loop", {"data": "resident", "apart": True}, True),
    "fit": ("keras_fit", {}, False),
    "fit-calls": ("keras_fit", {"steps_per_execution": 78}, False),
    "fit-repeat": ("keras_fit", {"repeat": True}, False),
    "fit-xla": ("keras_fit", {"jit_compile": True}, False),
    "fit-records": ("keras_fit", {"data": "records"}, False),
    "hand": ("hand_written", {}, False),
    "hand-records": ("hand_written", {"data": "records"}, False),
    "orbit": ("orbit_trainer", {}, False),
    "ddp": ("torch_ddp", {}, True),
}


def make(name: str, work: dict[str, Any], **layout: Any) -> Any:
    """Make a contender in this process; `work` and `layout` hold the fields of `contenders.work.Work`."""
    from contenders.work import Work

    module, arguments, _ = CONTENDERS[name]
    return importlib.import_module(f"contenders.{module}").Contender(Work(**work, **layout), **arguments)
