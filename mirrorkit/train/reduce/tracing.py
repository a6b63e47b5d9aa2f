"""Trace a pure function once and call it on every replica.

`tf.function` traces again on each replica device of a strategy, and plain Python inside `strategy.run` does the same:
the first step of eight replicas then waits for eight traces of the model. A function that reads only its arguments
needs one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import ConcreteFunction, Nest
from mirrorkit.errors import StepError
from mirrorkit.train.reduce import xla
from mirrorkit.variables import copies

T = TypeVar("T")


class TraceOnce:
    """Wraps a pure function of tensors; one trace for each combination of argument shapes, dtypes and structure.

    An argument may be a variable, of which the function reads rows; each replica gives its own copy.

    The function takes nests of tensors and returns a nest of tensors and None. It draws no random numbers and writes no
    variable; it may read some, as a loss may whose weight a callback changes: their values at each call, of the first
    replica, which are those of all. With `jit_compile="auto"`, XLA compiles it if it can.
    """

    def __init__(self, function: Callable[..., Nest], *, jit_compile: bool | str = False) -> None:
        self._jit_compile, self._function = jit_compile, function
        self._traces: dict[str, ConcreteFunction] = {}

    @property
    def variables(self) -> list[tf.Variable]:
        """What the traces read."""
        return [variable for trace in self._traces.values() for variable in trace.variables]

    def __call__(self, *args: Nest) -> Nest:
        """Call the trace that fits `args`; make it first when there is none."""
        tensors = tf.nest.map_structure(lambda x: x if isinstance(x, tf.Variable) else tf.convert_to_tensor(x), args)
        return self.trace(*tensors)(*tensors)

    def trace(self, *args: Nest) -> ConcreteFunction:
        """Return the `tf.ConcreteFunction` that fits `args`: tensors, or specs of them."""
        specs = tf.nest.map_structure(_spec, args)
        key = repr(tf.nest.map_structure(lambda x: f"in {x.shape}" if isinstance(x, tf.Variable) else x, specs))
        if key not in self._traces:
            trace, with_xla = outside_replica(lambda: xla.trace(self._function, self._jit_compile, *specs))
            _require_pure(trace)
            if with_xla and trace.variables and tf.distribute.get_replica_context().num_replicas_in_sync > 1:
                raise StepError(
                    "jit_compile=True was asked for on several replicas, and the step reads a variable that is not its "
                    f"own, {', '.join(sorted(variable.name for variable in trace.variables))}: an XLA program cannot "
                    "read another replica's device. Leave out jit_compile."
                )
            self._traces[key] = trace
        return self._traces[key]


def require_only_read(read: Iterable[tf.Variable], written: Iterable[tf.Variable]) -> None:
    """Refuse an update that reads a variable which it also writes: another replica's update may see the new value."""
    own = {id(copy.handle) for variable in written for copy in copies(variable)}
    if found := sorted({variable.name for variable in read if id(variable.handle) in own}):
        raise StepError(
            f"The update reads the variable {', '.join(found)}, which the step also writes: replicas would see the old "
            "value or the new one. A learning rate that follows the number of updates is a "
            "keras.optimizers.schedules.LearningRateSchedule, which is given that number. What else an update is to "
            "follow belongs in a variable of yours that a callback sets."
        )


def _spec(value: tf.Tensor | tf.TensorSpec | tf.Variable) -> tf.TensorSpec | tf.Variable:
    return value if isinstance(value, tf.Variable) else tf.TensorSpec(value.shape, value.dtype)


# Kinds of operations that draw from a state.
_STATEFUL = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial", "Rng", "Stateful")
_WRITES = re.compile("Assign|Resource(Scatter|Sparse|Apply|StridedSliceAssign)")


def writes(graph: tf.Graph) -> set[str]:
    """Return the kinds of operations of a graph, and of the functions in it, that write a variable."""
    return {kind for kind in _kinds(graph) if _WRITES.match(kind)}


def draws(graph: tf.Graph) -> set[str]:
    """Return the kinds of operations of a graph, and of the functions in it, that draw from a state."""
    return {kind for kind in _kinds(graph) if kind.startswith(_STATEFUL)} - {"StatefulPartitionedCall"}


def _kinds(graph: tf.Graph) -> set[str]:
    return {node.op for node in xla.nodes_of(graph)}


def _require_pure(trace: ConcreteFunction) -> None:
    written = writes(trace.graph)
    found = {f"the operation {kind}" for kind in draws(trace.graph)}
    if written:
        try:
            variables = {variable.name for variable in trace.variables}
        except AssertionError:  # created while tracing, and deleted with its thread
            variables = {"one of Keras's own random seeds"}
        found |= variables or {f"a variable that it writes ({kind})" for kind in written}  # one that it never reads
    if found:
        raise foreign_state(found)


def foreign_state(names: Iterable[str]) -> StepError:
    """Return the error about state that a model uses and that is not among its own variables."""
    return StepError(
        f"The model uses state that is not among its own: {', '.join(sorted(set(names)))}. Replicas would share it, "
        "and a run could not be repeated. A layer that draws random numbers needs a keras.random.SeedGenerator as an "
        "attribute and keras.random's functions; other state must come from a layer's add_weight. Step.from_loss takes "
        "all models, layers and SeedGenerators that its loss_fn uses; a variable that it only reads, and that is not "
        "to be trained, has trainable=False. Let loss_fn return what a metric would measure."
    )


def numbers_by_row(graph: tf.Graph, rows: int | None) -> int:
    """Return how many numbers the tensors of a graph hold for each row of a batch; `rows` is its size, as traced.

    Dimensions that are not known count as 1.
    """
    found = 0
    for operation in graph.get_operations():
        for tensor in operation.outputs:
            shape = tensor.shape
            if shape.rank and shape[0] == rows:
                found += math.prod(size or 1 for size in shape[1:])
    return found


def outside_replica(function: Callable[[], T]) -> T:
    """Call `function` as if at the top of a program: no graph, device or strategy around it.

    TensorFlow keeps all three by thread, so a thread of its own is outside of them; `tf.init_scope` would leave the
    replica's device and stop gradient tapes. Keras keeps its dtype policy so too, which is carried over.
    """
    policy = keras.config.dtype_policy()
    with ThreadPoolExecutor(1, initializer=keras.config.set_dtype_policy, initargs=(policy,)) as thread:
        return thread.submit(function).result()
