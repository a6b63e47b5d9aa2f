"""Which target, weight, loss and metrics belong to which output of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from mirrorkit._types import KerasModel, Nest, PerOutput
from mirrorkit.errors import StepError


class Batch(NamedTuple):
    """A batch taken apart; `y` and `weight` may be absent."""

    x: Nest
    y: Nest = None
    weight: Nest = None

    @property
    def present(self) -> tuple[Nest, ...]:
        """The parts that are there."""
        return tuple(part for part in self if part is not None)


class Output(NamedTuple):
    """One output of the model beside its targets; `weight` is None or holds one weight for each example."""

    name: str | None
    y: tf.Tensor
    y_pred: tf.Tensor
    weight: tf.Tensor | None


def unpack_batch(batch: Nest) -> Batch:
    """Take `x`, `(x,)`, `(x, y)` or `(x, y, sample_weight)` apart."""
    if not isinstance(batch, (tuple, list)):
        return Batch(batch)
    if len(batch) not in (1, 2, 3):
        raise StepError(
            f"A batch must be x, (x, y) or (x, y, sample_weight); found a tuple of {len(batch)} parts. "
            "Put several inputs or targets into a dict."
        )
    return Batch(*batch)


def count_examples(batch: Nest) -> tf.Tensor:
    """Return the number of examples in the batch (int32 scalar; a constant where it is known beforehand)."""
    first = tf.nest.flatten(batch)[0]
    return tf.shape(first)[0] if first.shape[0] is None else tf.constant(first.shape[0])


def output_names(model: KerasModel, y_pred: Nest) -> list[str | None]:
    """Name the outputs in the order of `tf.nest.flatten(y_pred)`; a single output has no name (None), as in Keras."""
    flat = tf.nest.flatten(y_pred)
    if len(flat) == 1:
        return [None]
    if isinstance(y_pred, Mapping):
        return sorted(y_pred)
    names = getattr(model, "output_names", None)
    return list(names) if names and len(names) == len(flat) else [f"output_{i}" for i in range(len(flat))]


def match(names: Sequence[str | None], y: Nest, y_pred: Nest, weight: Nest) -> list[Output]:
    """Put targets and weights beside the outputs that they belong to."""
    y = per_output(names, y, "targets")
    for_all = weight is None or tf.is_tensor(weight) or isinstance(weight, tf.TypeSpec)
    weight = [weight] * len(names) if for_all else per_output(names, weight, "weights")
    return [Output(*parts) for parts in zip(names, y, tf.nest.flatten(y_pred), weight, strict=True)]


def own_value(y: None, y_pred: tf.Tensor) -> tf.Tensor:
    """The loss, or what a mean is taken of, where an output is itself the value of each example (`Step.from_loss`)."""
    return y_pred


def kind_of_target(output: Output) -> str:
    """Tell "binary", "sparse_categorical" or "categorical" by the shapes, as Keras does for "accuracy" and "ce"."""
    y, y_pred = output.y.shape, output.y_pred.shape
    if y_pred[-1] == 1:
        return "binary"
    if len(y) < len(y_pred) or (y[-1] == 1 and y_pred[-1] > 1):
        return "sparse_categorical"
    return "categorical"


def per_output(names: Sequence[str | None], given: PerOutput, what: str) -> list[PerOutput]:
    """Sort what was given for the outputs - one thing, a list in order, a dict by name, or None - by output."""
    if given is None:
        return [None] * len(names)
    if isinstance(given, Mapping) and names != [None]:
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise StepError(f"The {what} name {unknown}, but the model's outputs are {list(names)}. Use those names.")
        return [given.get(name) for name in names]
    if isinstance(given, Mapping):
        given = list(given.values())
    parts = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(parts) != len(names):
        raise StepError(
            f"The model has {len(names)} outputs {list(names)}, but {len(parts)} {what} were given. "
            "Give a dict from output name to its part."
        )
    return parts
