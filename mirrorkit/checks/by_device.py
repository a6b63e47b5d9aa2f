"""What each device of a training holds, and what it computes in a step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mirrorkit.train import Loop, Step
from mirrorkit.variables import copies

# Operations that return another view of the same memory, a reference or a shape.
WITHOUT_COMPUTATION = {
    *("Const", "Placeholder", "NoOp", "Reshape", "Squeeze", "ExpandDims", "Bitcast", "Shape", "ShapeN", "Rank", "Size"),
    *("ReadVariableOp", "VarHandleOp", "AssignVariableOp", "VariableShape", "BroadcastGradientArgs", "Snapshot"),
    *("Identity", "IdentityN", "StopGradient", "PreventGradient", "PlaceholderWithDefault", "EnsureShape"),
}


@dataclass(frozen=True)
class OnDevices:
    """What each device holds and computes. `str(report)` has a line for each device.

    ```python
    report = mk.checks.on_devices(loop, train)
    print({device: parts["weights"] for device, parts in report.memory.items()})  # {'CPU:0': 25480, 'CPU:1': 25480}
    print(list(report.operations["CPU:1"]))  # ['forward', 'backward', 'update']
    ```

    Attributes:
        memory: for each device, such as "GPU:1", bytes of "weights", "layer state", "optimizer" and "other" variables.
        operations: for each device, the number of a step's operations in the "forward" pass, the "backward" pass and
            the "update", before TensorFlow optimizes the graph.
    """

    memory: Mapping[str, Mapping[str, int]]
    operations: Mapping[str, Mapping[str, int]]

    def __str__(self) -> str:
        """A line for each device."""
        lines = []
        for device in sorted({*self.memory, *self.operations}):
            found = [f"{size:,} bytes of {kind}" for kind, size in self.memory.get(device, {}).items()]
            found += [f"{number:,} operations of {name}" for name, number in self.operations.get(device, {}).items()]
            lines.append(f"{device}: {', '.join(found)}")
        return "\n".join(lines)


def on_devices(loop: Loop, data: Any) -> OnDevices:
    """Report what the devices of a loop hold, and how many operations of a training step run on each.

    ```python
    print(mk.checks.on_devices(loop, train))
    ```

    Nothing is run. Operations of layers that communicate with other replicas (`synchronized=True`) count as backward if
    TensorFlow names them so, and otherwise not at all.

    Args:
        loop: a loop with a `mk.train.Step`, on the devices to report on.
        data: what `fit` will be given.
    """
    graph = loop.traced(data).graph.as_graph_def()
    functions = {function.signature.name: function.node_def for function in graph.library.function}
    operations: dict[str, Counter[str]] = defaultdict(Counter)
    _count(graph.node, "", "", functions, operations)
    memory: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, variables in by_kind(loop.step).items():
        for variable in variables:
            for copy in copies(variable):
                memory[_short(copy.device)][kind] += copy.shape.num_elements() * copy.dtype.size
    return OnDevices(memory, operations)


def by_kind(step: Any) -> dict[str, list[Any]]:
    """Return the variables of a step by what they are; all variables of a custom step are "other"."""
    if not isinstance(step, Step):
        return {"other": list(getattr(step, "variables", []))}
    groups = {
        "weights": step.model.trainable_variables,
        "layer state": step.model.non_trainable_variables,
        "optimizer": [] if step.optimizer is None else step.optimizer.variables,
    }
    known = {id(variable) for group in groups.values() for variable in group}
    return {**groups, "other": [variable for variable in step.variables if id(variable) not in known]}


def _count(
    nodes: Iterable[Any], device: str, caller: str, functions: Mapping[str, Any], found: dict[str, Counter[str]]
) -> None:
    """Count the operations of a function that is called on `device`, and of those that it calls, a loop's body once."""
    for node in nodes:
        here = _short(node.device) or device
        called = []
        for value in node.attr.values():  # such as both branches of a condition
            called += [function.name for function in (value.func, *value.list.func) if function.name]
        for name in called:
            _count(functions[name], here, f"{caller} {name}", functions, found)
        if not called and node.op not in WITHOUT_COMPUTATION and (what := _pass_of(node.name, caller)):
            found[here][what] += 1


def _pass_of(name: str, caller: str) -> str:
    if "new_values" in caller:
        return "update"
    if "gradient_tape/" in name:
        return "backward"
    return "forward" if "shard_sums" in caller else ""


def _short(device: str) -> str:
    """Return "GPU:1"; nothing for a name that leaves the device open."""
    spec = tf.DeviceSpec.from_string(device)
    return "" if spec.device_type is None else f"{spec.device_type}:{spec.device_index or 0}"
