"""Whether XLA compiles a function without being asked to, which `jit_compile="auto"` leaves to mirrorkit.

It does on one GPU, where the result stays the same. XLA draws other random floats than TensorFlow, so what draws some
is left to TensorFlow: N replicas and another device would draw other numbers. On several GPUs nobody has measured it.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled  # private: nothing public says so

from mirrorkit._types import ConcreteFunction, Nest
from mirrorkit.strategy import is_parameter_server, replica_devices

AUTO = "auto"  # of `Step(jit_compile=)` and `Loop(jit_compile=)`
_DRAWS = "StatelessRandom"  # with which TensorFlow's stateless random operations, and so Keras's, begin
_CHECKS = {"Assert", "CheckNumerics", "CheckNumericsV2"}  # which XLA leaves out
# What TensorFlow says where XLA has no kernel, or where sizes depend on values or are not known
_REFUSED = ("unsupported operations", "compile-time constant", "static input shape")
_log = logging.getLogger("mirrorkit")


_left_off = False


@contextlib.contextmanager
def xla_left_off() -> Iterator[None]:
    """Leave XLA off in the block where nobody asks for it, so that each operation can be looked at."""
    global _left_off
    before, _left_off = _left_off, True
    try:
        yield
    finally:
        _left_off = before


def is_one_gpu(strategy: tf.distribute.Strategy) -> bool:
    """Return whether the strategy has a single replica, which is on a GPU."""
    if _left_off or is_parameter_server(strategy) or strategy.num_replicas_in_sync > 1:
        return False
    return all("GPU" in device for device in replica_devices(strategy))


def supports(layers: Iterable[Any]) -> bool:
    """Return whether Keras would have XLA compile a model with these layers, where XLA is its default."""
    return all(layer.supports_jit for layer in layers) and not is_op_determinism_enabled()


def takes(function: Callable[..., Nest], *args: Nest) -> bool:
    """Return whether XLA can compile a function of nests of tensors, or specs, with the same result; runs nothing.

    Where it cannot, the log says why.
    """
    flat = tf.nest.flatten(args)
    places = [place for place, value in enumerate(flat) if isinstance(value, tf.Tensor | tf.TensorSpec)]
    specs = [tf.TensorSpec(flat[place].shape, flat[place].dtype) for place in places]

    def of_tensors(*tensors: tf.Tensor) -> list[tf.Tensor]:
        given = dict(zip(places, tensors, strict=True))
        values = [given.get(place, value) for place, value in enumerate(flat)]
        result = function(*tf.nest.pack_sequence_as(args, values))
        return [value for value in tf.nest.flatten(result) if value is not None]

    compiled = tf.function(of_tensors, autograph=False, jit_compile=True)
    why = _objection(compiled, compiled.get_concrete_function(*specs), specs)
    if why:
        _log.info('jit_compile="auto" leaves XLA off on this GPU: %s.', why)
    return why is None


def _objection(compiled: Any, trace: ConcreteFunction, specs: list[tf.TensorSpec]) -> str | None:
    graph = trace.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    if drawn := next((node.name for node in nodes if node.op.startswith(_DRAWS)), None):
        return f"XLA would draw other random numbers than TensorFlow ({drawn})"
    if checked := next((node.name for node in nodes if node.op in _CHECKS), None):
        return f"XLA would not check what {checked} does"
    handles = {id(variable.handle) for variable in trace.variables}
    if any(value.dtype == tf.resource and id(value) not in handles for value in trace.captured_inputs):
        return "XLA knows no lookup tables"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without the name of a device TensorFlow draws a number to find one
        try:
            compiled.experimental_get_compiler_ir(*specs)(stage="hlo", device_name=_device(trace))
        except Exception as error:  # TensorFlow does not say which; others come again where the function runs
            if any(sign in str(error) for sign in _REFUSED):
                return f"XLA cannot compile it: {str(error).splitlines()[0]}"
    return None


def _device(trace: ConcreteFunction) -> str:
    """Return where the function would run: on the device of a variable that it reads, or else on the first GPU."""
    gpus, cpus = (tf.config.list_logical_devices(kind) for kind in ("GPU", "CPU"))
    name: str = [*(variable.device for variable in trace.variables), *(device.name for device in (*gpus, *cpus))][0]
    return name
