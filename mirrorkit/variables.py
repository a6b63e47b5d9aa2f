"""Variables under a strategy: what they are called, the copies that replicas hold, and how to put all of them back."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.errors import StepError


class ValueScope(keras.StatelessScope):  # type: ignore[name-defined]
    """Keras's own; no gradient flows through an assigned value, as none flows through a variable that is read again."""

    def add_update(self, update: tuple[Any, tf.Tensor]) -> None:
        """See `keras.StatelessScope`."""
        super().add_update((update[0], tf.stop_gradient(update[1])))


def native(variable: Any) -> Any:
    """Return the TensorFlow variable behind a Keras variable; a TensorFlow variable as it is."""
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)


def copies(variable: Any) -> list[Any]:
    """Return each local replica's copy of a Keras or TensorFlow variable; the variable itself where there is one."""
    variable = native(variable)
    strategy = getattr(variable, "distribute_strategy", None)  # only where the replicas hold copies
    return [variable] if strategy is None else list(strategy.experimental_local_results(variable))


def own_copy(variable: Any, replica: int) -> Any:
    """Return the copy of a local replica; the variable itself where there is one."""
    own = copies(variable)
    return own[0] if len(own) == 1 else own[replica]


def read(variable: Any) -> tf.Tensor:
    """Read a Keras or TensorFlow variable, in replica context this replica's copy, on the device of the replica.

    TensorFlow's own read names no device. A loop that takes such a value, as a recurrent layer its weights, is then put
    on the first replica's device in part, and the others fetch the value from there at each time step.
    """
    own = native(variable)
    if not own.dtype.is_floating:  # a seed, on the host
        return tf.convert_to_tensor(own)
    with tf.device(own.device) if is_placed(variable) else contextlib.nullcontext():
        return tf.identity(own)


def mark_named(variable: tf.Variable, name: str) -> tf.Variable:
    """Call a TensorFlow variable by the attribute that it is, in place of "Variable:0"."""
    variable._mirrorkit_name = name
    return variable


def mark_sharded(variable: Any) -> None:
    """Remember that each replica's copy of a variable holds another part of something, not the same values."""
    native(variable)._mirrorkit_sharded = True


def mark_given(variable: Any, value: Any) -> None:
    """Remember the number that this process gave as a variable's first value, where workers take the chief's."""
    native(variable)._mirrorkit_given = value


def given(variable: Any) -> Any:
    """Return that number; None if the variable is not a scalar or there is only one worker."""
    return getattr(native(variable), "_mirrorkit_given", None)


def is_sharded(variable: Any) -> bool:
    """Return whether the replicas' copies are meant to differ."""
    return getattr(native(variable), "_mirrorkit_sharded", False)


def mark_placed(variable: tf.Variable) -> tf.Variable:
    """Remember that a layout has placed a variable, or one replica's copy."""
    variable._mirrorkit_placed = True
    return variable


def is_placed(variable: Any) -> bool:
    """Return whether a layout has placed it."""
    return any(getattr(copy, "_mirrorkit_placed", False) for copy in copies(variable))


def distinct(variable: Any) -> list[Any]:
    """Return those of the local copies that hold values of their own: one of all, unless the variable is sharded."""
    return copies(variable) if is_sharded(variable) else copies(variable)[:1]


def path(variable: Any) -> str:
    """Return the name by which messages and files know a Keras or TensorFlow variable, such as "dense/kernel"."""
    return getattr(variable, "path", None) or getattr(variable, "_mirrorkit_name", variable.name)


def fixed_number(name: str, value: Any, cure: str) -> float:
    """Return an argument that is read once as a finite float; refuse a variable, whose later values are not seen."""
    if isinstance(native(value), tf.Variable):
        raise StepError(
            f"{name} takes numbers, found the variable {path(value)!r}, whose value would be read only once. {cure}"
        )
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise StepError(f"{name} takes finite numbers, found {value!r}.")
    return number


def assign(variable: Any, value: Any) -> None:
    """Write a value into every local replica's copy; outside of the replicas."""
    for copy in copies(variable):
        copy.assign(value)


class Snapshot:
    """The values that variables had when they were added; every replica's copy counts as a variable of its own."""

    def __init__(self, variables: Iterable[Any] = ()) -> None:
        self._values: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}  # handles and values, by the ids of the handles
        self.add(variables)

    def holds(self, variable: Any) -> bool:
        """Return whether every copy of this variable is remembered."""
        return all(id(copy.handle) in self._values for copy in copies(variable))

    def add(self, variables: Iterable[Any]) -> None:
        """Remember the present values of Keras or TensorFlow variables, except of those that were added before."""
        for variable in variables:
            for copy in copies(variable):
                if id(copy.handle) not in self._values:
                    self._values[id(copy.handle)] = (copy.handle, tf.identity(copy))

    def add_captured(self, traced: Any) -> None:
        """Remember the variables that a traced function holds, as `add` does.

        They are found by their handles: `traced.variables` leaves out those that are only written.

        Args:
            traced: a `tf.types.experimental.ConcreteFunction`.
        """
        for handle in traced.captured_inputs:
            data = getattr(handle, "_handle_data", None)  # private to TensorFlow; iterators and tables have none
            if data is not None and data.is_set and id(handle) not in self._values:
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=data.shape_and_type[0].dtype)
                self._values[id(handle)] = (handle, value)

    def put_back(self) -> None:
        """Give every copy the value that it had."""
        for handle, value in self._values.values():
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)


@contextmanager
def unchanged(variables: Iterable[Any]) -> Iterator[Snapshot]:
    """Run the block, then restore `variables` (each replica's copy) and the random generators bit for bit.

    The generators are Python's, NumPy's and TensorFlow's global ones. The block may add variables to what it is given.
    """
    snapshot = Snapshot(variables)
    snapshot.add(_state_of_generator())
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield snapshot
    finally:
        snapshot.put_back()
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _state_of_generator() -> list[tf.Variable]:
    try:
        return [tf.random.get_global_generator().state]
    except RuntimeError:  # with op determinism on there is none until the user sets one
        return []
