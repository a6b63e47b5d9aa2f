"""A user's own step: the small protocol that Loop asks for, and what makes such a step look like ours to Loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from mirrorkit.errors import StepError
from mirrorkit.train.step.clock import Clock
from mirrorkit.train.step.seeds import require_own_draws
from mirrorkit.train.step.share import Share, own_share


@runtime_checkable
class TrainStep(Protocol):
    """What `Loop` needs of a step; `mk.train.Step` is one, and a user's own (a GAN, say) is as welcome.

    A step may also have `variables` (a list of all it changes: `loop.warm_up` puts them back) and `model` (a Keras
    model, for callbacks that save it or stop its training), and `unchecked = ("seeds",)` where replicas are to draw the
    same random numbers.
    """

    def build(self, strategy: tf.distribute.Strategy) -> None:
        """Create in the strategy's scope what is missing; may be called twice."""

    def compute(self, batch: Any) -> Any:
        """Return this replica's sums (a nest of float tensors); called through `strategy.run`."""

    def update(self, strategy: tf.distribute.Strategy, sums: Any) -> Mapping[str, tf.Tensor]:
        """Reduce the sums, write the same update everywhere (see `mk.train.Update`); return scalar logs by name."""


class CustomStep:
    """Gives a `TrainStep` the totals that `Calls` adds up: examples, a watch on NaN, each log times the examples."""

    def __init__(self, step: TrainStep, strategy: tf.distribute.Strategy) -> None:
        if not isinstance(step, TrainStep):
            missing = [name for name in ("build", "compute", "update") if not hasattr(step, name)]
            raise StepError(
                f"{type(step).__name__} is no step: it lacks {', '.join(missing)}. Use mk.train.Step(model, optimizer, "
                "loss=...), or define build(strategy), compute(batch) and update(strategy, sums)."
            )
        self._step = step
        self._strategy = strategy
        self._names: list[str] = []
        self._checked = False
        # Keras callbacks need a model to leave their wish to stop with.
        self.model = getattr(step, "model", None) or SimpleNamespace(stop_training=False)
        self.accumulate = 1  # successive batches of one update; such a step may do that by itself
        self.modes: dict[str, str] = {}  # whether a log is to rise or to fall: nobody knows
        self.clock = Clock()  # such a step asks for nothing on the host
        self.loss_index = 1  # holds the sum of all logs: not finite when one of them is not

    @property
    def variables(self) -> list[Any]:
        """What the step says that it changes."""
        return list(getattr(self._step, "variables", []))

    @property
    def totals_size(self) -> int:
        """Number of values in a step's totals; known after `prepare`."""
        return 2 + len(self._names)

    def build(self, strategy: tf.distribute.Strategy) -> None:
        """Build the user's step."""
        self._step.build(strategy)

    def prepare(self, element_spec: Any) -> None:
        """Trace the step once to learn the names of its logs."""
        if not self._names:
            logs = tf.function(lambda batch: self._logs(batch, own_share), autograph=False)
            self._names = sorted(logs.get_concrete_function(element_spec).structured_outputs)

    def first_batch_check(self, what: str = "train") -> Callable[[Any], None] | None:
        """Return what checks a global batch before the first step; None without need."""
        del what  # it only trains
        alone = self._strategy.num_replicas_in_sync == 1
        return None if self._checked or alone or "seeds" in getattr(self._step, "unchecked", ()) else self._check_batch

    def _check_batch(self, batch: Any) -> None:
        require_own_draws(self._strategy, self._step, batch)
        self._checked = True

    def train(self, batch: Any, share: Share = own_share) -> tf.Tensor:
        """Compute, update, and return the totals."""
        examples = tf.cast(share.examples(batch), tf.float32)
        logs = self._logs(batch, share)
        values = [tf.cast(logs[name], tf.float32) * examples for name in sorted(logs)]
        return tf.stack([examples, tf.add_n(values), *values])

    def _logs(self, batch: Any, share: Share) -> Mapping[str, tf.Tensor]:
        sums = self._strategy.run(lambda batch: self._step.compute(share(batch)), args=(batch,))
        logs = self._step.update(self._strategy, sums)
        if not logs:
            raise StepError(
                f"update of {type(self._step).__name__} returned no logs. Return at least the loss by name."
            )
        wrong = [name for name, value in dict(logs).items() if not tf.is_tensor(value) or value.shape.rank != 0]
        if wrong:
            raise StepError(
                f"update of {type(self._step).__name__} returned {wrong}, which are no reduced scalars. Compute logs "
                "from the sums inside the function given to mk.train.Update, and return scalars by name."
            )
        return logs

    def logs(self, totals: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the mean of each log over the examples."""
        return {name: totals[i] / totals[0] for i, name in enumerate(self._names, start=2)}
