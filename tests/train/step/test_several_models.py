"""What callbacks and Keras's own ways meet where a step has several models."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.errors import StepError

x = np.ones((16, 3), "float32")
data = mk.data.batches(mk.data.arrays(x), global_batch_size=8)


def net(name: str) -> Any:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name=name)


def two(strategy: Any) -> mk.train.Step:
    with strategy.scope():
        one, other, optimizer = net("one"), net("other"), keras.optimizers.SGD(0.1)
    other.trainable = False
    return mk.train.Step.from_loss(
        [one, other], optimizer, lambda batch: tf.reduce_sum((one(batch[0]) - other(batch[0])) ** 2, 1)
    )


def test_a_callback_that_takes_them_for_one(strategy_of: Any) -> None:
    class Monitor(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            _ = self.model.generator

    strategy = strategy_of("one_device", 1)
    words = "several models, 'one', 'other', .* has no 'generator'.*Pass a callback the model that it needs"
    with pytest.raises(AttributeError, match=words):
        mk.train.Loop(strategy, two(strategy)).fit(data, callbacks=[Monitor()], verbose=0)


def test_the_log_says_what_is_trained(strategy_of: Any, caplog: Any) -> None:
    """A teacher whose weights an old script's tape left out would be trained silently, a model without an Input too."""
    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        student, teacher = keras.Sequential([keras.layers.Dense(1)], name="student"), net("teacher")
        other, optimizer = net("other"), keras.optimizers.SGD(0.1)
    other.trainable = False

    def loss_fn(batch: Any) -> Any:
        return tf.reduce_sum((student(batch[0]) - teacher(batch[0]) - other(batch[0])) ** 2, 1)

    step = mk.train.Step.from_loss([student, teacher, other], optimizer, loss_fn)
    with caplog.at_level(logging.INFO, "mirrorkit"):
        mk.train.Loop(strategy, step).fit(data, verbose=0)
    assert "Step.from_loss trains student, teacher." in caplog.messages


def test_a_compile_of_the_models_own(strategy_of: Any) -> None:
    """It is not called: it may take other arguments than Keras's."""

    class Distiller(keras.Sequential):
        def compile(self, optimizer: Any, alpha: float) -> None:
            raise NotImplementedError

    strategy = strategy_of("one_device", 1)
    with strategy.scope():
        model, optimizer = Distiller([keras.Input((3,)), keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
    step = mk.train.Step.from_loss(model, optimizer, lambda batch: tf.reduce_sum(model(batch[0]) ** 2, 1))
    mk.train.Loop(strategy, step).fit(data, verbose=0)
    assert model.optimizer is optimizer  # which callbacks look for


def test_a_model_in_place_of_a_step(strategy_of: Any) -> None:
    strategy = strategy_of("one_device", 1)
    with pytest.raises(StepError, match=r"Sequential is a Keras model, and Loop takes a step.*from_compiled"):
        mk.train.Loop(strategy, net("net"))
