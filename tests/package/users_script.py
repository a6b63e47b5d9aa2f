"""A script as a user writes it, for `mypy --strict`; it is read, not run.

`assert_type` and the ignored errors go red where a name of the public interface is no longer known to a type checker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import assert_type

import mirrorkit as mk
from mirrorkit.errors import MirrorkitError


def data() -> tuple[mk.data.Batches, mk.data.Batches]:
    digits = mk.data.load("auto", data_dir=Path("data"))
    assert_type(digits, mk.data.Splits)
    assert_type(digits.train, mk.data.Split)
    own = mk.data.arrays(np.zeros((10, 28, 28, 1), np.uint8), np.zeros(10, np.int32), num_classes=10)
    assert_type(own, mk.data.Split)
    train = mk.data.batches(
        digits.train,
        global_batch_size=256,
        shuffle=True,
        seed=0,
        augment=[mk.data.augment.pad_and_crop(4), mk.data.augment.flip()],
    )
    return train, mk.data.batches(own, global_batch_size=1000)


def other_data(folder: Path) -> Sequence[mk.data.Recipe]:
    files = mk.data.write_records(mk.data.synthetic().train, folder, num_files=4)
    return [
        mk.data.records(files, global_batch_size=64, shuffle_buffer=1000),
        mk.data.resident(mk.data.synthetic().train, global_batch_size=64),
    ]


def supervised() -> mk.train.Report:
    strategy = mk.strategy.create("mirrored", devices="cpu:4")
    train, test = data()
    with strategy.scope():
        model = mk.models.create("mnist_cnn")
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    step = mk.train.Step(
        model,
        optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        accumulate=2,
        ema=0.99,
        loss_scale=mk.train.LossScale(initial=1024.0),
    )
    loop = mk.train.Loop(strategy, step, steps_per_call=10)
    loop.warm_up(train, validation_data=test)
    report = loop.fit(
        train,
        epochs=2,
        validation_data=test,
        callbacks=[
            keras.callbacks.EarlyStopping("val_loss"),
            mk.train.Checkpoints("runs/a", every=100, keep=3),
            mk.checks.InSync(),
            mk.checks.NanWatch(),
        ],
        class_weight={0: 2.0},
    )
    assert_type(report.epochs[-1], mk.train.Epoch)
    assert_type(report.history, dict[str, list[float]])
    assert_type(report.summary(), str)
    with step.averaged():
        print(loop.evaluate(test)["accuracy"], loop.predict(test, steps=1))
    assert_type(loop.restore("runs/a"), mk.train.Position)
    assert_type(mk.train.export(loop.step, "model.keras", averaged=True), Path | str)
    return report


class LeastSquares:
    """A custom step."""

    def __init__(self) -> None:
        self.variables: list[tf.Variable] = []

    def build(self, strategy: tf.distribute.Strategy) -> None:
        if not self.variables:
            with strategy.scope():
                self.variables = [tf.Variable(tf.zeros([3, 1]))]
            self.apply = mk.train.Update(strategy, self.variables, self.new_values)

    def compute(self, batch: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        x, y = batch
        error = x @ self.variables[0] - y
        return {"gradient": tf.matmul(x, error, transpose_a=True), "loss": tf.reduce_sum(error**2)}

    def update(self, strategy: tf.distribute.Strategy, sums: dict[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        return self.apply(sums)

    def new_values(
        self, sums: dict[str, tf.Tensor], values: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        return [values[0] - 0.5 * sums["gradient"]], {"loss": sums["loss"]}


def own_step() -> None:
    loop = mk.train.Loop(mk.strategy.create("auto"), LeastSquares())
    loop.fit(tf.data.Dataset.range(3), epochs=1, verbose=0)
    nets = {"net": keras.Model()}
    assert_type(mk.train.Step.from_loss(nets, keras.optimizers.SGD(), lambda batch: nets["net"](batch)), mk.train.Step)


def large_model() -> None:
    layout = mk.parallel.Layout({"first": 0, "second": 1}, devices="gpu:2")
    with layout, layout.strategy().scope():
        model = mk.parallel.Recompute(keras.layers.Dense(3))
    train, _ = data()
    step = mk.train.Step(model, keras.optimizers.Adam(), loss="mse", shard_optimizer=True)
    loop = mk.train.Loop(layout.strategy(), step)
    assert_type(mk.checks.on_devices(loop, train), mk.checks.OnDevices)
    assert_type(mk.checks.in_sync(loop.strategy, step.variables), mk.checks.SyncReport)


def surroundings() -> None:
    mk.reproducible.enable(seed=0)
    mk.devices.set_memory_growth()
    assert_type(mk.devices.verify(), mk.devices.Verification)
    cluster = mk.cluster.detect()
    if cluster is not None:
        assert_type(cluster, mk.cluster.Cluster)
    with mk.timing.Timer() as timer:
        supervised()
    assert_type(timer.seconds, float)
    print(mk.batching.per_replica_sizes(256, 4), mk.launch.launch)


def wrong() -> None:
    """Errors that a type checker has to see."""
    train, _ = data()
    loop = mk.train.Loop(mk.strategy.create("auto"), LeastSquares())
    loop.fit(train, epochs="2")  # type: ignore[arg-type]
    loop.fit(train, epoch=2)  # type: ignore[call-arg]
    mk.train.Loop(mk.strategy.create("auto"), object())  # type: ignore[arg-type]
    print(mk.data.load("auto").tests)  # type: ignore[attr-defined]


if __name__ == "__main__":
    try:
        surroundings()
    except MirrorkitError as error:
        print(error)
