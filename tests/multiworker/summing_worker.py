"""One of several workers: sums messages of several sizes over all of them and writes what came out."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import mirrorkit as mk

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--communication", nargs="+", default=["auto"], help="one for all, or one for each worker")
    options = parser.parse_args()
    asked = options.communication[mk.cluster.detect().task_index % len(options.communication)]
    strategy = mk.strategy.create("multi_worker", communication=asked, devices="cpu")
    me = mk.strategy.worker_index(strategy)
    own = {name: tf.constant(value) for name, value in addends(me).items()}

    def on_replica(own: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(own)
            sums = mk.train.all_reduce(own, bucket_mib=64 / 2**20)  # a message for each
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
    for what, values in (("sums", sums), ("gradients", gradients)):
        assert all(values[name].dtype == SHAPES[name][1] for name in SHAPES)
        exact = {name: tf.cast(value, tf.float64) for name, value in values.items()}  # files know no bfloat16
        np.savez(options.folder / f"{what}{me}.npz", **exact)
    counts = {kind: sum(op.startswith(f"Collective{kind}") for op in types) for kind in ("Gather", "Reduce")}
    (options.folder / f"counts{me}.json").write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
