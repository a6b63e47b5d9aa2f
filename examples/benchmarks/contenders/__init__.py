"""The contenders of against_peers.py: each trains the same net on the same data in a process of its own.

A contender is a class `Contender(work, ...)` in a module of this folder, derived from `contenders.work.Base`.
"""

from __future__ import annotations

import importlib
from typing import Any

# name: (module, keyword arguments of its Contender, "workers" or "apart" for processes instead of replicas)
CONTENDERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "loop-resident": ("mirrorkit_loop", {"data": "resident"}, ""),
    "loop-xla": ("mirrorkit_loop", {"data": "resident", "jit_compile": True}, ""),
    "loop": ("mirrorkit_loop", {"data": "batches"}, ""),
    "loop-records": ("mirrorkit_loop", {"data": "records"}, ""),
    "loop-workers": ("mirrorkit_loop", {"data": "resident"}, "workers"),
    "loop-apart": ("mirrorkit_loop", {"data": "resident", "apart": True}, "apart"),
    "fit": ("keras_fit", {}, ""),
    "fit-calls": ("keras_fit", {"steps_per_execution": 78}, ""),
    "fit-repeat": ("keras_fit", {"repeat": True}, ""),
    "fit-xla": ("keras_fit", {"jit_compile": True}, ""),
    "fit-records": ("keras_fit", {"data": "records"}, ""),
    "hand": ("hand_written", {}, ""),
    "hand-records": ("hand_written", {"data": "records"}, ""),
    "orbit": ("orbit_trainer", {}, ""),
    "ddp": ("torch_ddp", {}, "workers"),
    "torch": ("torch_ddp", {}, ""),
}


def make(name: str, work: dict[str, Any], **layout: Any) -> Any:
    """Make a contender in this process; `work` and `layout` hold the fields of `contenders.work.Work`."""
    from contenders.work import Work

    module, arguments, _ = CONTENDERS[name]
    return importlib.import_module(f"contenders.{module}").Contender(Work(**work, **layout), **arguments)
