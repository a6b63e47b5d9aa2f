"""Which operations TensorFlow executed, by device and pass.

A layout that ran everything on one device would train to the same weights, so results say nothing about it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from tensorflow.python.eager import context  # private: the public API has no record of what was executed

HEAVY = re.compile(r"MatMul|Conv2D|Einsum")
WRITES = "AssignVariableOp"


def executed(run: Callable[[], object], *, within: str = "while/body") -> Counter[tuple[str, str]]:
    """Count what the compiled calls that `run` makes execute: of ("CPU:1", "backward") and its like.

    Of forward and backward pass these are the heavy operations; of the update, writes to variables and Adam's square
    roots. `within` is searched for in the operations' names.
    """
    found: Counter[tuple[str, str]] = Counter()
    for device, name, op in operations(run):
        if re.search(within, name) and (what := _pass_of(name, op)):
            found[device, what] += 1
    return found


def operations(run: Callable[[], object]) -> set[tuple[str, str, str]]:
    """Return device ("CPU:1"), name and type of each operation that the compiled calls that `run` makes execute.

    TensorFlow's own rewriting has taken place. `run` has to make the loop too, since TensorFlow records what it
    executes for the first time.
    """
    context.enable_run_metadata()
    try:
        context.export_run_metadata()  # what earlier calls may have left
        run()
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    return {(node.device[-5:], node.name, node.op) for graph in metadata.partition_graphs for node in graph.node}


def _pass_of(name: str, op: str) -> str:
    if op == WRITES:
        return "written"
    if op == "Sqrt" and "adam/" in name:
        return "square roots"
    if HEAVY.search(op):
        return "backward" if "gradient_tape" in name else "forward"
    return ""
