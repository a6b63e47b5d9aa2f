"""One reduction, then the same update everywhere: the mechanism on which every step stands.

A replica computes sums over its share of the global batch. The sums travel in one packed reduction; new values of all
variables are computed from the reduced sums only, so every replica comes to the same ones. Strategies differ in
nothing but where the values are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit.train.packing import pack, unpack

Function = Callable[[Any, list[tf.Tensor]], tuple[Sequence[tf.Tensor | None], Any]]


class Update:
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
    """

    def __init__(self, strategy: tf.distribute.Strategy, variables: Sequence[Any], function: Function) -> None:
        self._strategy = strategy
        self._variables = [native(variable) for variable in variables]
        self._function = function
        # One central copy can only be written outside of the replicas; every other strategy keeps a copy on each.
        self._central = isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)

    def __call__(self, sums: Any) -> Any:
        """Reduce `sums` (as `strategy.run` returned them), write the new values, return `function`'s output."""
        return self.after(lambda sums: sums)(sums)

    def after(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Fuse with the computation of the sums: a function that runs `compute` and the update in one go."""

        def on_replica(*args: Any) -> Any:
            sums = all_reduce(compute(*args))
            return sums if self._central else self._write(sums)

        def run(*args: Any) -> Any:
            result = first_replica(self._strategy, self._strategy.run(on_replica, args=args))
            return self._write(result) if self._central else result

        return run

    def _write(self, sums: Any) -> Any:
        values = [tf.convert_to_tensor(variable) for variable in self._variables]
        new_values, output = self._function(sums, values)
        for variable, new in zip(self._variables, new_values, strict=True):
            if new is not None:
                self._own_copy(variable).assign(new)
        return output

    def _own_copy(self, variable: Any) -> Any:
        if self._central:
            return variable
        copies = self._strategy.experimental_local_results(variable)
        return copies[0] if len(copies) == 1 else copies[local_replica(self._strategy)]


def local_replica(strategy: tf.distribute.Strategy) -> int:
    """Return which of this worker's replicas is running; call it in replica context."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(tf.get_static_value(replica)) % len(strategy.extended.worker_devices)


def all_reduce(sums: Any) -> Any:
    """Sum a nest of float tensors over all replicas with one message per bucket; call it in replica context."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return sums
    flat = tf.nest.flatten(sums)
    reduced = context.all_reduce(tf.distribute.ReduceOp.SUM, pack(flat))
    return tf.nest.pack_sequence_as(sums, unpack(reduced, flat))


def first_replica(strategy: tf.distribute.Strategy, values: Any) -> Any:
    """Take the first replica's part of each value in a nest that `strategy.run` returned."""
    return tf.nest.map_structure(lambda value: strategy.experimental_local_results(value)[0], values)


def native(variable: Any) -> Any:
    """Return the TensorFlow variable behind a Keras variable; a TensorFlow variable as it is."""
    return getattr(variable, "value", variable) if not isinstance(variable, tf.Variable) else variable
