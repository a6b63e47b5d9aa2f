"""Rows of all replicas in one tensor: on two replicas of one process and on two workers what one device has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk

DTYPES = ("bool", "int8", "uint16", "int64", "float16", "bfloat16")
ROWS = ([3, 2], [4, 0], [0, 5])  # of the two replicas


def asked(strategy: tf.distribute.Strategy) -> list[dict[str, Any]]:
    """What this process's replicas gather, and the gradient of a function of it, for each pair of sizes."""
    x = np.arange(-8.0, 7.0, dtype="float32").reshape(5, 3)
    found = []
    for cut, size in ROWS:
        rows = tf.constant(x[: cut + size])

        @tf.function(autograph=False)
        def on_all(whole: tf.Tensor, cut: int = cut) -> Any:
            def on_replica(whole: tf.Tensor) -> Any:
                first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
                own = tf.cond(first, lambda: whole[:cut], lambda: whole[cut:])
                with tf.GradientTape() as tape:
                    tape.watch(own)
                    of_other_dtypes = {name: tf.cast(own, name) for name in DTYPES}
                    every = mk.train.all_gather({"x": own, "bytes": tf.cast(own + 8.0, tf.uint8), **of_other_dtypes})
                    loss = tf.reduce_sum(tf.matmul(own, every["x"], transpose_b=True) ** 2)
                return every, tape.gradient(loss, own)

            return strategy.run(on_replica, args=(whole,))

        every, gradient = on_all(rows)
        local = strategy.experimental_local_results
        found.append(
            {
                "gathered": {name: local(value)[0].numpy().tolist() for name, value in every.items()},
                "dtypes": {name: local(value)[0].dtype.name for name, value in every.items()},
                "gradients": [part.numpy().tolist() for part in local(gradient)],
            }
        )
    return found


def assert_gathered(found: list[dict[str, Any]], replicas: slice) -> None:
    """What the replicas found, against one device that has all rows; their gradients in turn."""
    for (cut, size), of_sizes in zip(ROWS, found, strict=True):
        x = tf.constant(np.arange(-8.0, 7.0, dtype="float32").reshape(5, 3)[: cut + size])
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.matmul(x, x, transpose_b=True) ** 2)
        expected = tape.gradient(loss, x).numpy()
        others = {name: tf.cast(x, name).numpy().tolist() for name in DTYPES}
        assert of_sizes["gathered"] == {"x": x.numpy().tolist(), "bytes": (x.numpy() + 8).tolist(), **others}
        assert of_sizes["dtypes"] == {"x": "float32", "bytes": "uint8", **{name: name for name in DTYPES}}
        parts = np.split(expected, [cut])[replicas]
        for gradient, part in zip(of_sizes["gradients"], parts, strict=True):
            np.testing.assert_allclose(np.reshape(gradient, part.shape), part, rtol=1e-5)


@pytest.mark.slow
def test_two_replicas_gather_all_rows_and_get_the_gradient_of_their_own(strategy_of):
    assert_gathered(asked(strategy_of("mirrored", 2)), slice(0, 2))


@pytest.mark.slow  # two workers
def test_so_do_two_workers(found):
    for worker, rows in enumerate(found):
        assert_gathered(rows, slice(worker, worker + 1))
