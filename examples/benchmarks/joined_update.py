"""What joining small weights in the update gains on this machine: the time of the update, by the size limit.

    python examples/benchmarks/joined_update.py --nets resnet20 resnet56 --optimizer sgd --limits 0 16 64

Measures the processor time of one update (read, mean, optimizer, write), with the limits in turns; 0 joins nothing.
Ratios are medians and quartiles of pairs with the first limit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.optim import packed

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adamw": lambda: keras.optimizers.AdamW(0.001),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=["mnist_cnn", "resnet20", "resnet56"], help="names of mk.models")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--limits", nargs="+", type=float, default=[0, 16, 64], help="in KiB")
    parser.add_argument("--devices", default="cpu:1")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--updates", type=int, default=50, help="of one measurement")
    options = parser.parse_args()

    strategy = mk.strategy.create(devices=options.devices)
    for net in options.nets:
        runs = {limit: updates(strategy, net, OPTIMIZERS[options.optimizer], limit) for limit in options.limits}
        seconds: dict[float, list[float]] = {limit: [] for limit in runs}
        for repeat in range(options.repeats):
            for limit in runs if repeat % 2 else reversed(runs):
                start = time.process_time()
                runs[limit](options.updates)
                seconds[limit].append((time.process_time() - start) / options.updates)
        first = np.array(next(iter(seconds.values())))
        for limit, values in seconds.items():
            low, median, high = np.percentile(np.array(values) / first, [25, 50, 75])
            speed = f"{np.median(values) * 1e6:7.0f} us, ratio {median:.2f} ({low:.2f} to {high:.2f})"
            print(
                f"{net:10} {options.optimizer}, {options.devices}, {limit:4g} KiB {speed}, n={len(values)}", flush=True
            )


def updates(strategy: tf.distribute.Strategy, net: str, optimizer: Any, limit: float) -> Callable[[int], Any]:
    """Return a function that makes so many updates in one compiled call."""
    packed._SMALL = int(limit * 1024)
    with strategy.scope():
        model, made = mk.models.create(net), optimizer()
    step = mk.train.Step(model, made, loss="mse")
    step.build(strategy)
    batch = tf.zeros([2, *model.input_shape[1:]], tf.uint8), tf.zeros([2, 10])
    sums = strategy.run(tf.function(step.compute, autograph=False), args=(batch,))

    @tf.function(autograph=False)
    def many(count: tf.Tensor) -> tf.Tensor:
        def body(index: tf.Tensor, loss: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return index + 1, loss + step.update(strategy, sums)["loss"]

        return tf.while_loop(lambda index, _: index < count, body, (tf.constant(0), tf.constant(0.0)))[1]

    many(tf.constant(1))
    return lambda count: many(tf.constant(count)).numpy()


if __name__ == "__main__":
    main()
