"""Whether XLA compiles a function without being asked to, which `jit_compile="auto"` leaves to mirrorkit.

It does on one GPU, where the result stays the same. XLA draws other random floats than TensorFlow, so what draws some
is left to TensorFlow: N replicas and another device would draw other numbers. On several GPUs nobody has measured it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled  # private: nothing public says so

from mirrorkit._types import Nest
from mirrorkit.strategy import is_parameter_server, replica_devices

AUTO = "auto"  # of `Step(jit_compile=)` and `Loop(jit_compile=)`
_DRAWS = "StatelessRandom"  # with which TensorFlow's stateless random operations, and so Keras's, begin
_log = logging.getLogger("mirrorkit")


def is_one_gpu(strategy: tf.distribute.Strategy) -> bool:
    """Return whether the strategy has a single replica, which is on a GPU."""
    devices = [] if is_parameter_server(strategy) else replica_devices(strategy)
    return strategy.num_replicas_in_sync == 1 and all("GPU" in device for device in devices)


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
    try:
        graph = compiled.get_concrete_function(*specs).graph.as_graph_def()
        nodes = itertools.chain(graph.node, *(of.node_def for of in graph.library.function))
        if drawn := next((node.name for node in nodes if node.op.startswith(_DRAWS)), None):
            why = f"XLA would draw other random numbers than TensorFlow ({drawn})"
        else:
            compiled.experimental_get_compiler_ir(*specs)(stage="hlo")
            return True
    except Exception as error:  # what cannot be traced at all says so once more without XLA
        why = f"XLA cannot compile it: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    _log.info('jit_compile="auto" leaves XLA off on this GPU: %s.', why)
    return False
