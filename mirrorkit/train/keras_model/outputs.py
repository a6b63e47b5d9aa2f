"""Which target, weight, loss and metrics belong to which output of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf

from mirrorkit._types import KerasModel, Nest, PerOutput
from mirrorkit.errors import StepError

INPUT_NAME = "mirrorkit_input_"  # of the operation that compares an input's shape with the model's, and its number


class UnpackedBatch(NamedTuple):
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


def unpack_batch(batch: Nest) -> UnpackedBatch:
    """Take `x`, `(x,)`, `(x, y)` or `(x, y, sample_weight)` apart."""
    if not isinstance(batch, (tuple, list)):
        return UnpackedBatch(batch)
    if len(batch) not in (1, 2, 3):
        raise StepError(
            f"A batch must be x, (x, y) or (x, y, sample_weight); found a tuple of {len(batch)} parts. "
            "Put several inputs or targets into a dict."
        )
    return UnpackedBatch(*batch)


def with_known_shapes(model: KerasModel, x: Nest) -> Nest:
    """Tell TensorFlow the shapes of a model's inputs where the data leaves them open; another one is then an error."""
    inputs, given = getattr(model, "inputs", None) or [], tf.nest.flatten(x)
    if len(inputs) != len(given):
        return x

    def known(number: int, tensor: tf.Tensor) -> tf.Tensor:
        shape = tf.TensorShape([None, *inputs[number].shape[1:]])
        is_open = tf.is_tensor(tensor) and tensor.shape.rank == shape.rank and None in tensor.shape[1:]
        if not is_open:
            return tensor
        if all(wanted is None or has is not None for wanted, has in zip(shape[1:], tensor.shape[1:], strict=True)):
            return tensor
        return tf.ensure_shape(tensor, shape, name=f"{INPUT_NAME}{number}")

    return tf.nest.pack_sequence_as(x, [known(number, tensor) for number, tensor in enumerate(given)])


def count_examples(batch: Nest) -> tf.Tensor:
    """Return the number of examples in the batch (int32 scalar; a constant where it is known beforehand)."""
    first = tf.nest.flatten(batch)[0]
    return tf.shape(first)[0] if first.shape[0] is None else tf.constant(first.shape[0])


def output_names(model: KerasModel, y_pred: Nest) -> Nest:
    """Name the outputs: a list in the order of `tf.nest.flatten(y_pred)`; where they are nested, a nest like theirs.

    Keras's names: a single output has none (None), a nested one is named by the path to it, as in "heads/size".
    """
    flat = tf.nest.flatten(y_pred)
    if len(flat) == 1:
        return [None]
    named = getattr(model, "output_names", None)
    known = list(named) if named and len(named) == len(flat) else []
    paths = _paths(y_pred)
    if all(len(path) == 1 for path in paths):
        of_list = known or [f"output_{i}" for i in range(len(flat))]
        return sorted(y_pred) if isinstance(y_pred, Mapping) else of_list
    names = []
    for i, path in enumerate(paths):  # Keras names an element of a list or tuple by its layer
        place = known[i] if known else f"output_{path[0]}" if len(path) == 1 else str(path[-1])
        names.append("/".join([*map(str, path[:-1]), place if isinstance(path[-1], int) else str(path[-1])]))
    return tf.nest.pack_sequence_as(y_pred, names)


def match(names: Nest, y: Nest, y_pred: Nest, weight: Nest) -> list[Output]:
    """Put targets and weights beside the outputs that they belong to."""
    flat = tf.nest.flatten(names)
    y = per_output(names, y, "targets")
    for_all = weight is None or tf.is_tensor(weight) or isinstance(weight, tf.TypeSpec)
    weight = [weight] * len(flat) if for_all else per_output(names, weight, "weights")
    return [Output(*parts) for parts in zip(flat, y, tf.nest.flatten(y_pred), weight, strict=True)]


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


def in_order(names: Nest, given: PerOutput, what: str) -> PerOutput:
    """Bring what was given in the nest of the outputs into a list in their order; leave anything else as it is.

    `names` are those of `output_names`.
    """
    flat = tf.nest.flatten(names)
    nested = isinstance(names, Mapping) or any(map(tf.nest.is_nested, names))
    if not nested or not isinstance(given, (Mapping, list, tuple)) or not given:
        return given
    if isinstance(given, Mapping) and set(given) <= set(flat):
        return given
    try:
        return list(_along(names, given))
    except LookupError as error:
        if not isinstance(given, Mapping) and len(given) == len(flat):
            return given
        raise StepError(
            f"The {what} do not fit the model's outputs {flat}: {error}. Give them in the structure that the model "
            "returns, or as a dict with these names."
        ) from error


def _along(names: Nest, given: PerOutput) -> Iterator[PerOutput]:
    """Yield the part of each output in a nest like that of the names; None for those that it leaves out."""
    if given is None or not tf.nest.is_nested(names):
        yield from [given] * len(tf.nest.flatten(names))
    elif isinstance(names, Mapping) and isinstance(given, Mapping):
        if unknown := sorted(set(given) - set(names)):
            raise LookupError(f"{unknown} beside {sorted(names)}")
        for key in sorted(names):
            yield from _along(names[key], given.get(key))
    elif isinstance(names, (list, tuple)) and isinstance(given, (list, tuple)) and len(names) == len(given):
        for name, part in zip(names, given, strict=True):
            yield from _along(name, part)
    else:
        raise LookupError(f"one {type(given).__name__} for {tf.nest.flatten(names)}")


def _paths(nest: Nest) -> list[tuple[str | int, ...]]:
    """Return the keys and places that lead to each leaf, in the order of `tf.nest.flatten`."""
    if not tf.nest.is_nested(nest):
        return [()]
    parts = [(key, nest[key]) for key in sorted(nest)] if isinstance(nest, Mapping) else list(enumerate(nest))
    return [(key, *path) for key, part in parts for path in _paths(part)]


def per_output(names: Nest, given: PerOutput, what: str) -> list[PerOutput]:
    """Sort by output what was given: one thing, a list in order, a dict by name, a nest like theirs, or None."""
    given = in_order(names, given, what)
    names = tf.nest.flatten(names)
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
