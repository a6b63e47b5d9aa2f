"""One reduction, then the same update everywhere: the mechanism on which every step stands.

A replica computes sums over its share of the global batch. The sums travel in one packed reduction; new values of all
variables are computed from the reduced sums only, so every replica comes to the same ones. Strategies differ in
nothing but where the values are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

import tensorflow as tf
from typing_extensions import TypeVar

from mirrorkit._types import Nest, Sums, Variable
from mirrorkit.strategy import first_replica, is_central_storage, is_parameter_server, local_replica
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.variables import native, own_copy

Output = TypeVar("Output", default=Any)  # what a function returns beside the new values: logs, mostly


class Update(Generic[Output]):
    """Reduce per-replica sums and write new values that depend on nothing else.

    ```python
    update = mk.train.Update(strategy, variables, function)
    sums = strategy.run(compute, args=(batch,))   # a nest of float tensors of static shape on each replica
    logs = update(sums)
    ```

    Args:
        strategy: the strategy in whose scope the variables were created.
        variables: Keras or TensorFlow variables.
        function: `(sums, values) -> (new_values, output)`, pure: `sums` summed over all replicas, `values` the
            variables' values; a `None` among `new_values` leaves that variable alone.
        last_wins: variables that take the last value written under parameter servers, because differences written by
            several workers at the same time would not add up.
        reduce: called on each replica, sums a nest over all of them; by default `mk.train.all_reduce`.
        in_place: variables that `function` writes itself: it gets the replica's copy in place of the value, and returns
            None.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        variables: Sequence[Variable],
        function: Callable[[Sums, list[tf.Tensor]], tuple[Sequence[tf.Tensor | None], Output]],
        *,
        last_wins: Sequence[Variable] = (),
        reduce: Callable[[Sums], Sums] | None = None,
        in_place: Sequence[Variable] = (),
    ) -> None:
        self._strategy = strategy
        self._reduce = reduce or all_reduce
        self._variables = [native(variable) for variable in variables]
        self._function = function
        # One central copy can only be written outside of the replicas; every other strategy keeps a copy on each.
        self._central = is_central_storage(strategy)
        # Workers of parameter servers write while others compute: each adds the difference to what it had read, which
        # is atomic, so that no update is lost.
        self._adds_up = is_parameter_server(strategy)
        self._last_wins = {id(native(variable)) for variable in last_wins}
        self._in_place = {id(native(variable)) for variable in in_place}

    def __call__(self, sums: Sums) -> Output:
        """Reduce `sums` (as `strategy.run` returned them), write the new values, return `function`'s output."""
        return self.after(lambda sums: sums)(sums)

    def after(self, compute: Callable[..., Sums]) -> Callable[..., Output]:
        """Return a function that runs `compute` and this update together."""

        def on_replica(*args: Nest) -> Nest:
            sums = self._reduce(compute(*args))
            return sums if self._central else self._write(sums)

        def run(*args: Nest) -> Any:
            result = first_replica(self._strategy, self._strategy.run(on_replica, args=args))
            if not self._central:
                return result
            with tf.device(self._variables[0].device):  # where the one copy lies, which may be too big for a GPU
                return self._write(result)

        return run

    def _write(self, sums: Sums) -> Output:
        replica = 0 if self._central else local_replica(self._strategy)
        # Under parameter servers variables are read once the sums are there: others may write while they are computed.
        # A gradient that is some updates old does little harm. Momentum that is would decay by what it was then, and
        # beyond about fifteen updates it would swing without bound.
        with tf.control_dependencies(tf.nest.flatten(sums) if self._adds_up else []):
            values = [
                own_copy(variable, replica) if id(variable) in self._in_place else tf.convert_to_tensor(variable)
                for variable in self._variables
            ]
        new_values, output = self._function(sums, values)
        for variable, old, new in zip(self._variables, values, new_values, strict=True):
            if new is None:
                continue
            if self._adds_up and variable.dtype != tf.bool and id(variable) not in self._last_wins:
                variable.assign_add(new - old)
            else:
                own_copy(variable, replica).assign(new)
        return output
