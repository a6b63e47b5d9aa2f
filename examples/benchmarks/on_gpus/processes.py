"""What gpu.py runs in processes of their own, beside training: TensorFlow takes a GPU's memory when it starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from all_reduce import collectives
from harness.training import split_first_gpu

import mirrorkit as mk
from mirrorkit.errors import DataError, DeviceError
from mirrorkit.variables import copies, unchanged

_SHAPES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}
_CONTROLS = 3


def verify(require: str) -> dict[str, str]:
    """Return the text of `mk.devices.verify` as "verified", or its message as "error"."""
    try:
        return {"verified": str(mk.devices.verify(require=require))}
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
            found = mk.data.load(name, data_dir=data_dir)
        except DataError as error:
            logging.getLogger("mirrorkit").warning("%s\nA synthetic set stands in for it.", error)
    found = found or mk.data.synthetic(_SHAPES[name], train=examples or 50_000)
    split = found.train if examples is None else found.train[:examples]
    tests = {"test_images": found.test.images, "test_labels": found.test.labels}
    np.savez(path, name=found.name, images=split.images, labels=split.labels, **tests)
    return {"data": f"{found.name} {'x'.join(map(str, _SHAPES[name]))}", "examples": len(split)}


def all_reduces(kind: str, devices: str, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of `all_reduce.collectives` over devices such as "gpu:2"."""
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
    many = mk.strategy.create(kind, devices=devices)
    one = mk.strategy.create("one_device", devices=f"{devices.partition(':')[0]}:1")
    split = mk.data.synthetic((16, 16, 1), train=64 * steps).train
    batches = [(split.images[i : i + 64], split.labels[i : i + 64]) for i in range(0, len(split), 64)]
    reordered = [_reordered(batches, seed=i) for i in range(_CONTROLS)]
    rows = []
    for exactness in tf32:
        tf.config.experimental.enable_tensor_float_32_execution(exactness)
        expected, *others = _trained(one, [batches, *reordered])
        (found,) = _trained(many, [batches])
        by_step = [_distance(*pair) for pair in zip(found.updates, expected.updates, strict=True)]
        control = max(_distance(other.end, expected.end) for other in others)
        row = {"tf32": exactness, "values": by_step, "n": len(by_step), "difference": by_step[-1], "control": control}
        within = by_step[-1] <= max(1e-6, 3 * control)
        rows.append({**row, "within": within, "copies_agree": found.copies_agree})
    return rows


class _Trained(NamedTuple):
    updates: list[list[np.ndarray]]  # the values of all variables after each update
    end: list[np.ndarray]  # those after the last one, and the logs
    copies_agree: bool  # whether all replicas have the same bits


def _trained(strategy: tf.distribute.Strategy, trials: Sequence[Sequence[Any]]) -> list[_Trained]:
    """Train the net on the batches of each trial, each time from the same start."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        step = _smooth_step()
    loop = mk.train.Loop(strategy, step, steps_per_call=1)
    step.build(strategy)
    found = []
    for batches in trials:
        updates: list[list[np.ndarray]] = []
        each = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, updates=updates: updates.append(_values(step))
        )
        x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(len(batches[0][0]))
        with unchanged(step.variables):
            history = loop.fit(dataset, callbacks=[each], verbose=0).history
            agree = all(_are_equal(copies(variable)) for variable in step.variables)
        logs = [np.asarray(values[-1]) for values in history.values()]
        found.append(_Trained(updates, [*updates[-1], *logs], agree))
    return found


def _values(step: mk.train.Step) -> list[np.ndarray]:
    return [np.asarray(copies(variable)[0]) for variable in step.variables]


def _are_equal(values: Sequence[Any]) -> bool:
    first, *others = map(np.asarray, values)
    return all(np.array_equal(first, other, equal_nan=first.dtype.kind == "f") for other in others)


def _distance(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Return the largest difference of any value; of floats relative to the variable's largest if that is above 1."""
    distances = []
    for one, other in zip(found, expected, strict=True):
        largest = np.max(np.abs(one.astype(np.float64) - other), initial=0.0)
        if other.dtype.kind == "f":
            largest /= max(1.0, np.max(np.abs(other), initial=0.0))
        distances.append(float(largest) if np.isfinite(largest) else float("inf"))
    return max(distances)


def _reordered(batches: Sequence[tuple[np.ndarray, ...]], *, seed: int) -> list[tuple[np.ndarray, ...]]:
    """Return the batches with their examples in another order: the same sums, rounded otherwise."""
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(batch[0])) for batch in batches]
    return [tuple(part[order] for part in batch) for batch, order in zip(batches, orders, strict=True)]


def _smooth_step() -> mk.train.Step:
    layers = keras.layers
    net = keras.Sequential([keras.Input((16, 16, 1)), layers.Rescaling(1 / 255)])
    net.add(layers.Conv2D(16, 3, activation="tanh"))
    net.add(layers.AveragePooling2D(2))
    net.add(layers.Conv2D(32, 3, activation="tanh"))
    net.add(layers.Flatten())
    net.add(layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return mk.train.Step(net, keras.optimizers.SGD(0.05, momentum=0.9), loss=loss, metrics=["accuracy"])
