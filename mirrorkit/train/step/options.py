"""What `Step` was given beside model and optimizer, as the rest of a step takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirrorkit._types import Batch, Nest, PerOutput
from mirrorkit.arguments import require_kinds, whole_number
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.outputs import UnpackedBatch, unpack_batch
from mirrorkit.train.reduce.transforms import Clip, Transform
from mirrorkit.train.replica_code.step_function import as_keras
from mirrorkit.train.step.loop_step import Need
from mirrorkit.train.step.loss_scale import LossScale


@dataclass(frozen=True)
class Options:
    """The arguments of `Step`; see there."""

    losses: Mapping[str, PerOutput]  # of `compile`, by its names
    metrics: Mapping[str, PerOutput]  # likewise
    clip_norm: float | None = None
    clip_value: float | None = None
    transforms: Sequence[Transform] = ()
    accumulate: int = 1
    loss_scale: Any = None  # a `LossScale`, or None
    ema: float | None = None
    unchecked: Sequence[str] = ()
    jit_compile: bool | str = "auto"  # becomes False where it does not apply; see `variants.for_strategy`
    shard_optimizer: bool = False  # each replica keeps 1/N of the optimizer's slots
    sparse_embeddings: bool | str = "auto"  # how tables are updated; "lazy" changes results
    of_values: bool = False  # the model takes whole batches, and its outputs are values of each example (`from_loss`)
    predict: Callable[[Batch], Nest] | None = None  # from a batch, in place of the model
    compiled: object = None  # the model's `compiled_config`, where its arguments are the step's
    whole_batch: bool = False  # the values of an example may depend on all examples of the batch (`all_gather`)
    runs_keras: bool = False  # the model's own train_step
    as_compiled: bool = False  # what the model's `compile` says, the step is to do
    asked: Sequence[str] = ()  # with it: the names of options that were given and that only a function has
    trains: bool = True  # there is an optimizer

    def __post_init__(self) -> None:
        """Refuse options that are out of range, and take those that may be given in several forms."""
        require_kinds(Options.__annotations__, vars(self), StepError)
        for name in ("clip_norm", "clip_value"):
            bound = getattr(self, name)
            if bound is not None and not bound > 0:
                raise StepError(f"{name} must be a positive number, found {bound!r}.")
        if self.clip_norm is not None and self.clip_value is not None:
            raise StepError(
                f"clip_norm={self.clip_norm} and clip_value={self.clip_value} exclude each other. Give one of them."
            )
        if self.ema is not None and not 0 < self.ema < 1:
            raise StepError(f"ema must be a decay between 0 and 1, such as 0.999; found {self.ema!r}.")
        vars(self).update(  # which nothing may assign later
            transforms=tuple(self.transforms),
            accumulate=whole_number("accumulate", self.accumulate, StepError),
            loss_scale=LossScale.of(self.loss_scale),
            unchecked=[self.unchecked] if isinstance(self.unchecked, str) else list(self.unchecked),
        )

    @property
    def chain(self) -> list[Transform]:
        """What acts on the reduced gradient, in order."""
        return [Clip(self.clip_norm, self.clip_value), *self.transforms]

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

    def check_untrained(self) -> None:
        """Refuse what says how to train."""
        names = ("clip_norm", "clip_value", "transforms", "accumulate", "loss_scale", "ema", "shard_optimizer")
        if wrong := [name for name in names if getattr(self, name) != getattr(Options, name)]:
            raise StepError(
                f"Step was given {', '.join(wrong)} and no optimizer. Give it an optimizer to train with; a step that "
                "evaluates and predicts only needs none of these."
            )

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
        if what == "class_weight" and self.of_values:
            raise StepError(
                "class_weight weighs a loss by its targets, and Step.from_loss has a function of whole batches. "
                "Multiply the values in loss_fn by the weights of their classes: tf.gather(class_weights, y)."
            )
