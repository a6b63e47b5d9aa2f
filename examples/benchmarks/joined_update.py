"""The gain from joining small weights in the update on this machine: the time of the update by size limit.

    python examples/benchmarks/joined_update.py --nets resnet20 resnet56 --optimizer sgd --limits 0 16 64

Measures the processor time of one update (read, mean, optimizer, write), with the limits in turns; 0 joins nothing.
Ratios are medians and quartiles of pairs with the first limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.bench.report import Column, figures
from mirrorkit.bench.script import parsed, parser_of, present, report_of
from mirrorkit.bench.turns import values_in_turns
from mirrorkit.optim import packed

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adamw": lambda: keras.optimizers.AdamW(0.001),
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", default=["mnist_cnn", "resnet20", "resnet56"], help="names of mk.models")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--limits", nargs="+", type=float, default=[0, 16, 64], help="in KiB")
    parser.add_argument("--devices", default="cpu:1")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--updates", type=int, default=50, help="of one measurement")
    options = parsed(parser)

    strategy = mk.strategy.create(devices=options.devices)
    rows = []
    for net in options.nets:
        runs = {limit: updates(strategy, net, OPTIMIZERS[options.optimizer], limit) for limit in options.limits}
        calls = {limit: partial(seconds, run, options.updates) for limit, run in runs.items()}
        times = values_in_turns(calls, options.repeats, warm_up=1)
        first = np.array(next(iter(times.values())))
        for limit, values in times.items():
            low, ratio, high = np.percentile(np.array(values) / first, [25, 50, 75]).tolist()
            row = {"what": f"{net}, {limit:g} KiB", **figures(values, smaller_is_better=True)}
            rows.append({**row, "microseconds": row["median"] * 1e6, "ratio": ratio, "low": low, "high": high})
    columns = [
        *(Column("what", "limit"), Column("microseconds", "us", ".0f"), Column("n", "n", "d")),
        *(Column("ratio", "ratio", ".2f"), Column("low", "from", ".2f"), Column("high", "to", ".2f")),
    ]
    title = f"Processor time of an update, {options.optimizer}, {options.devices}"
    present(report_of("joined_update", title, columns, rows, unit="seconds of an update"), options)


def seconds(run: Callable[[int], Any], count: int) -> float:
    """Return the processor time of one update, the mean of `count`."""
    start = time.process_time()
    run(count)
    return (time.process_time() - start) / count


def updates(strategy: tf.distribute.Strategy, net: str, optimizer: Any, limit: float) -> Callable[[int], Any]:
    """Return a function that makes a given number of updates in one compiled call."""
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
