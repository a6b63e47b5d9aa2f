"""mirrorkit's Loop, on data held on the devices, made by tf.data, or streamed from TFRecord shards."""

from __future__ import annotations

import keras

import mirrorkit as mk
from contenders.work import Base, Laps, Work, model_and_optimizer, strategy


class Contender(Base):
    """See contenders.work.Base.

    Args:
        data: "resident", "batches" or "records".
        apart: one of several processes, each with its part of the work for itself.
        jit_compile: of Step.
    """

    def __init__(self, work: Work, *, data: str, apart: bool = False, jit_compile: bool = False) -> None:
        self.work, self.jit_compile = work, jit_compile
        self.strategy = strategy(work, own=True)
        parts = work.replicas if apart else 1
        recipe = {"global_batch_size": work.batch_size // parts, "shuffle": True, "seed": 0, "drop_remainder": True}
        if data == "records":
            self.train_data = mk.data.records(work.records, **recipe)
        else:
            split = mk.data.arrays(*work.arrays())
            self.train_data = getattr(mk.data, data)(split[: len(split) // parts], **recipe)
        self.model, self.optimizer = model_and_optimizer(work, self.strategy)
        self.epochs_done = 0

    def build(self) -> None:
        """See contenders.work.Base."""
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        step = mk.train.Step(self.model, self.optimizer, loss=loss, metrics=["accuracy"], jit_compile=self.jit_compile)
        self.loop = mk.train.Loop(self.strategy, step)

    def train(self, epochs: int, steps: int | None = None) -> tuple[list[float], float]:
        """See contenders.work.Base."""
        laps, first = Laps(), self.epochs_done
        self.epochs_done += epochs
        report = self.loop.fit(
            self.train_data,
            initial_epoch=first,
            epochs=first + epochs,
            steps_per_epoch=steps,
            callbacks=[laps.callback()],
            verbose=0,
        )
        return laps.seconds, report.history["accuracy"][-1]
