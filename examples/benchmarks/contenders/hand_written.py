"""A custom loop as TensorFlow's guide has it, at its best: optimizer built first, a whole epoch in one tf.function.

Source: https://www.tensorflow.org/tutorials/distribute/custom_training
"""

from __future__ import annotations

import keras
import tensorflow as tf

from contenders.work import Base, Laps, Work, model_and_optimizer, pipeline, steps_per_epoch, strategy


class Contender(Base):
    """See contenders.work.Base."""

    def __init__(self, work: Work, *, data: str = "memory") -> None:
        self.work = work
        self.strategy = strategy(work, own=False)
        self.dataset = pipeline(work, data=data).repeat()
        self.model, self.optimizer = model_and_optimizer(work, self.strategy)

    def build(self) -> None:
        """See contenders.work.Base."""
        with self.strategy.scope():
            self.optimizer.build(self.model.trainable_variables)
            self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
            self.metrics = [keras.metrics.Mean(name="loss"), keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        # one iterator for all epochs: making a new one takes longer than some epochs
        self.iterator = iter(self.strategy.experimental_distribute_dataset(self.dataset))

    def on_replica(self, x: tf.Tensor, y: tf.Tensor) -> None:
        """One replica's part of a step."""
        with tf.GradientTape() as tape:
            logits = self.model(x, training=True)
            per_example = self.loss(y, logits)
            loss = tf.nn.compute_average_loss(per_example, global_batch_size=self.work.batch_size)
        weights = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.metrics[0].update_state(per_example)
        self.metrics[1].update_state(y, logits)

    @tf.function
    def many_steps(self, iterator: tf.data.Iterator, steps: tf.Tensor) -> None:
        """Run steps in one call."""
        for _ in tf.range(steps):
            self.strategy.run(self.on_replica, args=next(iterator))

    def train(self, epochs: int, steps: int | None = None) -> tuple[list[float], float]:
        """See contenders.work.Base."""
        laps, accuracy = Laps(), 0.0
        for _ in range(epochs):
            self.many_steps(self.iterator, tf.constant(steps or steps_per_epoch(self.work)))
            _, accuracy = (float(metric.result()) for metric in self.metrics)
            for metric in self.metrics:
                metric.reset_state()
            laps.lap()
        return laps.seconds, accuracy
