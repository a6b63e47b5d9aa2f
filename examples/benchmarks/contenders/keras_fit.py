"""Keras's own model.fit under the same strategy."""

from __future__ import annotations

from typing import Any

import keras

from contenders.work import Base, Laps, Work, model_and_optimizer, pipeline, steps_per_epoch, strategy


class Contender(Base):
    """See contenders.work.Base.

    Args:
        data: "memory" or "records".
        repeat: one dataset without an end for all epochs, in place of a new iterator for each.
        **options: of `compile`.
    """

    def __init__(self, work: Work, *, data: str = "memory", repeat: bool = False, **options: Any) -> None:
        self.work = work
        self.strategy = strategy(work, own=False)
        self.dataset = pipeline(work, data=data)
        self.steps_per_epoch = steps_per_epoch(work) if repeat else None
        self.model, self.optimizer = model_and_optimizer(work, self.strategy)
        self.options = options

    def build(self) -> None:
        """See contenders.work.Base."""
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        with self.strategy.scope():
            self.model.compile(self.optimizer, loss=loss, metrics=["accuracy"], **self.options)

    def train(self, epochs: int, steps: int | None = None) -> tuple[list[float], float]:
        """See contenders.work.Base."""
        laps = Laps()
        dataset = self.dataset if steps is None else self.dataset.take(steps)
        length = {}
        if self.steps_per_epoch is not None:
            dataset, length = dataset.repeat(), {"steps_per_epoch": steps or self.steps_per_epoch}
        history = self.model.fit(dataset, epochs=epochs, callbacks=[laps.callback()], verbose=0, **length)
        return laps.seconds, history.history["accuracy"][-1]
