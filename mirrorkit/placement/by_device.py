"""What each device of a training holds, and what it computes in a step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mirrorkit.placement.inspection import bytes_of, groups_of
from mirrorkit.placement.operations import FUNCTIONS, WITHOUT_LAUNCH, function_names
from mirrorkit.train import Loop
from mirrorkit.variables import copies

_PASSES = ("forward", "backward", "update")


@dataclass(frozen=True)
class OnDevices:
    """What each device holds and computes. `str(report)` is a table.

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
        """The table."""
        kinds = [kind for kind in ("weights", "layer state", "optimizer", "other") if self._has(kind)]
        rows = [["device", *(f"{kind}, bytes" for kind in kinds), *(f"{name}, operations" for name in _PASSES)]]
        for device in sorted({*self.memory, *self.operations}):
            numbers = [self.memory.get(device, {}).get(kind, 0) for kind in kinds]
            numbers += [self.operations.get(device, {}).get(name, 0) for name in _PASSES]
            rows.append([device, *(f"{number:,}" for number in numbers)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)

    def _has(self, kind: str) -> bool:
        return any(parts.get(kind) for parts in self.memory.values())


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
    function = loop.traced(data, also=())[0].function
    operations: dict[str, Counter[str]] = defaultdict(Counter)
    _count(function.graph, "", "", operations)
    memory: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, variables in groups_of(loop.step).items():
        for copy in (copy for variable in variables for copy in copies(variable)):
            memory[_short(copy.device)][kind] += bytes_of(copy)
    return OnDevices(memory, operations)


def _count(graph: Any, device: str, function: str, found: dict[str, Counter[str]]) -> None:
    for op in graph.get_operations():
        here = _short(op.device) or device
        if op.type in FUNCTIONS:
            for name in function_names(op):
                _count(graph._get_function(name).graph, here, f"{function} {name}", found)
        elif op.type not in WITHOUT_LAUNCH and (what := _pass_of(op.name, function)):
            found[here][what] += 1


def _pass_of(name: str, function: str) -> str:
    if "new_values" in function:
        return "update"
    if "gradient_tape/" in name:
        return "backward"
    return "forward" if "shard_sums" in function else ""


def _short(device: str) -> str:
    """Return "GPU:1"; nothing for a name that leaves the device open."""
    spec = tf.DeviceSpec.from_string(device)
    return "" if spec.device_type is None else f"{spec.device_type}:{spec.device_index or 0}"
