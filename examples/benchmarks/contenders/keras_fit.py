"""Keras's own model.fit under the same strategy."""

from __future__ import annotations

from typing import Any

import keras

from contenders.work import Base, Laps, Work, model_and_optimizer, pipeline, strategy


class Contender(Base):
    """See contenders.work.Base; `options` go to `compile`."""

    def __init__(self, work: Work, *, data: str = "memory", **options: Any) -> None:
        self.strategy = strategy(work, own=False)
        self.dataset = pipeline(work, data=data)
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
        history = self.model.fit(dataset, epochs=epochs, callbacks=[laps.callback()], verbose=0)
        return laps.seconds, history.history["accuracy"][-1]
