"""How many kernels a training step launches on each GPU: mirrorkit's Loop, Keras's fit and a hand-written loop.

    python examples/benchmarks/kernels_per_step.py --nets mnist_cnn resnet20 --gpus 1 2 --optimizer adamw

No GPU is needed: functions are traced and not run.

Every launch takes the host about 5 us, so the number of launches limits the speed of a small net on a GPU.
Counts the operations of the traced functions that have a kernel on the device, as `mk.checks.placement` does: before
Grappler, which merges some, and without XLA (which fit turns on by default on one GPU, not on several). Input is in
host memory. orbit's loop runs the hand-written step in a tf.while_loop. "passes" are forward and backward pass only.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from contenders import hand_written

import mirrorkit as mk
from mirrorkit.placement import Tally, walk
from mirrorkit.variables import copies

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adamw": lambda: keras.optimizers.AdamW(0.001),
}


def main() -> None:
    options = parse()
    print(
        f"kernels per step on each GPU, {options.optimizer}; in brackets those of collectives; what the host waits for"
    )
    for net in options.nets:
        for gpus in options.gpus:
            # Of the others' update on several GPUs nothing can be said without them: MirroredStrategy puts it on the
            # device on which each variable really lies, here the host.
            peers = {"passes": passes, "fit": fit, "hand-written": by_hand} if gpus == 1 else {}
            for name, count in {"Loop": loop, **peers}.items():
                tally = count(net, OPTIMIZERS[options.optimizer], gpus)
                kernels = [tally.kernels_on(f"GPU:{i}") for i in range(gpus)]
                collectives = sum(n for (_, op), n in tally.kernels.items() if op.startswith(("Collective", "Nccl")))
                waits = tally.between("GPU", "host")
                counts = f"{max(kernels):6} ({collectives // gpus})   {len(waits):2} waits"
                print(f"{net:10} {gpus} GPU  {name:13} {counts}, {sum(w.size for w in waits):,} bytes", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=["mnist_cnn", "resnet20", "resnet56"], help="names of mk.models")
    parser.add_argument("--gpus", nargs="+", type=int, default=[1, 2], help="they need not be there")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    return parser.parse_args()


def loss(**options: Any) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def loop(net: str, optimizer: Any, gpus: int) -> Tally:
    shape = mk.models.create(net).input_shape[1:]
    split = mk.data.arrays(np.zeros((64, *shape), "uint8"), np.zeros(64, "int64"))
    data = mk.data.batches(split, global_batch_size=32, drop_remainder=True)

    def make_step() -> mk.train.Step:
        return mk.train.Step(mk.models.create(net), optimizer(), loss=loss(), metrics=["accuracy"])

    return mk.checks.placement(make_step, data, devices=f"gpu:{gpus}")["train"].step


def fit(net: str, optimizer: Any, gpus: int) -> Tally:
    strategy = tf.distribute.OneDeviceStrategy("/gpu:0")
    with strategy.scope():
        model = mk.models.create(net)
        accuracy = keras.metrics.SparseCategoricalAccuracy()  # "accuracy" would make its variables in the trace
        model.compile(optimizer(), loss=loss(), metrics=[accuracy], jit_compile=False)
        model.optimizer.build(model.trainable_variables)
    return tally_of(strategy, model, lambda x, y: model.train_step((x, y)), lambda: model.variables)


def by_hand(net: str, optimizer: Any, gpus: int) -> Tally:
    strategy = tf.distribute.OneDeviceStrategy("/gpu:0")
    with strategy.scope():
        contender = SimpleNamespace(
            model=mk.models.create(net),
            optimizer=optimizer(),
            loss=loss(reduction="none"),
            metrics=[keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()],
            work=SimpleNamespace(batch_size=32),
        )
        contender.optimizer.build(contender.model.trainable_variables)

    def variables() -> list[Any]:
        of_metrics = [variable for metric in contender.metrics for variable in metric.variables]
        return [*contender.model.variables, *contender.optimizer.variables, *of_metrics]

    return tally_of(
        strategy, contender.model, lambda x, y: hand_written.Contender.on_replica(contender, x, y), variables
    )


def passes(net: str, optimizer: Any, gpus: int) -> Tally:
    strategy = tf.distribute.OneDeviceStrategy("/gpu:0")
    with strategy.scope():
        model = mk.models.create(net)

    def on_replica(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            value = loss()(y, model(x, training=True))
        return tape.gradient(value, model.trainable_variables)

    return tally_of(strategy, model, on_replica, lambda: model.variables)


def tally_of(strategy: tf.distribute.Strategy, model: Any, on_replica: Any, variables: Any) -> Tally:
    """Trace a step and count; nothing runs."""
    batch = (tf.TensorSpec([32, *model.input_shape[1:]], tf.uint8), tf.TensorSpec([32], tf.int64))
    step = tf.function(lambda x, y: strategy.run(on_replica, args=(x, y)), autograph=False, jit_compile=False)
    traced = step.get_concrete_function(*batch)
    places = {id(copy.handle): "GPU:0" for variable in variables() for copy in copies(variable)}
    return walk(traced, ["host", "host"], resources=places, has_loop=False).step


if __name__ == "__main__":
    main()
