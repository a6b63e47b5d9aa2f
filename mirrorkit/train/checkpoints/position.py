"""Where a training run is; with the values of its variables, all that it needs to resume."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields

import numpy as np

from mirrorkit._types import Json, LogValue
from mirrorkit.errors import CheckpointError


@dataclass
class Position:
    """What a run needs, together with the step's variables, to go on as if it had not stopped.

    ```python
    loop.fit(train, epochs=2, verbose=0, callbacks=[mk.train.Checkpoints("runs/first")])
    position = loop.restore("runs/first")
    print(position.epoch, position.batch, position.steps)  # 2 0 8
    ```

    Attributes:
        epoch: the current epoch, counted from 0.
        batch: how many of its global batches are done.
        totals: the sum of the step's totals over these batches (float64).
        steps: training steps of the whole run.
        history: for each log name its values at the ends of the epochs so far.
        ended: `epochs` of the last fit that ended, perhaps early because a callback stopped it. A fit with the same
            `epochs` has nothing more to do.
        global_batch_size: of the data; None where it is not known.
        order_version: of the recipe whose order of examples this epoch follows; see `mk.data.Recipe`.
        order_workers: the number of workers that the order depends on; None where it depends on none, or is not known.
        num_examples: of the data; None where it is not known.
        order: what else the order of this epoch's examples depends on, such as its seed; None where it is not known.
        sums: what the totals add up, in words: losses and metrics; None where it is not known.
        stopping: whether a callback has decided to end the training.
        validating: whether a validation within the epoch is due, before callbacks are told of the last steps.
        first_epoch: the epoch that began with the first batch of data that never end.
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
    num_examples: int | None = None
    order: str | None = None
    sums: list[str] | None = None
    stopping: bool = False
    validating: bool = False
    first_epoch: int = 0

    def as_json(self) -> Json:
        """Return the position in a form that JSON holds, every number exactly."""
        return {**asdict(self), "history": {name: [_plain(v) for v in self.history[name]] for name in self.history}}

    @classmethod
    def from_json(cls, values: Json) -> Position:
        """Make a position of what `as_json` returned; what older versions did not save keeps its default.

        Raises:
            CheckpointError: there is a value that this version does not know.
        """
        unknown = values.keys() - {one.name for one in fields(cls)}
        if unknown:
            raise CheckpointError(
                f"the position of the run holds {min(unknown)!r}, which this version of mirrorkit does not know. "
                "Update mirrorkit."
            )
        history = {name: [_restored(value) for value in logged] for name, logged in values["history"].items()}
        return cls(**{**values, "history": history})


def _plain(value: LogValue) -> Json:
    array = np.asarray(value)
    if array.ndim:  # a metric with a value for each class
        return {"values": array.tolist(), "dtype": array.dtype.name}
    return array.item()


def _restored(value: Json) -> LogValue:
    return np.array(value["values"], value["dtype"]) if isinstance(value, dict) else value
