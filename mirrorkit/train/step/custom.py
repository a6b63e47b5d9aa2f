"""A user's own step: the small protocol that Loop asks for, and what makes such a step look like ours to Loop."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Batch, KerasModel, Logs, Nest, Spec, Sums, Variable
from mirrorkit.errors import StepError
from mirrorkit.strategy import has_copies, require_same
from mirrorkit.train.ambient import ambient
from mirrorkit.train.keras_model.models import Models
from mirrorkit.train.keras_model.seeds import all_drawing_by_replica
from mirrorkit.train.reduce.gathering import rows_of_all
from mirrorkit.train.requirements.data import require_same_rows
from mirrorkit.train.requirements.settings import settings_of_variables
from mirrorkit.train.step.assigned import run_and_combine
from mirrorkit.train.step.clock import Clock
from mirrorkit.train.step.devices import are_placed
from mirrorkit.train.step.global_batch import GlobalBatch, HostBatch, unless_empty, weigh_copies
from mirrorkit.train.step.loop_step import LoopStep, Need, Pass


@runtime_checkable
class TrainStep(Protocol):
    """What `Loop` needs of a step; `mk.train.Step` is one, and custom steps, such as a GAN's, work too.

    ```python
    class OnNegatives:   # trains another step, with black and white exchanged
        def __init__(self, step):
            self.step = step

        def build(self, strategy):
            self.step.build(strategy)

        def compute(self, batch):
            images, labels = batch
            return self.step.compute((255 - images, labels))

        def update(self, strategy, sums):
            return self.step.update(strategy, sums)


    report = mk.train.Loop(strategy, OnNegatives(step)).fit(train, verbose=0)
    print(sorted(report.history))  # ['accuracy', 'loss']
    ```

    A step may also have

    - `train(strategy, batch)` in place of `compute` and `update`, for several updates per batch: called in
      cross-replica context with each replica's rows, it returns logs as `update` does;
    - `test(batch)` for `evaluate` and validation: called through `strategy.run` with a replica's rows, it returns for
      each log its value for every example ([rows]); what is reported is the mean over all examples of the data;
    - `predict(batch)` for `predict`: called through `strategy.run`, it returns outputs [rows, ...];
    - `variables`, a list of all it changes: `loop.warm_up` restores them, `mk.train.Checkpoints` saves them;
    - `model`, a Keras model for callbacks that save it or stop its training; by default one that holds the Keras models
      and layers among the step's attributes;
    - `unchecked = ("seeds",)` where all replicas are to draw the same random numbers; else each draws its own.
    """

    def build(self, strategy: tf.distribute.Strategy) -> None:
        """Create in the strategy's scope what is missing; may be called twice."""

    def compute(self, batch: Batch) -> Sums:
        """Return this replica's sums (a nest of float tensors); called through `strategy.run`."""

    def update(self, strategy: tf.distribute.Strategy, sums: Sums) -> Mapping[str, tf.Tensor]:
        """Reduce the sums, write the same update everywhere (see `mk.train.Update`); return scalar logs by name."""


_METHODS: dict[Need, str] = {"evaluate": "test", "predict": "predict"}


class Custom(LoopStep):
    """The `LoopStep` of a user's own step; refuses one that lacks a method.

    Its totals are the number of examples, the sum of all the others, and each log times the examples.
    """

    def __init__(self, strategy: tf.distribute.Strategy, step: Any) -> None:
        needed = ["build", *(["train"] if hasattr(step, "train") else ["compute", "update"])]
        if isinstance(step, keras.Model):
            raise StepError(
                f"{type(step).__name__} is a Keras model, and Loop takes a step. Use mk.train.Step(model, optimizer, "
                "loss=...) or Step.from_compiled(model), which runs a train_step of the model's own too. A step of "
                "your own, such as a GAN, is a plain class that holds its models."
            )
        missing = [name for name in needed if not hasattr(step, name)]
        if missing:
            raise StepError(
                f"{type(step).__name__} is not a step: it lacks {', '.join(missing)}. Use mk.train.Step(model, "
                "optimizer, loss=...), or define build(strategy), compute(batch) and update(strategy, sums)."
            )
        with strategy.scope():
            step.build(strategy)
        self._step = step
        variables = settings_of_variables(self.variables)
        require_same(strategy, "step", {"class of the step": type(step).__name__, **variables})
        if are_placed(strategy, self.variables):
            raise StepError(
                f"The variables of {type(step).__name__} lie on several devices (mk.parallel.Layout), but a custom "
                "step would compute only on the first. Use mk.train.Step or Step.from_loss, whose computation follows "
                "its variables."
            )
        self.clock = Clock()  # such a step asks for nothing on the host
        self.model: KerasModel = getattr(step, "model", None) or Models(
            [part for part in vars(step).values() if isinstance(part, keras.layers.Layer)], type(step).__name__.lower()
        )
        if not hasattr(self.model, "optimizer"):
            self.model.optimizer = None  # TensorBoard asks for it
        self.strategy = strategy
        self._names: dict[Pass, list[str]] = {}  # of the logs
        self.checked: dict[str, object] = {}  # before which kind of pass a batch was checked
        self._test_gathers = False  # rows of other replicas

    @property
    def variables(self) -> list[Variable]:
        """What the step says that it changes."""
        return list(getattr(self._step, "variables", []))

    def require(self, what: Need) -> None:
        """Refuse what the step does not say how to do."""
        if what in _METHODS and not hasattr(self._step, _METHODS[what]):
            raise StepError(
                f"{what} needs a mk.train.Step; {type(self._step).__name__} only trains. Give it a method "
                f"{_METHODS[what]}(batch) (see mk.train.TrainStep), or call its model."
            )

    def prepare(self, element_spec: Spec, what: Pass = "train") -> None:
        """Trace the step once to learn the names of its logs."""
        require_same_rows(element_spec)
        if what not in self._names:

            def logs(batch: Batch) -> Nest:
                if what == "train":
                    return self.train_logs(HostBatch(batch))
                return self.strategy.run(ambient.set(gather=gather)(lambda: self._tested(HostBatch(batch).rows())))

            def gather(rows: Nest) -> Nest:
                self._test_gathers = self.strategy.num_replicas_in_sync > 1
                return rows_of_all(rows)

            traced = tf.function(logs, autograph=False).get_concrete_function(element_spec)
            self._names[what] = sorted(traced.structured_outputs)

    @property
    def _draws_apart(self) -> bool:
        """Whether each of several replicas draws its own numbers; on one they are Keras's."""
        return self.strategy.num_replicas_in_sync > 1 and "seeds" not in getattr(self._step, "unchecked", ())

    def totals_size(self, what: Pass = "train") -> int:
        """Return the number of values in the totals; after `prepare`."""
        return 2 + len(self._names[what])

    def describe_totals(self) -> list[str]:
        """Return the names of the logs."""
        return [f"the log {name!r} of {type(self._step).__name__}" for name in self._names["train"]]

    def train(self, batches: Sequence[GlobalBatch], first_part: int | tf.Tensor = 0) -> tf.Tensor:
        """Train on one batch; see `LoopStep`."""
        (batch,) = batches
        examples = tf.cast(batch.examples(), tf.float32)
        logs = self.train_logs(batch)
        values = [tf.cast(logs[name], tf.float32) * examples for name in sorted(logs)]
        return tf.stack([examples, tf.add_n(values), *values])

    def train_logs(self, batch: GlobalBatch) -> Logs:
        """Train on one batch, and return what the step logs."""
        with all_drawing_by_replica(self.strategy) if self._draws_apart else contextlib.nullcontext():
            if hasattr(self._step, "train"):
                logs = self._step.train(self.strategy, self.strategy.run(batch.rows))
            else:
                sums = self.strategy.run(lambda: self._step.compute(batch.rows()))
                logs = self._step.update(self.strategy, sums)
        wrong = [name for name, value in logs.items() if not tf.is_tensor(value) or value.shape.rank != 0]
        if wrong:
            raise StepError(
                f"{type(self._step).__name__} returned the logs {wrong}, which are not reduced scalars. Compute logs "
                "from the sums inside the function given to mk.train.Update, and return scalars by name."
            )
        return dict(logs)

    def test(self, batch: GlobalBatch) -> tf.Tensor:
        """Return the totals of this replica's rows; see `LoopStep`."""
        names = self._names["test"]

        def totals(rows: Batch) -> tf.Tensor:
            values = self._tested(rows)
            examples = tf.cast(tf.shape(values[names[0]])[0], tf.float32)
            sums = [tf.reduce_sum(tf.cast(values[name], tf.float32)) for name in names]
            return tf.stack([examples, tf.add_n(sums), *sums])

        if not self._test_gathers:
            return self._apart(batch.rows(), totals)
        rows, is_all = batch.rows_or_all()
        with ambient.set(gather=functools.partial(rows_of_all, is_all=is_all)):
            found = self._apart(rows, totals, always=True)
        counted: tf.Tensor = weigh_copies({"totals": found}, is_all)["totals"]
        return counted

    def _tested(self, rows: Batch) -> Mapping[str, tf.Tensor]:
        """Return what the user's `test` returns, where it is one value for each example."""
        values: Mapping[str, tf.Tensor] = self._step.test(rows)
        size = tf.nest.flatten(rows)[0].shape[:1]
        for name, value in values.items():
            if not tf.is_tensor(value) or not value.shape.is_compatible_with(size):
                raise StepError(
                    f"test of {type(self._step).__name__} must return for each log one value per example, shape "
                    f"{size}; found {getattr(value, 'shape', value)} for {name!r}. Loop takes the mean over all "
                    "examples of the data."
                )
        return values

    def predict(self, batch: GlobalBatch) -> Nest:
        """Return the outputs for this replica's rows; see `LoopStep`."""
        return self._apart(batch.rows(), self._step.predict, always=True)

    def _apart(self, rows: Batch, compute: Callable[[Batch], Nest], *, always: bool = False) -> Nest:
        """Compute what does not train from a replica's rows: with draws of its own, and one state on all replicas.

        `always` runs it without rows too, since it may gather those of other replicas, as each `predict` may.
        """
        with all_drawing_by_replica(self.strategy) if self._draws_apart else contextlib.nullcontext():
            if has_copies(self.strategy):
                known = [variable for variable in self.variables if isinstance(variable, keras.Variable)]
                return run_and_combine(self.strategy, known, rows, compute, always=always, outputs=False)
            return unless_empty(rows, lambda: compute(rows), always=always)

    def logs(self, totals: tf.Tensor, what: Pass = "train") -> Logs:
        """Return the mean of each log over the examples."""
        return {name: totals[i] / totals[0] for i, name in enumerate(self._names[what], start=2)}
