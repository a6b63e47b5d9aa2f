"""Where a training run is; with the values of its variables, all that it needs to resume."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import numpy as np

from mirrorkit._types import Json, LogValue


@dataclass
class Position:
    """What a run needs, together with the step's variables, to go on as if it had not stopped.

    Attributes:
        epoch: the current epoch, counted from 0.
        batch: how many of its global batches are done.
        totals: what the step's totals of these batches add up to (float64).
        steps: training steps of the whole run.
        history: for each log name its values at the ends of the epochs so far.
        ended: `epochs` of the last fit that came to its end, perhaps early because a callback stopped it; asked again
            for as many, there is nothing more to do.
        global_batch_size: of the data; None where it is not known.
        order_version: of the recipe whose order of examples this epoch follows; see `mk.data.Recipe`.
        order_workers: the number of workers that the order depends on; None where it depends on none, or is not known.
    """

    epoch: int = 0
    batch: int = 0
    totals: list[float] = field(default_factory=list)
    steps: int = 0
    history: dict[str, list[LogValue]] = field(default_factory=dict)
    ended: int = 0
    global_batch_size: int | None = None
    order_version: int = 1  # that of checkpoints that do not say
    order_workers: int | None = None

    def advance(self, steps: int, totals: list[float]) -> None:
        """Count the steps of a call."""
        self.batch += steps
        self.steps += steps
        self.totals = totals

    def next_epoch(self) -> None:
        """Go to the beginning of the next epoch."""
        self.epoch, self.batch, self.totals = self.epoch + 1, 0, []

    def as_json(self) -> Json:
        """Return the position as JSON can hold it, every number exactly."""
        return {**asdict(self), "history": {name: [_plain(v) for v in self.history[name]] for name in self.history}}

    @classmethod
    def from_json(cls, values: Json) -> Position:
        """Make a position of what `as_json` returned."""
        history = {name: [_restored(v) for v in values["history"][name]] for name in values["history"]}
        return cls(**{**values, "history": history})


def _plain(value: LogValue) -> Json:
    array = np.asarray(value)
    if array.ndim:  # a metric with a value for each class
        return {"values": array.tolist(), "dtype": array.dtype.name}
    return array.item()


def _restored(value: Json) -> LogValue:
    return np.array(value["values"], value["dtype"]) if isinstance(value, dict) else value
