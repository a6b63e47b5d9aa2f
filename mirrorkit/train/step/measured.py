"""What a step measures: losses and metrics, created for the data and checked with it before the first pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from mirrorkit import private
from mirrorkit._types import KerasModel, Spec
from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient
from mirrorkit.train.keras_model.building import outputs_of, symbolic
from mirrorkit.train.keras_model.calling import placeholders
from mirrorkit.train.keras_model.outputs import unpack_batch
from mirrorkit.train.replica_code.step_function import build_as_it_trains, created_in
from mirrorkit.train.requirements.data import told
from mirrorkit.train.step.keras_compile import compiled_config
from mirrorkit.train.step.options import Options
from mirrorkit.train.step.own_loss import LossModel, names_of_values
from mirrorkit.train.totals.losses import LossCall, log_names, loss_faults, loss_name


@dataclass(eq=False)
class Measured:
    """Creates the losses and metrics of a model for data; outside of the replicas.

    Args:
        model: whose `train_step` is run.
        called: the model that it calls.
        strategy: in whose scope variables are created.
        options: of the step.

    Attributes:
        functions: the names of the losses' functions, by the name of their log.
    """

    model: KerasModel
    called: KerasModel
    strategy: tf.distribute.Strategy
    options: Options
    functions: dict[str, str] = field(default_factory=dict)

    def __call__(self, data: Spec) -> Sequence[tf.Variable]:
        """Create what is missing for data like this (specs), and refuse losses that it does not fit.

        Returns the trainable variables that the losses read.
        """
        if self.options.runs_keras:
            build_as_it_trains(self.model, data, self.strategy)
        elif isinstance(self.model, LossModel):
            names = names_of_values(self.model, data)
            with created_in(self.strategy):
                self.model.measure(names)
        else:
            return self._of_compiled(data)
        return []

    def _of_compiled(self, data: Spec) -> Sequence[tf.Variable]:
        model, failure = self.model, None
        inputs = unpack_batch(data).x
        try:
            outputs = outputs_of(self.called, inputs)
        except Exception:  # a layer that cannot be called, as RandomCrop, may say itself what it gives
            outputs = self.called.compute_output_spec(symbolic(inputs))
        graph, calls = private.get("__internal__.FuncGraph")("measures"), list[LossCall]()
        with created_in(self.strategy), ambient.set(inlines=True, losses=calls), graph.as_default():
            x, y, weight = unpack_batch(placeholders(data))
            y_pred = placeholders(outputs)
            try:
                with tf.GradientTape() as tape:
                    if compiled_config(model).config.get("loss") is not None:  # else layers add it when they are called
                        model.compute_loss(x, y, y_pred, weight)
                    model.compute_metrics(x, y, y_pred, weight)
            except Exception as error:  # whatever a user's loss may raise
                failure = error
        names = log_names(model, calls)
        self.functions = {name: loss_name(call.loss) for name, call in zip(names, calls, strict=True)}
        # Losses that are no numbers for a batch, and sums, of which several batches would make a mean.
        shards = self.strategy.num_replicas_in_sync * self.options.accumulate
        for call in calls:
            reduction = getattr(call.loss, "reduction", None)
            is_vector = reduction in ("none", None) and shards > 1
            if is_vector or (reduction == "sum" and self.options.accumulate > 1):
                raise StepError(
                    f"{type(call.loss).__name__}(reduction={reduction!r}) minimizes a sum over the batch in Keras's "
                    "fit, so the size of an update depends on the size of the batch, and of its parts. Use "
                    "reduction='sum_over_batch_size', the default, and scale the learning rate "
                    "(mk.batching.scale_learning_rate)."
                )
        faults = {n: fault for n, fault in loss_faults(calls, names).items() if n not in self.options.unchecked}
        if faults:
            know = f"If you know that it is right, write Step(..., unchecked={tuple(faults)!r})."
            raise StepError(" ".join([*faults.values(), know]))
        if failure is not None:
            raise StepError(
                f"Keras cannot compute loss and metrics for this data: {told(failure)} Let the data yield (x, y), with "
                "a target for every output that has a loss or a metric."
            ) from failure
        return list(tape.watched_variables())
