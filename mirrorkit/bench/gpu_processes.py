"""What `bench gpu` runs in processes of their own, beside training: TensorFlow takes a GPU's memory when it starts."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit import data as _data
from mirrorkit import devices as _devices
from mirrorkit import strategy, train
from mirrorkit._keras import keras
from mirrorkit.bench.collectives import collectives
from mirrorkit.bench.training import split_first_gpu
from mirrorkit.errors import DataError, DeviceError
from mirrorkit.testing import equivalence_runs as runs
from mirrorkit.testing.equivalence_data import global_batches, permuted

_SHAPES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}
_CONTROLS = 3


class Verification:
    """`mk.devices.verify`: what it reports, or what is wrong."""

    def report(self, require: str) -> dict[str, str]:
        """Return its text as "verified", or its message as "error"."""
        try:
            return {"verified": str(_devices.verify(require=require))}
        except DeviceError as error:
            return {"error": str(error)}


class Preparation:
    """Writes a data set once, so that many processes need not each look for it, download it or draw it."""

    def write(
        self, path: str, name: str, data_dir: str | None, examples: int | None, synthetic: bool
    ) -> dict[str, Any]:
        """Write a file for `training.Training`, and return what it holds.

        Args:
            path: ends in ".npz".
            name: "mnist" or "cifar10".
            data_dir: as in `mk.data.load`.
            examples: take no more training examples.
            synthetic: draw images of that size, as is done too where the real set is not found.
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


class Collectives:
    """`mk.bench.collectives` between all devices, whose rows come at the end."""

    def __init__(self, *, kind: str, devices: str, **options: Any) -> None:
        device, _, replicas = devices.partition(":")
        # "auto" is NCCL on GPUs
        implementations = ("nccl", "hierarchical", "one_device") if device == "gpu" else None
        self._options = {"device": device, "replicas": int(replicas), "implementations": implementations, **options}

    def rows(self) -> list[dict[str, Any]]:
        """Return its rows."""
        return collectives(**self._options).rows


class Closeness:
    """How close the weights come on N devices to those on one, by the parts of `mk.testing.assert_equivalent`.

    A smooth convolutional net, momentum, the same global batches.

    Args:
        kind, devices: of the N, as in `mk.strategy.create`; "gpu:2" is compared with "gpu:1".
        steps: how many.
        split_gpu: split the first GPU into so many logical ones first.
    """

    def __init__(self, *, kind: str, devices: str, steps: int = 20, split_gpu: int | None = None) -> None:
        if split_gpu is not None:
            split_first_gpu(split_gpu)
        self._many = strategy.create(kind, devices=devices)
        self._one = strategy.create("one_device", devices=f"{devices.partition(':')[0]}:1")
        recipe = _data.batches(_data.synthetic((16, 16, 1), train=64 * steps).train, global_batch_size=64)
        self._batches = global_batches(recipe, steps=steps, size=None, uneven_for=[])

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for exact float32 and one for TensorFlow's default, which rounds to TF32 where a GPU has it."""
        return [{"tf32": tf32, **self._compared(tf32)} for tf32 in (False, True)]

    def _compared(self, tf32: bool) -> dict[str, Any]:
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        arrangement = runs.Arrangement(_smooth_step, seed=0)
        others = [runs.Trial(permuted(self._batches, seed=i)) for i in range(_CONTROLS)]
        expected, *controls = runs.train(arrangement, self._one, [runs.Trial(self._batches), *others])
        (found,) = runs.train(arrangement, self._many, [runs.Trial(self._batches)], like=expected)
        pairs = zip(found.updates, expected.updates, strict=True)
        by_step = [max(runs.distances(one, other).values()) for one, other in pairs]
        control = max(runs.Comparison(expected, other).difference for other in controls)
        figures = {"values": by_step, "n": len(by_step), "difference": by_step[-1], "control": control}
        return {**figures, "within": by_step[-1] <= max(1e-6, 3 * control), "copies_agree": found.replicas_agree}


def _smooth_step() -> train.Step:
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 3, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Conv2D(32, 3, activation="tanh"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return train.Step(net, keras.optimizers.SGD(0.05, momentum=0.9), loss=loss, metrics=["accuracy"])
