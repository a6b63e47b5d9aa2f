"""Check that losses and metrics can take the shapes of targets, outputs and sample weights, before the first step.

TensorFlow stretches shapes that do not fit over each other. Targets [N] and outputs [N, 10] give an error deep in a
graph for most N, and train without one where N is 10. So a loss is traced for a number of rows that no other dimension
has. A trace that fails proves nothing by itself, as a user's loss may raise for many reasons: the loss is refused where
it takes other targets for the same outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import tensorflow as tf

from mirrorkit.train.totals.losses import LossCall, loss_name
from mirrorkit.variables import unchanged

Shape: TypeAlias = "list[int | None]"

_ROWS = (132, 156, 204, 228, 276, 348)  # divisible by 12, so that a loss over pairs, say, is traced too
_SIZE = 7  # of other dimensions that the data does not tell


def loss_faults(calls: Sequence[LossCall], names: Sequence[str]) -> dict[str, str]:
    """Return by its log name what is wrong with the shapes that each loss is called with."""
    found = {}
    with unchanged([]):  # a loss may draw from Python's or NumPy's generator
        for name, call in zip(names, calls, strict=True):
            if all(tf.is_tensor(one) for one in call[1:3]) and (fault := _fault(name, call)):
                found[name] = fault
    return found


def _fault(name: str, call: LossCall) -> str | None:
    loss, tried = call.loss, _Tried(call)
    y, y_pred, rows = tried.y, tried.y_pred, tried.rows
    title = f"The {name} ({loss_name(loss)})"
    values = tried.values(y)
    if values is None:
        for targets in shapes_of_targets(y, y_pred):
            taken = tried.values(targets)
            if taken is not None and taken.rank and taken[0] == rows:
                return f"{title} does not take targets {shown(y)} for outputs {shown(y_pred)}. " + cure(
                    targets, y, y_pred
                )
        return None
    if values.rank and values[0] is None:
        values = tried.values(y, size=_SIZE) or values
    if values.rank and values[0] not in (None, rows):
        return (
            f"{title} returned shape {list(values)} for {rows} rows of targets {shown(y)} and outputs {shown(y_pred)}; "
            "a step takes the mean over the examples. Return one value for each, shape [rows], or several, "
            "[rows, ...]."
        )
    fitting = not_stretched(y, y_pred)
    if fitting is not None and tried.takes_other_rows(y) and not tried.takes_other_rows(fitting):
        return f"{title} {stretched(y, y_pred)}"
    if tried.weight is not None and not tried.takes(tried.weight) and tried.takes(tried.weight[:1]):
        return (
            f"The sample weights {shown(tried.weight)} do not fit the {name} ({loss_name(loss)}) of targets {shown(y)} "
            f"and outputs {shown(y_pred)}. Let the data yield one weight for each example, [N]."
        )
    return None


class _Tried:
    """A loss on specs of many rows, of targets and weights of other shapes too."""

    def __init__(self, call: LossCall) -> None:
        self._call, self._loss = call, call.loss
        self.y, self.y_pred = list(call.y.shape), list(call.y_pred.shape)
        self.weight: Shape | None = list(call.weight.shape) if tf.is_tensor(call.weight) else None
        taken = {*self.y[1:], *self.y_pred[1:], *(self.weight or [])[1:]}
        self.rows, self._other_rows, *_ = [rows for rows in _ROWS if rows not in taken]

    def values(self, y: Shape, *, rows: int | None = None, size: int | None = None) -> tf.TensorShape | None:
        """Return the shape of the values for targets `y`; None where the loss raises.

        `rows` is how many targets there are, other than outputs, and `size` that of unknown dimensions.
        """
        y, y_pred = ([*shape[:1], *(size if n is None else n for n in shape[1:])] for shape in (y, self.y_pred))
        specs = [_spec(self._call.y, y, rows or self.rows), _spec(self._call.y_pred, y_pred, self.rows)]
        return _traced(self._values, *specs)

    def _values(self, y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Call the loss as Keras does before its own mean."""
        return self._loss.call(tf.cast(y, self._loss.dtype), tf.cast(y_pred, self._loss.dtype))

    def takes_other_rows(self, y: Shape) -> bool:
        """Return whether it takes more targets than outputs, as only a loss does that does not pair them."""
        return self.values(y, rows=self._other_rows) is not None

    def takes(self, weight: Shape) -> bool:
        """Return whether its values can be summed with sample weights of this shape."""
        parts = zip(self._call[1:], (self.y, self.y_pred, weight), strict=True)
        specs = [_spec(of, shape, self.rows) for of, shape in parts]
        return _traced(lambda y, y_pred, weight: self._loss(y, y_pred, weight), *specs) is not None


def _spec(of: tf.TensorSpec, shape: Shape, rows: int) -> tf.TensorSpec:
    return tf.TensorSpec([rows, *shape[1:]], of.dtype)


def _traced(function: Callable[..., tf.Tensor], *specs: tf.TensorSpec) -> tf.TensorShape | None:
    try:
        outputs = tf.function(function, autograph=False).get_concrete_function(*specs).structured_outputs
        return tf.TensorShape(outputs.shape)
    except Exception:  # whatever a user's loss may raise
        return None


def shapes_of_targets(y: Shape, y_pred: Shape) -> Iterator[Shape]:
    """Yield other shapes that targets for such outputs may have: the same, and a class index in place of the last."""
    for shape in (y_pred, y_pred[:-1], [*y_pred[:-1], 1]):
        if shape and shape[1:] != y[1:]:
            yield shape


def not_stretched(y: Shape, y_pred: Shape) -> Shape | None:
    """Return the shape of targets that would meet the outputs row by row, where one of both has a last axis of 1 more.

    TensorFlow stretches [N] and [N, 1] to [N, N].
    """
    if len(y_pred) == len(y) + 1 and y_pred[-1] == 1:
        return [*y, 1]
    return y[:-1] if len(y) == len(y_pred) + 1 and y[-1] == 1 else None


def stretched(y: Shape, y_pred: Shape) -> str:
    """Say that every target meets every output, and what to do."""
    write = "[N] (tf.squeeze(y, -1))"
    if len(y) < len(y_pred):  # it takes whole numbers for class indices
        write = "[N, 1] (y[:, tf.newaxis]; of mk.data.arrays floats, since it makes whole numbers [N, 1] into [N])"
    return (
        f"compares every target with every output: TensorFlow stretches targets {shown(y)} and outputs "
        f"{shown(y_pred)} over each other. Let the data yield targets of the outputs' shape: {write}."
    )


def cure(targets: Shape, y: Shape, y_pred: Shape) -> str:
    """Say what `targets`, which are taken, mean, and how to get there from `y`."""
    if targets != y_pred:
        return (
            f"It takes class indices, {shown(targets)}. For one-hot targets choose 'categorical_crossentropy', or let "
            "the data yield tf.argmax(y, axis=-1)."
        )
    text = f"It takes targets of the outputs' shape, {shown(y_pred)}."
    if y[1:] == y_pred[1:-1]:
        return (
            f"{text} For class indices choose a sparse loss or metric ('sparse_categorical_crossentropy'), or one-hot "
            f"targets (tf.one_hot(y, {y_pred[-1]})); for one number per example let the model return {shown([*y, 1])}."
        )
    return f"{text} Let the data yield those, or the model return {shown(y)}."


def shown(shape: Shape) -> str:
    """Return a shape as a message has it: [N, 10]."""
    return f"[{', '.join(['N', *('?' if length is None else str(length) for length in shape[1:])])}]"
