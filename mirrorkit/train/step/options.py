"""What `Step` was given beside model and optimizer, as the rest of a step takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit._types import Batch, Nest, PerOutput
from mirrorkit.arguments import checks_arguments
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.outputs import UnpackedBatch, unpack_batch
from mirrorkit.train.replica_code.step_function import as_keras
from mirrorkit.train.requirements.arguments import check_options
from mirrorkit.train.step.averages import no_averages
from mirrorkit.train.step.loop_step import Need
from mirrorkit.train.step.loss_scale import LossScale


class Clip(NamedTuple):
    """Bounds for the mean gradient, after the reduction, so that it means the same on any number of replicas."""

    norm: float | None  # of all gradients together
    value: float | None  # of each number; at most one of the two is set

    def __call__(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return the gradients within the bounds; they may arrive joined into fewer tensors than there are weights."""
        if self.norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.norm)
        if self.value is not None:
            gradients = [tf.clip_by_value(gradient, -self.value, self.value) for gradient in gradients]
        return gradients


@dataclass(frozen=True)
class Options:
    """The arguments of `Step`; see there."""

    losses: Mapping[str, PerOutput]  # arguments of `Losses`
    metrics: Mapping[str, PerOutput]  # and of `Metrics`
    clip: Clip
    accumulate: int
    loss_scale: LossScale | None
    ema: float | None
    unchecked: Sequence[str]
    jit_compile: bool | str  # "auto" becomes False where it does not apply; see `variants.for_strategy`
    shard_optimizer: bool = False  # each replica keeps 1/N of the optimizer's slots
    sparse_embeddings: bool | str = "auto"  # how tables are updated; "lazy" changes results
    of_values: bool = False  # the model takes whole batches, and its outputs are values of each example (`from_loss`)
    predict: Callable[[Batch], Nest] | None = None  # from a batch, in place of the model
    compiled: object = None  # the model's `compiled_config`, where its arguments are the step's
    whole_batch: bool = False  # the values of an example may depend on all examples of the batch (`all_gather`)
    runs_keras: bool = False  # the model's own train_step
    as_compiled: bool = False  # what the model's `compile` says, the step is to do
    asked: Sequence[str] = ()  # with it: the names of the options that were given
    trains: bool = True  # there is an optimizer

    @classmethod
    @checks_arguments(StepError)
    def of(
        cls,
        losses: Mapping[str, PerOutput],
        metrics: Mapping[str, PerOutput],
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        loss_scale: str | float | LossScale | None = None,
        ema: float | None = None,
        unchecked: Sequence[str] = (),
        jit_compile: bool | str = "auto",
        shard_optimizer: bool = False,
        sparse_embeddings: bool | str = "auto",
        **others: Any,
    ) -> Options:
        """Convert the arguments of `Step`; `others` are attributes."""
        check_options(clip_norm, clip_value, accumulate=accumulate, ema=ema)
        return cls(
            losses,
            metrics,
            Clip(clip_norm, clip_value),
            int(accumulate),
            LossScale.of(loss_scale),
            ema,
            [unchecked] if isinstance(unchecked, str) else list(unchecked),
            jit_compile,
            shard_optimizer,
            sparse_embeddings,
            **others,
        )

    @property
    def takes_batches(self) -> bool:
        """Whether a user's function takes whole batches, of whatever structure."""
        return self.of_values or self.runs_keras

    def unpack(self, batch: Batch) -> UnpackedBatch:
        """Take a batch apart into what the model is called on, targets and weights."""
        return UnpackedBatch(batch) if self.takes_batches else unpack_batch(batch)

    def data(self, parts: Sequence[Nest]) -> Nest:
        """Return what the model's `train_step` is given, of a batch that was taken apart."""
        if not self.takes_batches:
            return tuple(parts)
        return as_keras(parts[0]) if self.runs_keras else parts[0]

    def require(self, what: Need) -> None:
        """Refuse what only a step with targets, averages, an optimizer, or something to measure can do."""
        if what == "train" and not self.trains:
            raise StepError(
                "This step was made without an optimizer, so it evaluates and predicts only. To train, write "
                "Step(model, optimizer, loss=...), with an optimizer made in the strategy's scope."
            )
        measured = [*self.losses.values(), *self.metrics.values()]
        is_empty = not self.takes_batches and all(one is None for one in measured)
        if what == "evaluate" and not self.trains and is_empty:
            raise StepError(
                "This step has neither a loss nor metrics, so there is nothing to evaluate. Write Step(model, "
                "metrics=[...]), or Step(model, loss=..., metrics=[...]) with the loss among the logs."
            )
        if what == "averaged" and self.ema is None:
            raise no_averages("This step")
        if what == "class_weight" and self.of_values:
            raise StepError(
                "class_weight weighs a loss by its targets, and Step.from_loss has a function of whole batches. "
                "Multiply the values in loss_fn by the weights of their classes: tf.gather(class_weights, y)."
            )
