"""What `bench gpu` runs in processes of their own, beside training: TensorFlow takes a GPU's memory when it starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit import data as _data
from mirrorkit import devices as _devices
from mirrorkit import strategy, testing, train
from mirrorkit._keras import keras
from mirrorkit.bench.allreduce_speed import collectives
from mirrorkit.bench.training import split_first_gpu
from mirrorkit.errors import DataError, DeviceError

_SHAPES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}
_CONTROLS = 3


def verify(require: str) -> dict[str, str]:
    """Return the text of `mk.devices.verify` as "verified", or its message as "error"."""
    try:
        return {"verified": str(_devices.verify(require=require))}
    except DeviceError as error:
        return {"error": str(error)}


def write(path: str, name: str, data_dir: str | None, examples: int | None, synthetic: bool) -> dict[str, Any]:
    """Write "mnist" or "cifar10" to a file for `training.Training` (".npz"), and return what it holds.

    Many processes read it, and need not each look for the set, download it or draw it. Images of that size are drawn
    where `synthetic` asks for them, and where the real set is not found.
    """
    found = None
    if not synthetic:
        try:
            found = _data.load(name, data_dir=data_dir)
        except DataError as error:
            logging.getLogger("mirrorkit").warning("%s\nA synthetic set stands in for it.", error)
    found = found or _data.synthetic(_SHAPES[name], train=examples or 50_000)
    split = found.train if examples is None else found.train[:examples]
    tests = {"test_images": found.test.images, "test_labels": found.test.labels}
    np.savez(path, name=found.name, images=split.images, labels=split.labels, **tests)
    return {"data": f"{found.name} {'x'.join(map(str, _SHAPES[name]))}", "examples": len(split)}


def all_reduces(kind: str, devices: str, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of `mk.bench.collectives` over devices such as "gpu:2"."""
    device, _, replicas = devices.partition(":")
    # "auto" is NCCL on GPUs
    implementations = ("nccl", "hierarchical", "one_device") if device == "gpu" else None
    return collectives(devices=device, replicas=int(replicas), implementations=implementations, **options).rows


def closeness(
    kind: str, devices: str, steps: int = 20, split_gpu: int | None = None, tf32: Sequence[bool] = (False, True)
) -> list[dict[str, Any]]:
    """Train a smooth convolutional net on the same global batches on N devices and on one, and compare the weights.

    "gpu:2" is compared with "gpu:1". There is a row for each value of `tf32`: whether a GPU that has it may round to
    TF32, which is TensorFlow's default.
    """
    if split_gpu is not None:
        split_first_gpu(split_gpu)
    many = strategy.create(kind, devices=devices)
    one = strategy.create("one_device", devices=f"{devices.partition(':')[0]}:1")
    recipe = _data.batches(_data.synthetic((16, 16, 1), train=64 * steps).train, global_batch_size=64)
    batches = testing.global_batches(recipe, steps=steps, size=None, uneven_for=[])
    arrangement, same = testing.Arrangement(_smooth_step, seed=0), testing.Trial(batches)
    others = [testing.Trial(testing.permuted(batches, seed=i)) for i in range(_CONTROLS)]
    rows = []
    for exactness in tf32:
        tf.config.experimental.enable_tensor_float_32_execution(exactness)
        expected, *controls = testing.train(arrangement, one, [same, *others])
        (found,) = testing.train(arrangement, many, [same], like=expected)
        pairs = zip(found.updates, expected.updates, strict=True)
        by_step = [max(testing.distances(*pair).values()) for pair in pairs]
        control = max(testing.Comparison(expected, other).difference for other in controls)
        row = {"tf32": exactness, "values": by_step, "n": len(by_step), "difference": by_step[-1], "control": control}
        within = by_step[-1] <= max(1e-6, 3 * control)
        rows.append({**row, "within": within, "copies_agree": found.replicas_agree})
    return rows


def _smooth_step() -> train.Step:
    layers = keras.layers
    net = keras.Sequential([keras.Input((16, 16, 1)), layers.Rescaling(1 / 255)])
    net.add(layers.Conv2D(16, 3, activation="tanh"))
    net.add(layers.AveragePooling2D(2))
    net.add(layers.Conv2D(32, 3, activation="tanh"))
    net.add(layers.Flatten())
    net.add(layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return train.Step(net, keras.optimizers.SGD(0.05, momentum=0.9), loss=loss, metrics=["accuracy"])
