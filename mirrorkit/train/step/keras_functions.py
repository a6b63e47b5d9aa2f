"""The arithmetic of a step between whose rows and sums a model's own `train_step` and `test_step` run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Logs, Nest
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.outputs import UnpackedBatch, count_examples
from mirrorkit.train.keras_model.row_draws import row_draws
from mirrorkit.train.replica_code.own_step import OwnStep
from mirrorkit.train.replica_code.pure_scope import NotAFunction
from mirrorkit.train.replica_code.pure_step import Ran, Values, metric_variables, run_pure
from mirrorkit.train.replica_code.scope import Share
from mirrorkit.train.replica_code.step_function import flat_logs
from mirrorkit.train.step.changing import Changing
from mirrorkit.train.step.facts import ShardSums
from mirrorkit.train.step.functions import Functions
from mirrorkit.train.totals.totals import EXAMPLES, FIXED


class KerasTotals:
    """What a model's own step adds up: examples, the loss, and the states of its metrics; see `Totals`."""

    def __init__(self, model: KerasModel) -> None:
        self._model = model
        self._variables = metric_variables(model)
        self._sizes = [int(np.prod(variable.shape)) for variable in self._variables]
        self.size = FIXED + sum(self._sizes)

    def described(self) -> list[str]:
        """See `Totals`."""
        return [f"{variable.path} {tuple(variable.shape)}" for variable in self._variables]

    @property
    def modes(self) -> Mapping[str, str]:
        """See `Totals`; Keras knows none of what a step logs by a name of its own."""
        return {}

    @property
    def zeros(self) -> list[tf.Tensor]:
        """What the metrics begin with."""
        return [tf.zeros(variable.shape, variable.dtype) for variable in self._variables]

    def of(self, rows: tf.Tensor, ran: Ran) -> tf.Tensor:
        """Return the totals of one replica's rows."""
        logs = {name: tf.cast(value, tf.float32) for name, value in ran.logs.items()}
        loss = logs["loss"] if "loss" in logs else tf.add_n([*logs.values(), tf.zeros([])])
        states = [tf.reshape(tf.cast(value, tf.float32), [-1]) for value in ran.metrics]
        return tf.ensure_shape(tf.concat([tf.stack([rows, rows * loss, 0.0]), *states], 0), [self.size])

    def logs(self, totals: tf.Tensor) -> Logs:
        """Return what Keras takes from the metrics."""
        parts = tf.split(totals[FIXED:], self._sizes)
        pairs = zip(self._variables, parts, strict=True)
        states = [(v, tf.cast(tf.reshape(part, v.shape), v.dtype)) for v, part in pairs]
        with keras.StatelessScope(state_mapping=states):
            return flat_logs(self._model.get_metrics_result())


class KerasFunctions(Functions):
    """See `Functions`."""

    needs_total = True

    def __init__(self, model: KerasModel, *args: Any, own: OwnStep, **options: Any) -> None:
        super().__init__(model, *args, **options)
        self._own = own
        self._keras_totals: KerasTotals | None = None
        self._asks = {"train": self.training.communicate, "test": self.testing.communicate}

    def resolve(self, batch: UnpackedBatch, what: str = "train") -> None:
        """Trace the step once for data of this kind, and refuse one that is no function of values."""
        try:
            found = self._own.found(what, batch.x)
        except NotAFunction as why:
            raise self._refused(what, why) from why
        self._keras_totals = self._keras_totals or KerasTotals(self._model)
        if found.asks and not self._asks[what]:
            self._asks[what] = True
            self.communicate(**self._asks)

    @property
    def totals(self) -> Any:
        """The `KerasTotals`, in place of `Totals`; known once a batch was seen."""
        return self._keras_totals or super().totals

    def _run(self, what: str, values: Changing, state: list[tf.Tensor], batch: Nest, place: Any, total: Any) -> Ran:
        (whole,) = batch
        rows = tf.cast(count_examples(whole), tf.float32)
        all_rows = rows if total is None else tf.cast(total, tf.float32)
        share = Share(0, self._own.replicas, rows, all_rows, 1.0, lambda: place, row_draws())
        given = Values(values.weights, state, self.totals.zeros)
        scale = values.scale[0] if self._options.loss_scale is not None and what == "train" else None
        try:
            ran = run_pure(self._model, what, given, whole, share, scale)
        except NotAFunction as why:
            raise self._refused(what, why) from why
        if scale is not None and not ran.scope.is_scaled:
            raise StepError(
                f"The train_step of {type(self._model).__name__} takes the gradient of a loss that it did not scale. "
                "Write loss = self.optimizer.scale_loss(loss) before, as Keras's own train_step does."
            )
        passing = self.training if what == "train" else self.testing
        if ran.scope.asks and not (passing.communicate or row_draws()):
            raise StepError(
                "A mean over what a mask or weights leave was taken, which earlier batches did not need. Let all "
                "batches have masks and weights, or none."
            )
        if self._shards > 1 and "state" not in self._options.unchecked and not tf.executing_eagerly():
            self.state.require_no_rows(state, ran.state, whole)
        return ran

    def _refused(self, what: str, why: NotAFunction) -> StepError:
        return StepError(
            f"The train_step of {type(self._model).__name__} makes one update, and so is run as a function of values; "
            f"this {what}_step cannot be: {why}. Let it write and log for this data what it does for the training's."
        )

    def shard_sums(self, values: Changing, batch: Nest, place: tf.Tensor, total: tf.Tensor | None = None) -> ShardSums:
        """See `Functions`."""

        def sums() -> ShardSums:
            state = self.state.seeded(values.state, place)
            ran = self._run("train", values, state, batch, place, total)
            totals = self.totals.of(ran.scope.share.rows, ran)
            factor = totals[EXAMPLES] if ran.scope.scale is None else totals[EXAMPLES] / ran.scope.scale

            def summed(gradient: tf.Tensor) -> tf.Tensor:
                return gradient * tf.cast(factor, gradient.dtype)

            gradients = [self._sum(i, g, summed, i in self.tables) for i, g in enumerate(ran.gradients)]
            return ShardSums({EXAMPLES: gradients}, self.state.sums(state, ran.state, lambda: totals[EXAMPLES]), totals)

        of_shard: ShardSums = self.training.run(batch, sums)
        return of_shard

    def shard_totals(
        self, values: Changing, batch: Nest, place: tf.Tensor, total: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
        """See `Functions`."""

        def totals() -> tuple[tf.Tensor, list[tf.Tensor | None]]:
            state = self.state.seeded(values.state, place)
            ran = self._run("test", values, state, batch, place, total)
            found = self.totals.of(ran.scope.share.rows, ran)
            return found, self.state.sums(state, ran.state, lambda: found[EXAMPLES])

        found: tuple[tf.Tensor, list[tf.Tensor | None]] = self.testing.run(batch, totals)
        return found
