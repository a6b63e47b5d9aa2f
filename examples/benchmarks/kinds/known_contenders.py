"""Who trains a known model in known_models.py, each in a process of its own. One device; options are the defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from kinds import contenders
from kinds.known import flops_of_training


class Known(contenders.Contender):
    """A contender whose facts are the FLOPs of one example in a training step."""

    def facts(self) -> dict[str, float]:
        """Make the first update."""
        super().facts()
        return {"flops": flops_of_training(self.model)}


class Loop(Known, contenders.Loop):
    """mirrorkit's Loop."""


class MkFit(Known):
    """mk.fit."""

    def build(self) -> Callable[..., Any]:
        """See Contender."""
        import mirrorkit as mk

        self.model.compile(self.optimizer, loss=self.work.loss, metrics=["accuracy"])
        return lambda data, **options: mk.fit(self.model, data, **options)


class Fit(Known, contenders.Fit):
    """Keras's fit, without a strategy."""


class HandWritten(Known):
    """The step of TensorFlow's guide in a tf.function that XLA compiles, called once for each batch.

    Source: https://www.tensorflow.org/guide/keras/writing_a_training_loop_from_scratch
    """

    def create_strategy(self, kind: str, devices: str) -> None:
        """None."""

    def build(self) -> Callable[..., Any]:
        """See Contender."""
        model, optimizer, loss_of = self.model, self.optimizer, keras.losses.get(self.work.loss)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        optimizer.build(model.trainable_variables)

        @tf.function(jit_compile=True)
        def step(x: Any, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                probabilities = model(x, training=True)
                loss = tf.reduce_mean(loss_of(y, probabilities))
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            accuracy.update_state(y, probabilities)
            return loss

        def train(
            data: tf.data.Dataset,
            epochs: int,
            steps_per_epoch: int,
            callbacks: Sequence[keras.callbacks.Callback] = (),
            verbose: int = 0,
        ) -> None:
            batches = iter(data)
            for epoch in range(epochs):
                for _ in range(steps_per_epoch):
                    loss = step(*next(batches))
                logs = {"loss": float(loss), "accuracy": float(accuracy.result())}  # waits for the device
                accuracy.reset_state()
                for callback in callbacks:
                    callback.on_epoch_end(epoch, logs)

        return train
