"""What a benchmark runs in each of its processes: a model that trains on command under one strategy."""

from __future__ import annotations

import importlib
import time
from typing import Any

from mirrorkit import data as _data
from mirrorkit import models, strategy, train
from mirrorkit._keras import keras
from mirrorkit.devices import Devices
from mirrorkit.errors import ModelError


class Training:
    """A compiled loop; its variables and its data stay between calls.

    Args:
        kind, devices: of the strategy, as in `mk.strategy.create`.
        model: a name of the zoo, or "module:function" of a function without arguments that returns a Keras model whose
            outputs are logits.
        data: "mnist", "cifar10", "synthetic", or "auto" (MNIST where it is found, else synthetic).
        data_dir: as in `mk.data.load`.
        examples: take no more training examples than these.
        batch_size: global.
        resident: whether the data lies on the devices, or tf.data makes the batches.
        learning_rate: of Adam.
    """

    def __init__(
        self,
        *,
        kind: str,
        devices: Devices,
        model: str,
        data: str,
        data_dir: str | None,
        examples: int | None,
        batch_size: int,
        resident: bool,
        learning_rate: float = 2e-3,
    ) -> None:
        keras.utils.set_random_seed(0)
        self._strategy = strategy.create(kind, devices=devices)
        name, fallback = ("mnist", "synthetic") if data == "auto" else (data, None)
        digits = _data.load(name, data_dir=data_dir, fallback=fallback)
        split = digits.train if examples is None else digits.train[:examples]
        recipe = _data.resident if resident else _data.batches
        self._train = recipe(split, global_batch_size=batch_size, shuffle=True, seed=0, drop_remainder=True)
        self._test = _data.batches(digits.test, global_batch_size=min(1000, len(digits.test)))
        with self._strategy.scope():
            net = _model(model, split)
            optimizer = keras.optimizers.Adam(learning_rate)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        step = train.Step(net, optimizer, loss=loss, metrics=["accuracy"])
        self._loop = train.Loop(self._strategy, step)
        self._loop.warm_up(self._train, validation_data=self._test)
        self._epochs = 0
        self._data_name = digits.name

    def facts(self) -> dict[str, Any]:
        """What is trained on, and where."""
        return {"data": self._data_name, "examples": len(self._train.split), "on": strategy.describe(self._strategy)}

    def train(self, epochs: int) -> float:
        """Train for some epochs and return examples per second, everything counted."""
        start = time.perf_counter()
        self._loop.fit(self._train, initial_epoch=self._epochs, epochs=self._epochs + epochs, verbose=0)
        seconds = time.perf_counter() - start
        self._epochs += epochs
        return epochs * self._train.steps_per_epoch * self._train.global_batch_size / seconds

    def evaluate(self) -> float:
        """Return the accuracy on the test set."""
        return float(self._loop.evaluate(self._test)["accuracy"])


def _model(name: str, split: Any) -> Any:
    if ":" not in name:
        return models.create(name, input_shape=split.images.shape[1:], num_classes=split.num_classes)
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ModelError(f"The model {name!r} was asked for, but: {error}. Write module:function.") from error
