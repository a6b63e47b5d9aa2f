"""Whether XLA compiles a function without being asked to, which `jit_compile="auto"` leaves to mirrorkit.

It does on one GPU, where the result stays the same. What draws random numbers that XLA draws otherwise, and that
`xla_draws.py` does not make of whole numbers, is left to TensorFlow: N replicas and another device would draw other
numbers. On several GPUs nobody has measured it.
"""

from __future__ import annotations

import functools
import logging
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._types import ConcreteFunction, Nest
from mirrorkit.strategy import is_parameter_server, replica_devices
from mirrorkit.train.reduce.xla_draws import compiled

AUTO = "auto"  # of `Step(jit_compile=)`
# Kinds of operations that draw; of whole numbers XLA draws the same.
_DRAWS = re.compile(r"Stateless(?!If$|While$|Case$|Random(GetAlg|UniformFullInt|UniformInt))")
_CHECKS = {"Assert", "CheckNumerics", "CheckNumericsV2"}  # which XLA leaves out
# Errors of the attempt itself, which needs all variables on one device; where the function runs, it does not.
_OF_THE_ATTEMPT = ("get_compiler_ir", "located in device")
_UNKNOWN_SIZE = re.compile(r"\w\[(\d+,)*<=\d")  # in a program of XLA: f32[6,<=8,3]
_log = logging.getLogger("mirrorkit")


def is_one_gpu(strategy: tf.distribute.Strategy) -> bool:
    """Return whether the strategy has a single replica, which is on a GPU."""
    if is_parameter_server(strategy) or strategy.num_replicas_in_sync > 1:
        return False
    return all("GPU" in device for device in replica_devices(strategy))


def unsupported(layers: Iterable[Any]) -> str | None:
    """Return why Keras would not have XLA compile a model with these layers, where XLA is its default; or None."""
    if names := [layer.name for layer in layers if not layer.supports_jit]:
        return f"Keras says that it is not for {', '.join(names)} (supports_jit)"
    is_deterministic = private.get("config.is_op_determinism_enabled")  # nothing public says so
    return "operations are to be deterministic" if not is_deterministic or is_deterministic() else None


def tell_left_off(why: str) -> None:
    """Log that XLA is not used though it is the default, and why."""
    _log.info('jit_compile="auto" leaves XLA off on this GPU: %s.', why)


def trace(function: Callable[..., Nest], jit_compile: bool | str, *args: Nest) -> tuple[ConcreteFunction, bool]:
    """Return the trace of a function for these arguments, and whether XLA compiles it; runs nothing."""
    with_xla = takes(function, *args) if jit_compile == AUTO else bool(jit_compile)
    return compiled(function, with_xla=with_xla).get_concrete_function(*args), with_xla


def takes(function: Callable[..., Nest], *args: Nest) -> bool:
    """Return whether XLA can compile a function of nests of tensors, or specs, with the same result; runs nothing.

    Where it cannot, the log says why.
    """
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in tf.nest.flatten(args)]

    def of_tensors(*tensors: tf.Tensor) -> list[tf.Tensor]:
        result = function(*tf.nest.pack_sequence_as(args, tensors))
        return [value for value in tf.nest.flatten(result) if value is not None]

    tried = compiled(of_tensors, with_xla=True)
    why = _objection(tried, tried.get_concrete_function(*specs), specs)
    if why:
        tell_left_off(why)
    return why is None


def _objection(tried: Any, trace: ConcreteFunction, specs: list[tf.TensorSpec]) -> str | None:
    nodes = nodes_of(trace.graph)
    if drawn := next((node.name for node in nodes if _DRAWS.match(node.op)), None):
        return f"XLA would draw other random numbers than TensorFlow ({drawn})"
    if checked := next((node.name for node in nodes if node.op in _CHECKS), None):
        return f"XLA would not check what {checked} does"
    try:
        variables = list(trace.variables)
    except AssertionError:  # created while tracing, and deleted with its thread
        return "it makes variables"
    handles = {id(variable.handle) for variable in variables}
    if any(value.dtype == tf.resource and id(value) not in handles for value in trace.captured_inputs):
        return "XLA knows no resources but variables: no lookup tables"
    devices = [variable.device for variable in variables]
    devices += [device.name for device in tf.config.list_logical_devices()]
    device = next((name for name in devices if "GPU" in name), devices[0])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without the name of a device TensorFlow draws a number to find one
            program = tried.experimental_get_compiler_ir(*specs)(stage="hlo", device_name=device)
    except Exception as error:  # TensorFlow does not say which
        if not any(sign in str(error) for sign in _OF_THE_ATTEMPT):
            return f"XLA cannot compile it: {_first_line(error)}"
    else:
        if _UNKNOWN_SIZE.search(program):
            return "a size depends on values, where XLA may compute with the largest one"
    return _broken(device)


def nodes_of(graph: tf.Graph) -> list[Any]:
    """Return the nodes of a graph, and of the functions in it: each has the kind of its operation, and a name."""
    whole = graph.as_graph_def()
    return [*whole.node, *(node for function in whole.library.function for node in function.node_def)]


@functools.cache
def _broken(device: str) -> str | None:
    """Return why XLA runs nothing on a device, such as a missing libdevice; None where it does."""
    try:
        with tf.device(device):
            tf.function(tf.math.tanh, autograph=False, jit_compile=True)(tf.ones([2]))
    except Exception as error:  # the same
        _log.warning("XLA does not work on %s, so training is slower than it could be: %s", device, _first_line(error))
        return f"it does not work on {device}"
    return None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
