"""Which operations TensorFlow executed, by device and pass.

A layout that ran everything on one device would train to the same weights, so results say nothing about it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from tensorflow.python.eager import context  # private: the public API has no record of what was executed

HEAVY = re.compile(r"MatMul|Conv2D|Einsum")


def executed(run: Callable[[], object], *, within: str = "while/body") -> Counter[tuple[str, str]]:
    """Count the heavy operations of the compiled calls that `run` makes: of ("CPU:1", "backward") and its like.

    TensorFlow's own rewriting has taken place. An operation counts once, however often it was executed; `run` has to
    make the loop too, since TensorFlow records what it executes for the first time. `within` is searched for in the
    operations' names.
    """
    context.enable_run_metadata()
    try:
        run()
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    nodes = (node for graph in metadata.partition_graphs for node in graph.node)
    heavy = {(node.device[-5:], node.name) for node in nodes if HEAVY.search(node.op) and re.search(within, node.name)}
    return Counter((device, "backward" if "gradient_tape" in name else "forward") for device, name in heavy)
