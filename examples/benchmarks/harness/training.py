"""What a benchmark runs in each of its processes: a model that trains on command under one strategy."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np
import tensorflow as tf
from anatomy import InputAlone

from harness.measure import MOST_EPOCHS
from mirrorkit import data as _data, models, strategy, train
from mirrorkit._keras import keras
from mirrorkit.devices import Devices
from mirrorkit.errors import ModelError


class Training:
    """A compiled loop; its variables and its data stay between calls.

    Most arguments are those of `training_speed.scaling`; `kind` and `devices` those of `mk.strategy.create`.

    Args:
        data: also the path of a file that `on_gpus.processes.write` wrote.
        policy: Keras's dtype policy; "mixed_float16" trains with a dynamic loss scale.
        jit_compile: that of `Step`.
        split_gpu: the number of logical GPUs to split the first GPU into, before anything else.
    """

    def __init__(
        self,
        *,
        kind: str,
        devices: Devices,
        model: str,
        data: str,
        global_batch_size: int,
        data_dir: str | None = None,
        examples: int | None = None,
        resident: bool = True,
        learning_rate: float = 2e-3,
        policy: str = "float32",
        jit_compile: str | bool = "auto",
        split_gpu: int | None = None,
    ) -> None:
        if split_gpu is not None:
            split_first_gpu(split_gpu)
        keras.utils.set_random_seed(0)
        keras.config.set_dtype_policy(policy)
        self._jit_compile = jit_compile
        self._strategy = self._create_strategy(kind, devices)
        digits = _load(data, data_dir)
        split = digits.train if examples is None else digits.train[:examples]
        recipe = _data.resident if resident else _data.batches
        self._train = recipe(split, global_batch_size=global_batch_size, shuffle=True, seed=0, drop_remainder=True)
        self._test = _data.batches(digits.test, global_batch_size=min(1000, len(digits.test)))
        with self._strategy.scope():
            net = _model(model, split)
            optimizer = keras.optimizers.Adam(learning_rate)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._compile(net, optimizer, loss=loss, metrics=["accuracy"])
        self._epochs = 0
        self._data_name = digits.name

    def _create_strategy(self, kind: str, devices: Devices) -> tf.distribute.Strategy:
        return strategy.create(kind, devices=devices)

    def _compile(self, net: Any, optimizer: Any, **options: Any) -> None:
        scale = "dynamic" if keras.config.dtype_policy().name == "mixed_float16" else None
        step = train.Step(net, optimizer, loss_scale=scale, jit_compile=self._jit_compile, **options)
        self._loop = train.Loop(self._strategy, step)
        self._loop.warm_up(self._train, validation_data=self._test)

    def facts(self) -> dict[str, Any]:
        """What is trained on, where, and what XLA compiles."""
        return {"data": self._data_name, "examples": len(self._train.split), **self._compiled()}

    def _compiled(self) -> dict[str, Any]:
        return {"xla": self._jit_compile, "on": strategy.describe(self._strategy)}

    def measure(self, epochs: int) -> float:
        """Train for some epochs and return examples per second, everything counted."""
        start = time.perf_counter()
        self._fit(epochs)
        seconds = time.perf_counter() - start
        self._epochs += epochs
        return epochs * self._train.steps_per_epoch * self._train.global_batch_size / seconds

    def _fit(self, epochs: int) -> None:
        self._loop.fit(self._train, initial_epoch=self._epochs, epochs=self._epochs + epochs, verbose=0)

    def evaluate(self) -> float:
        """Return the accuracy on the test set."""
        return float(self._loop.evaluate(self._test)["accuracy"])

    def input_rates(self) -> list[float]:
        """Return, for each worker, the examples per second that its input alone brings to its replicas."""
        return InputAlone(self._strategy, self._train).rates()


class Fit(Training):
    """Keras's own `fit` at its best, for comparison: no strategy, one dataset for all epochs.

    Under any strategy, `jit_compile="auto"` would leave XLA off. `jit_compile` is that of `compile`, "auto" where it is
    None; `many_steps` takes up to 50 steps in a call (`steps_per_execution`); `kind` and `devices` are not used.
    """

    def __init__(self, *, many_steps: bool = False, **options: Any) -> None:
        self._many_steps = many_steps
        super().__init__(**{**options, "resident": False})

    def _create_strategy(self, kind: str, devices: Devices) -> tf.distribute.Strategy:
        return tf.distribute.get_strategy()

    def _compile(self, net: Any, optimizer: Any, **options: Any) -> None:
        steps = self._train.steps_per_epoch
        # Keras reads on to the end of a call, so its steps must divide an epoch's.
        together = max(n for n in range(1, 51) if steps % n == 0) if self._many_steps else 1
        jit_compile = "auto" if self._jit_compile is None else self._jit_compile
        net.compile(optimizer, jit_compile=jit_compile, steps_per_execution=together, **options)
        self._net = net
        self._batches = self._train.epochs(MOST_EPOCHS)

    def _compiled(self) -> dict[str, Any]:
        return {"xla": bool(self._net.jit_compile), "on": "no strategy"}

    def _fit(self, epochs: int) -> None:
        steps = self._train.steps_per_epoch
        self._net.fit(self._batches, epochs=epochs, steps_per_epoch=steps, shuffle=False, verbose=0)

    def evaluate(self) -> float:
        """See `Training.evaluate`."""
        return float(self._net.evaluate(self._test.dataset(), verbose=0, return_dict=True)["accuracy"])


def split_first_gpu(parts: int, *, mebibytes: int = 4096) -> None:
    """Split the first GPU into logical GPUs; with $TF_FORCE_GPU_ALLOW_GROWTH, memory is the most that each takes."""
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=mebibytes)
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("GPU")[0], [limit] * parts)


def _load(data: str, data_dir: str | None) -> _data.Splits:
    if not data.endswith(".npz"):
        name, fallback = ("mnist", "synthetic") if data == "auto" else (data, None)
        return _data.load(name, data_dir=data_dir, fallback=fallback)
    with np.load(data) as file:
        train, test = (_data.arrays(file[f"{of}images"], file[f"{of}labels"], num_classes=10) for of in ("", "test_"))
        return _data.Splits(str(file["name"]), train, test, 10, tuple("0123456789"), data)


def _model(name: str, split: Any) -> Any:
    if ":" not in name:
        return models.create(name, input_shape=split.images.shape[1:], num_classes=split.num_classes)
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ModelError(f"The model {name!r} was asked for, but: {error}. Write module:function.") from error
