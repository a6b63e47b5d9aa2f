"""Where the variables of a replica lie: all on its device. `several_devices.py` has the other case."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit._types import Nest, Sums, Variable
from mirrorkit.strategy import class_name, has_copies, is_on_own_devices, replica_devices
from mirrorkit.train.reduce.tracing import TraceOnce
from mirrorkit.train.step.facts import TraceFacts
from mirrorkit.variables import copies, is_placed


class OneDevice:
    """All variables of a replica are on its device, so one trace serves all replicas.

    Attributes:
        stages: for each weight the number of its device, where they differ.
        branches: whether a share without rows may be left out by a branch, which lies on one device.
        on_first: lets a function of weights, state and more compute on the devices of the first replica, where it has
            several.
    """

    stages: Sequence[Hashable] | None = None
    branches = True
    on_first: Callable[[Callable[..., Nest]], Callable[..., Nest]] | None = None

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self.has_copies = has_copies(strategy)
        self.description = class_name(strategy)

    def trace(
        self,
        function: Callable[..., Nest],
        *,
        alone: bool,
        jit_compile: bool | str = False,
        facts: Callable[[], TraceFacts] | None = None,
    ) -> Any:
        """Let a pure function be traced once, where it talks to no other replica.

        It is a pass, of `Changing` and more; with `facts` an update, of reduced sums and the values of all variables.
        """
        return TraceOnce(function, jit_compile=jit_compile) if alone else function

    def reducing(self, facts: Callable[[], TraceFacts]) -> Callable[[Sums], Sums] | None:
        """Return what sums over all replicas; None for `all_reduce`."""
        return None

    def added(self, sums: Sums, more: Sums, facts: TraceFacts) -> Sums:
        """Add up a replica's sums of two batches; in replica context."""
        return tf.nest.map_structure(tf.add, sums, more)


def are_placed(strategy: tf.distribute.Strategy, variables: Iterable[Variable]) -> bool:
    """Return whether a replica's variables of floats lie elsewhere than on its device, in this process."""
    if not is_on_own_devices(strategy):
        return False
    replicas = replica_devices(strategy)
    # A variable that no layout has placed counts only if it is a weight: TensorFlow puts others on the host at times.
    # Variables of a custom step without a copy for each replica are ignored.
    floats = [v for v in variables if tf.as_dtype(v.dtype).is_floating and (v.trainable or is_placed(v))]
    floats = [v for v in floats if len(copies(v)) == len(replicas)]
    for replica, first in enumerate(replicas):
        devices = {copies(variable)[replica].device for variable in floats}
        by_layout = {copies(variable)[replica].device for variable in floats if is_placed(variable)}
        if len(devices) > 1 or any(_short(device) != _short(first) for device in by_layout):
            return True
    return False


def _short(device: str) -> tuple[str, int]:
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type, spec.device_index
