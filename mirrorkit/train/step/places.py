"""Where the variables of a step lie, for a model that is placed on several devices (`mk.parallel.Layout`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit._types import ConcreteFunction, Nest, Sums, Variable
from mirrorkit.errors import StepError
from mirrorkit.parallel import follow_variables
from mirrorkit.strategy import is_parameter_server, is_tpu, local_replica, num_workers, replica_devices
from mirrorkit.train.reduce.tracing import TraceOnce
from mirrorkit.train.step.changing import Changing
from mirrorkit.train.step.facts import TraceFacts
from mirrorkit.variables import copies, is_placed, path

Pairs = Iterable[tuple[tf.Tensor, str]]  # tensors, each with the name of its device


class TraceOnEach:
    """As `TraceOnce`, with a trace for each replica."""

    def __init__(self, strategy: tf.distribute.Strategy, functions: Sequence[TraceOnce]) -> None:
        self._strategy = strategy
        self._functions = functions

    def __call__(self, *args: Nest) -> Nest:
        """Call this replica's trace that fits `args`."""
        return self._functions[local_replica(self._strategy)](*args)

    def trace(self, *args: Nest) -> ConcreteFunction:
        """Return it."""
        return self._functions[local_replica(self._strategy)].trace(*args)


class Places:
    """The devices of a step's variables; of each replica, since a trace names devices."""

    def __init__(self, strategy: tf.distribute.Strategy, variables: Changing) -> None:
        self._strategy = strategy
        self._first = replica_devices(strategy)
        self._devices = [
            Changing(*[[copies(variable)[replica].device for variable in group] for group in variables])
            for replica in range(len(self._first))
        ]

    @classmethod
    def of(cls, strategy: tf.distribute.Strategy, variables: Changing) -> Places | None:
        """Return them for a placed model; None where the replica's device has all."""
        model = [*variables.weights, *variables.state]
        _check_all_placed(model)
        return cls(strategy, variables) if are_placed(strategy, model) else None

    def traced(
        self, function: Callable[..., Nest], placed: Callable[..., Pairs], *, alone: bool = True
    ) -> Callable[..., Any]:
        """Return a function whose operations follow its arguments, in replica context.

        Args:
            function: a pure function of tensors.
            placed: `placed(replica, devices, *arguments)` yields the arguments that are placed; `devices` are those of
                the replica's variables.
            alone: whether it talks to no other replica; then it is traced once on each, as by `TraceOnce`.
        """
        functions: list[Callable[..., Any]] = [
            follow_variables(function, functools.partial(placed, replica, devices), self._first[replica])
            for replica, devices in enumerate(self._devices)
        ]
        if alone:
            return TraceOnEach(self._strategy, [TraceOnce(one, reads=True) for one in functions])
        return lambda *args: functions[local_replica(self._strategy)](*args)

    def on_first(self, function: Callable[..., Nest]) -> Callable[..., Nest]:
        """Return a function of weights, state and more whose operations follow the first replica's variables."""
        devices = self._devices[0]

        def placed(weights: list[tf.Tensor], state: list[tf.Tensor], *_: Nest) -> Pairs:
            yield from placed_values(devices, weights, state)

        return follow_variables(function, placed, self._first[0])

    @property
    def stages(self) -> list[int]:
        """For each weight the number of its device among its replica's; the same on all replicas."""
        devices = self._devices[0].weights
        return [sorted(set(devices)).index(device) for device in devices]

    def of_sums(self, facts: TraceFacts, replica: int | None = None) -> Sums:
        """Return in the structure of a replica's sums the device of each; of the replica that is running by default."""
        replica = local_replica(self._strategy) if replica is None else replica
        devices = self._devices[replica]
        gradients = [
            device
            for of_term in facts.has_gradient
            for device, has in zip(devices.weights, of_term, strict=True)
            if has
        ]
        state = [device for device, changes in zip(devices.state, facts.changes, strict=True) if changes]
        return {"gradients": gradients, "state": state, "totals": self._first[replica]}


def placed_values(devices: Changing, weights: Iterable[tf.Tensor], state: Iterable[tf.Tensor]) -> Pairs:
    """Yield each value that a pass reads with its device; not seeds, which are on the host."""
    yield from zip(weights, devices.weights, strict=True)
    for value, device in zip(state, devices.state, strict=True):
        if value.dtype.is_floating:
            yield value, device


def placed_pass(_: int, devices: Changing, values: Changing, *rest: Nest) -> Pairs:
    """Yield each value that a pass reads with its device."""
    return placed_values(devices, values.weights, values.state)


def are_placed(strategy: tf.distribute.Strategy, variables: Iterable[Variable]) -> bool:
    """Return whether a replica's variables of floats lie elsewhere than on its device, in this process."""
    central = isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)
    if central or is_parameter_server(strategy) or is_tpu(strategy) or num_workers(strategy) > 1:
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


def _check_all_placed(variables: Iterable[Variable]) -> None:
    """Refuse a model of which a layout has placed a part."""
    large = [v for v in variables if tf.as_dtype(v.dtype).is_floating and len(v.shape)]
    others = [path(variable) for variable in large if not is_placed(variable)]
    if others and len(others) < len(large):
        lines = "\n".join(f"  {name}" for name in sorted(others))
        raise StepError(
            f"A layout (mk.parallel.Layout) has placed {len(large) - len(others)} variables of the model, but not "
            f"these:\n{lines}\nThey were created outside of its block, or no pattern fits them. Build the whole model "
            "in the block, and name them in a rule or give default=0."
        )
