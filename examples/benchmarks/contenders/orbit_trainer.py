"""orbit's StandardTrainer (TensorFlow Model Garden): pip install --no-deps tf-models-official tf-keras.

Source: https://github.com/tensorflow/models/tree/master/orbit
"""

from __future__ import annotations

import orbit
import tensorflow as tf

from contenders import hand_written
from contenders.work import Laps, steps_per_epoch


class Contender(hand_written.Contender):
    """See contenders.work.Base; the step is the hand-written one, the loop around it is orbit's."""

    def build(self) -> None:
        """See contenders.work.Base."""
        super().build()
        self.trainer = Trainer(self)

    def train(self, epochs: int, steps: int | None = None) -> tuple[list[float], float]:
        """See contenders.work.Base."""
        laps, accuracy = Laps(), 0.0
        for _ in range(epochs):
            output = self.trainer.train(tf.constant(steps or steps_per_epoch(self.work)))
            accuracy = float(output["accuracy"])
            laps.lap()
        return laps.seconds, accuracy


class Trainer(orbit.StandardTrainer):
    """Its options are orbit's own defaults: a tf.while_loop of steps in one tf.function."""

    def __init__(self, contender: Contender) -> None:
        super().__init__(contender.strategy.experimental_distribute_dataset(contender.dataset))
        self.contender = contender

    def train_loop_begin(self) -> None:
        """Before the steps of a loop, in eager mode."""
        for metric in self.contender.metrics:
            metric.reset_state()

    def train_step(self, iterator: tf.data.Iterator) -> None:
        """One step, in the compiled loop."""
        self.contender.strategy.run(self.contender.on_replica, args=next(iterator))

    def train_loop_end(self) -> dict[str, tf.Tensor]:
        """After the steps of a loop."""
        return {metric.name: metric.result() for metric in self.contender.metrics}
