"""Random floats under XLA: those that TensorFlow draws.

Of a key, XLA draws the same whole numbers as TensorFlow, but makes other floats of them, and of a seed it sees 32 bits.
So where XLA compiles a function, TensorFlow makes the key by operations that XLA computes alike, and floats are made
here of whole numbers, by the rules of TensorFlow's `random_distributions.h`. Uniform numbers have TensorFlow's bits,
normal ones differ by rounding. A function that is not compiled draws as always.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from mirrorkit import private
from mirrorkit._types import Nest
from mirrorkit.train.ambient import ambient, replaces

Draw: TypeAlias = Callable[..., tf.Tensor]
# A float from 1 to 2: the bits of 1.0, and how many bits behind them are drawn.
_FLOATS = {
    tf.float32: (tf.uint32, 0x3F800000, 23),
    tf.float16: (tf.uint16, 0x3C00, 10),
    tf.bfloat16: (tf.uint16, 0x3F80, 7),
}
_SMALLEST = 1e-7  # of which a logarithm is taken


def compiled(function: Callable[..., Nest], *, with_xla: bool) -> Any:
    """Return the `tf.function` of a Python function; one that XLA compiles draws TensorFlow's numbers.

    AutoGraph would rewrite the user's code too, and with it the errors that it raises.
    """
    if not with_xla:
        return tf.function(function, autograph=False)

    @functools.wraps(function)
    def drawing(*args: Nest) -> Nest:
        with ambient.set(compiled=True):
            return function(*args)

    return tf.function(drawing, autograph=False, jit_compile=True)


@replaces("gen_stateless_random_ops_v2.stateless_random_get_key_counter", within="compiled")
def _key(original: Callable[..., Nest], seed: tf.Tensor) -> Nest:
    return private.get("random_ops_util.get_key_counter_alg")(seed, "philox")[:2]


@replaces(
    "gen_stateless_random_ops_v2.stateless_random_uniform_v2",
    "gen_stateless_random_ops_v2.stateless_random_normal_v2",
    within="compiled",
)
def _floats(original: Draw, shape: Any, dtype: Any, **key: Any) -> tf.Tensor:
    if tf.as_dtype(dtype) not in _FLOATS:
        return original(shape, dtype=dtype, **key)
    make = _normal if "normal" in original.__name__ else _uniform
    return make(shape, tf.as_dtype(dtype), functools.partial(tf.raw_ops.StatelessRandomUniformFullIntV2, **key))


def _uniform(shape: Any, dtype: tf.DType, draw: Draw) -> tf.Tensor:
    """Return numbers from 0 to 1, whose mantissas are the lowest bits of the drawn ones."""
    kind, one, bits = _FLOATS[dtype]
    mantissa = tf.cast(draw(shape=shape, dtype=tf.uint32) & (2**bits - 1), kind)
    return tf.bitcast(mantissa | one, dtype) - tf.cast(1, dtype)


def _normal(shape: Any, dtype: tf.DType, draw: Draw) -> tf.Tensor:
    """Box-Muller's transform: each pair of drawn numbers becomes a pair of normal ones."""
    size = tf.reduce_prod(shape)
    first, second = tf.unstack(_uniform([(size + 1) // 2, 2], tf.float32, draw), axis=1)
    radius = tf.sqrt(-2.0 * tf.math.log(tf.maximum(first, _SMALLEST)))
    angle = 2 * math.pi * second
    pairs = tf.stack([tf.sin(angle) * radius, tf.cos(angle) * radius], axis=1)
    return tf.cast(tf.reshape(tf.reshape(pairs, [-1])[:size], shape), dtype)
