"""Where the variables of a replica lie: on its device, or on several (`mk.parallel.Layout`)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mirrorkit._types import ConcreteFunction, Nest, Sums, Variable
from mirrorkit.devices import short_name
from mirrorkit.errors import StepError
from mirrorkit.parallel import follow_variables
from mirrorkit.strategy import class_name, has_copies, is_on_own_devices, local_replica, replica_devices
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.reduce.tracing import TraceOnce
from mirrorkit.train.step.facts import Changing, TraceFacts
from mirrorkit.variables import copies, is_placed, path


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
        if len(devices) > 1 or any(short_name(device) != short_name(first) for device in by_layout):
            return True
    return False


Pairs = Iterable[tuple[tf.Tensor, str]]  # tensors, each with the name of its device


@dataclass(frozen=True)
class OnEach:
    """A function for each replica, since it names devices: as `TraceOnce` where these are."""

    strategy: tf.distribute.Strategy
    functions: Sequence[Any]

    def __call__(self, *args: Nest) -> Nest:
        """Call this replica's."""
        return self.functions[local_replica(self.strategy)](*args)

    def trace(self, *args: Nest) -> ConcreteFunction:
        """Return this replica's trace that fits `args`."""
        return self.functions[local_replica(self.strategy)].trace(*args)


class SeveralDevices(OneDevice):
    """The devices of a step's variables, of each replica."""

    branches = False

    def __init__(self, strategy: tf.distribute.Strategy, variables: Changing) -> None:
        super().__init__(strategy)
        self.has_copies = False
        self.description = "a model on several devices (mk.parallel.Layout)"
        self._first = replica_devices(strategy)
        self._devices = [
            Changing(*[[copies(variable)[replica].device for variable in group] for group in variables])
            for replica in range(len(self._first))
        ]
        of_weights = self._devices[0].weights
        self.stages = [sorted(set(of_weights)).index(device) for device in of_weights]  # the same on all replicas

    @staticmethod
    def fits(strategy: tf.distribute.Strategy, variables: Changing) -> bool:
        """Return whether the model is placed; refuses one of which a part is."""
        model = [*variables.weights, *variables.state]
        large = [v for v in model if tf.as_dtype(v.dtype).is_floating and len(v.shape)]
        others = [path(variable) for variable in large if not is_placed(variable)]
        if others and len(others) < len(large):
            lines = "\n".join(f"  {name}" for name in sorted(others))
            raise StepError(
                f"A layout (mk.parallel.Layout) has placed {len(large) - len(others)} variables of the model, but not "
                f"these:\n{lines}\nThey were created outside of its block, or no pattern fits them. Build the whole "
                "model in the block, and name them in a rule or give default=0."
            )
        return are_placed(strategy, model)

    def trace(
        self,
        function: Callable[..., Nest],
        *,
        alone: bool,
        jit_compile: bool | str = False,
        facts: Callable[[], TraceFacts] | None = None,
    ) -> Any:
        """Return a function whose operations follow its arguments, in replica context; traced once on each replica."""

        def of_pass(replica: int, values: Changing, *rest: Nest) -> Pairs:
            return self._placed_values(replica, values.weights, values.state)

        def of_update(replica: int, step: Any, sums: Sums, old: Changing, *rest: Nest) -> Pairs:
            assert facts is not None
            of_sums = self.of_sums(facts(), replica)
            yield from zip(tf.nest.flatten(sums), tf.nest.flatten(of_sums), strict=True)
            yield from zip(old.flat, self._devices[replica].flat, strict=True)

        placed = of_update if facts else of_pass
        functions = [
            follow_variables(function, functools.partial(placed, replica), first)
            for replica, first in enumerate(self._first)
        ]
        return OnEach(self._strategy, [TraceOnce(one) if alone else one for one in functions])

    def on_first(self, function: Callable[..., Nest]) -> Callable[..., Nest]:
        """See `OneDevice`."""

        def placed(weights: list[tf.Tensor], state: list[tf.Tensor], *rest: Nest) -> Pairs:
            return self._placed_values(0, weights, state)

        return follow_variables(function, placed, self._first[0])

    def _placed_values(self, replica: int, weights: Iterable[tf.Tensor], state: Iterable[tf.Tensor]) -> Pairs:
        """Yield each value that a pass reads with its device; not seeds, which are on the host."""
        devices = self._devices[replica]
        yield from zip(weights, devices.weights, strict=True)
        for value, device in zip(state, devices.state, strict=True):
            if value.dtype.is_floating:
                yield value, device

    def reducing(self, facts: Callable[[], TraceFacts]) -> Callable[[Sums], Sums]:
        """Return what sums each over all replicas on the device where it lies; in replica context."""

        def reduce(sums: Sums) -> Sums:
            flat, devices = map(tf.nest.flatten, (sums, self.of_sums(facts(), local_replica(self._strategy))))
            for device in sorted(set(devices)):
                places = [i for i, one in enumerate(devices) if one == device]
                with tf.device(device):
                    reduced = all_reduce([flat[i] for i in places])
                for i, total in zip(places, reduced, strict=True):
                    flat[i] = total
            return tf.nest.pack_sequence_as(sums, flat)

        return reduce

    def added(self, sums: Sums, more: Sums, facts: TraceFacts) -> Sums:
        """Add each where it lies."""

        def add(one: tf.Tensor, other: tf.Tensor, device: str) -> tf.Tensor:
            with tf.device(device):
                return one + other

        return tf.nest.map_structure(add, sums, more, self.of_sums(facts, local_replica(self._strategy)))

    def of_sums(self, facts: TraceFacts, replica: int) -> Sums:
        """Return in the structure of a replica's sums the device of each."""
        devices = self._devices[replica]
        gradients = [devices.weights[i] for i in facts.weights]
        state = list(itertools.compress(devices.state, facts.changes))
        first = self._first[replica]
        divisors = [first] * (len(facts.has_gradient) - 1)
        return {"gradients": gradients, "divisors": divisors, "state": state, "totals": first}
