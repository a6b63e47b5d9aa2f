"""Sums over several workers: short messages are gathered, long ones go in a ring, all do where a ring was asked for."""

from __future__ import annotations

from functools import reduce
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from ml_dtypes import finfo

import mirrorkit as mk
from mirrorkit.train.reduce import reduction

SHAPES = {"half": ([3], "float16"), "double": ([2, 2], "float64"), "short": ([64, 1024], "float32")}
SHAPES |= {"long": ([64, 1025], "float32"), "last": ([], "float32"), "empty": ([0, 4], "float32")}
SHAPES |= {"brain": ([5], "bfloat16")}
IN_A_RING = ("long", "brain")  # TensorFlow gathers no bfloat16
LOOPS = 3


def dtype(name: str) -> np.dtype:
    """NumPy's type of a message, bfloat16 included."""
    return np.dtype(tf.as_dtype(SHAPES[name][1]).as_numpy_dtype)


def addends(worker: int) -> dict[str, np.ndarray]:
    """What a worker adds; of such different sizes that another order of addition gives other bits."""
    rng = np.random.default_rng(worker)
    numbers = {name: rng.normal(size=shape) for name, (shape, _) in SHAPES.items()}
    return {name: (n * 10.0 ** (worker % 2 * 3)).astype(dtype(name)) for name, n in numbers.items()}


def summed(strategy: tf.distribute.Strategy) -> tuple[dict[str, int], Any, Any]:
    """How many messages are gathered or reduced, the sums of messages of several sizes, and their gradients."""
    me = mk.strategy.worker_index(strategy)
    own = {name: tf.constant(value) for name, value in addends(me).items()}

    def on_replica(own: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(own)
            with mock.patch.object(reduction, "message_size", return_value=64):  # a message for each
                sums = mk.train.all_reduce(own)
            objective = (me + 1.0) * sum(tf.reduce_sum(tf.cast(value, tf.float32)) for value in sums.values())
        return sums, tape.gradient(objective, own)

    @tf.function(autograph=False)
    def many() -> Any:
        """Sum several times in one call, each time twice as much as before; return the last of it."""

        def body(index: tf.Tensor, own: Any, first: Any) -> Any:
            sums, gradients = strategy.run(on_replica, args=(own,))
            return index + 1, {name: 2 * value for name, value in own.items()}, (sums, gradients)

        start = strategy.run(on_replica, args=(own,))
        return tf.while_loop(lambda index, *_: index < LOOPS, body, (0, own, start))[2]

    if me == 0:  # the workers need not trace alike: where shares have another size, or the chief looks at a graph
        tf.function(lambda own: strategy.run(on_replica, args=(own,)), autograph=False).get_concrete_function(own)
    traced = many.get_concrete_function()
    types = [op.type for op in traced.graph.get_operations()]
    sums, gradients = traced()
    assert all(value[name].dtype == SHAPES[name][1] for value in (sums, gradients) for name in SHAPES)
    counts = {kind: sum(op.startswith(f"Collective{kind}") for op in types) for kind in ("Gather", "Reduce")}
    return counts, *({name: value.numpy() for name, value in values.items()} for values in (sums, gradients))


@pytest.fixture(scope="module", params=[("auto", 3), ("ring", 2)], ids=str)
def found(request: pytest.FixtureRequest, on_workers: Any) -> tuple[str, list[tuple[dict[str, int], Any, Any]]]:
    communication, workers = request.param
    return communication, on_workers(summed, communication=communication, workers=workers)


@pytest.mark.slow  # three workers, and two
def test_sums_and_gradients_are_those_of_all_workers(found):
    communication, of_workers = found
    times = 2 ** (LOOPS - 1)
    added = [{name: times * value for name, value in addends(worker).items()} for worker in range(len(of_workers))]
    for counts, sums, gradients in of_workers:
        gathered = 2 * 4 if communication == "auto" else 0  # of four messages, and of their gradients
        assert counts == {"Gather": gathered, "Reduce": 2 * 6 - gathered}
        for name, (shape, _) in SHAPES.items():
            np.testing.assert_array_equal(sums[name], of_workers[0][1][name])
            if gathered and name not in IN_A_RING:
                np.testing.assert_array_equal(sums[name], reduce(np.add, [own[name] for own in added]))
            exact, sizes = (sum(f(own[name].astype("float64")) for own in added) for f in (np.positive, np.abs))
            error = np.abs(sums[name].astype("float64") - exact)
            assert (error <= len(of_workers) * float(finfo(dtype(name)).eps) * sizes).all(), name
            np.testing.assert_array_equal(gradients[name], np.full(shape, sum(range(1, len(of_workers) + 1))))
