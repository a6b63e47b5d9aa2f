"""mirrorkit's Loop, on data held on the devices, made by tf.data, or streamed from TFRecord shards."""

from __future__ import annotations

import json
import os

import keras

import mirrorkit as mk
from contenders.work import Laps, Work, model_and_optimizer, strategy


class Contender:
    """See contenders/__init__.py."""

    def __init__(self, work: Work, *, data: str, kind: str = "auto") -> None:
        if kind == "multi_worker":
            addresses = [f"127.0.0.1:{port}" for port in work.ports]
            task = {"type": "worker", "index": work.process}
            os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        self.strategy = strategy(work, own=True) if kind == "auto" else mk.strategy.create(kind)
        recipe = {"global_batch_size": work.batch_size, "shuffle": True, "seed": 0, "drop_remainder": True}
        if data == "records":
            self.train_data = mk.data.records(work.records, **recipe)
        else:
            self.train_data = getattr(mk.data, data)(mk.data.arrays(*work.arrays()), **recipe)
        self.model, self.optimizer = model_and_optimizer(work, self.strategy)
        self.epochs_done = 0

    def build(self) -> None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        step = mk.train.Step(self.model, self.optimizer, loss=loss, metrics=["accuracy"])
        self.loop = mk.train.Loop(self.strategy, step)

    def train(self, epochs: int, steps: int | None = None) -> tuple[list[float], float]:
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
