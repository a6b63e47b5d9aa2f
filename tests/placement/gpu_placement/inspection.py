"""Build a loop for GPUs that need not be there, trace its functions, and inspect them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import tensorflow as tf

from gpu_placement.operations import place_of, walk
from gpu_placement.report import CallPlacement, Placement
from gpu_placement.tally import HOST_PLACE
from mirrorkit import strategy as _strategy
from mirrorkit.checks.by_device import by_kind
from mirrorkit.data import HOST
from mirrorkit.strategy import replica_devices
from mirrorkit.train import EpochIterator, Input, Loop
from mirrorkit.train.input.resident import ResidentIterator
from mirrorkit.train.reduce import xla
from mirrorkit.variables import copies, unchanged

_SIZE = 32  # rows of a replica, where the data does not say


def placement(
    make_step: Callable[[], Any], data: Any, *, devices: str = "gpu", validation_data: Any = None
) -> Placement:
    """Report where the operations of a training run would run on GPUs, and what would be copied; needs no GPU.

    The step is built in the scope of a strategy on these GPUs, and every function that `Loop` would call is traced but
    not run. Random generators are restored; Keras's counter for the names of layers is not.

    Args:
        make_step: called in the strategy's scope; returns `mk.train.Step(...)` or a custom step.
        data: what `Loop.fit` will be given.
        devices: "gpu" for one, "gpu:4" for four under `MirroredStrategy`.
        validation_data: what `evaluate` will be given; `data` by default.
    """
    strategy = gpu_strategy(devices)
    # XLA, the default on one GPU, would hide the operations.
    with unchanged([]), mock.patch.object(xla, "replica_devices", return_value=["CPU:0"]):
        with strategy.scope():
            step = make_step()
        return of_loop(Loop(strategy, step), data, validation_data=validation_data)


def of_loop(loop: Loop, data: Any, *, validation_data: Any = None) -> Placement:
    """Inspect what a loop under a strategy on GPUs would call; see `placement`."""
    names = [_name(device) for device in replica_devices(loop.strategy)]
    replicas = len(names)
    traced = list(_traced(loop, data, data if validation_data is None else validation_data))
    memory, resources = memory_of(loop.step, names)  # now, since sums to accumulate are made when they are traced
    calls = []
    for what, function, stream in traced:
        is_training = what.startswith("train")
        read = data if is_training or validation_data is None else validation_data
        size = getattr(read, "global_batch_size", None) or _SIZE * replicas
        found = walk(
            function,
            HOST_PLACE if stream is None else [_name(device) for device in _devices(stream, loop.strategy)],
            resources=resources,
            unknown_size=-(-size // replicas),
            has_loop=stream is not None,
        )
        batches = getattr(loop.step, "accumulate", 1) if is_training else 1
        allowed = batches * _batch_bytes(stream, function.structured_input_signature if stream is None else None, size)
        calls.append(CallPlacement(what, found.step, found.call, allowed))
        if isinstance(stream, ResidentIterator) and what == "train":
            for name, arrays in zip(names, stream.source["arrays"], strict=False):
                memory[name]["data"] = sum(map(bytes_of, tf.nest.flatten(arrays)))
    return Placement(names, calls, memory)


def _traced(loop: Loop, data: Any, evaluated: Any) -> Iterator[tuple[str, Any, EpochIterator | None]]:
    """Trace each function that a loop would call; yield its name, it, and the data whose source it takes, if any."""
    passes = loop._built(Input(loop.strategy, data, rehearses=True).element_spec)
    step = passes.step
    for name, what, used, accumulate in [("train", "train", data, step.accumulate), ("evaluate", "test", evaluated, 1)]:
        if what == "test" and not step.can("evaluate"):
            continue
        inputs = Input(loop.strategy, used, rehearses=True)
        step.prepare(inputs.element_spec, what)
        names = iter([name, f"{name}, smaller batch"])
        for batches, steps in inputs.rehearsals(accumulate):
            yield next(names), passes.calls.function(what, batches, steps), batches
    if step.can("predict"):
        inputs = Input(loop.strategy, evaluated, rehearses=True)

        def full(spec: Any) -> Any:
            """Return the spec of a batch of the usual size, which `predict` meets first."""
            has_rows = isinstance(spec, tf.TensorSpec) and spec.shape.rank
            return tf.TensorSpec([inputs.global_batch_size, *spec.shape[1:]], spec.dtype) if has_rows else spec

        specs = tf.nest.map_structure(full, inputs.element_spec)
        number = tf.TensorSpec([2], tf.int32)
        yield "predict", passes.calls._predict.get_concrete_function(specs, None, number), None


def _devices(stream: EpochIterator, strategy: tf.distribute.Strategy) -> list[str]:
    """Return the devices that hold the parts of a source: only what a device gathers from lies on it."""
    if not isinstance(stream, ResidentIterator):
        return [HOST]

    def of(device: str) -> Any:
        return tf.nest.map_structure(lambda rows: HOST if rows.on_host else device, stream.kind[0].rows)

    arrays = [of(device) for device in replica_devices(strategy)]
    return list(tf.nest.flatten({"arrays": arrays, "order": HOST, "epoch": HOST}))


def _batch_bytes(stream: EpochIterator | None, signature: Any, size: int) -> int:
    """Return what a batch may bring to the devices: its rows; of a resident set the rows' numbers, and int32."""
    specs = tf.nest.flatten(signature if stream is None else stream.element_spec)
    specs = [spec for spec in specs if isinstance(spec, tf.TypeSpec)]  # not Python's numbers among the arguments
    if isinstance(stream, ResidentIterator):
        return 8 * size + sum(_row_bytes(spec) * size for spec in specs if spec.dtype == tf.int32)
    return sum(_row_bytes(spec) * size for spec in specs)


def _row_bytes(spec: Any) -> int:
    return int(spec.dtype.size) * math.prod(length or 1 for length in spec.shape[1:])


def bytes_of(tensor: Any) -> int:
    """Return the size of a tensor or variable."""
    return int(tensor.shape.num_elements() * tensor.dtype.size)


def _name(device: str) -> str:
    """Return "GPU:1", or "host"."""
    return place_of(device) or HOST_PLACE


def memory_of(step: Any, names: Sequence[str]) -> tuple[dict[str, dict[str, int]], dict[int, str]]:
    """Return the bytes of a step's variables on each device, and where each variable lies, by the id of its handle."""
    memory: dict[str, Counter[str]] = {name: Counter() for name in names}
    resources = {}
    for what, variables in by_kind(step).items():
        for variable in variables:
            for name, copy in zip(names, copies(variable), strict=False):
                memory[name][what] += bytes_of(copy)
                resources[id(copy.handle)] = name
    return {name: dict(parts) for name, parts in memory.items()}, resources


def gpu_strategy(devices: str) -> tf.distribute.Strategy:
    """Return a strategy on GPUs, which need not be in this machine."""
    count = int(devices.partition(":")[2] or 1)
    if len(tf.config.list_logical_devices("GPU")) >= count:
        return _strategy.create("one_device" if count == 1 else "mirrored", devices=f"gpu:{count}")
    names = [f"/device:GPU:{i}" for i in range(count)]
    # Nothing is run: TensorFlow's collectives would wait forever for devices that are not there.
    return tf.distribute.OneDeviceStrategy(names[0]) if count == 1 else tf.distribute.MirroredStrategy(names)
