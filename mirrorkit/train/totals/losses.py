"""The losses that a model's step calls, and whether they can take the shapes of the data: known before it.

TensorFlow stretches shapes that do not fit over each other. Targets [N] and outputs [N, 10] give an error deep in a
graph for most N, and train without one where N is 10. So a loss is traced for a number of rows that no other dimension
has. A trace that fails proves nothing by itself, as a user's loss may raise for many reasons: the loss is refused where
it takes other targets for the same outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Loss, PerOutput
from mirrorkit.train.ambient import ambient, replaces
from mirrorkit.variables import unchanged


class LossCall(NamedTuple):
    """A call of a `keras.losses.Loss`; the tensors are those of a trace."""

    loss: Loss
    y: Any
    y_pred: Any
    weight: Any = None


@replaces("Loss.__call__", within="losses")
def _noted(original: Any, loss: Loss, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    """Note which losses are called, in order; one that a function stands for is Keras's wrapper."""
    ambient.losses.append(LossCall(loss, y_true, y_pred, sample_weight))
    with ambient.set(losses=None):  # not those that it calls
        return original(loss, y_true, y_pred, sample_weight=sample_weight)


def log_names(model: KerasModel, calls: Sequence[LossCall]) -> list[str]:
    """Return the log name of each loss that the model's `compile` calls: "loss" where there is one."""
    trackers = [one.name for one in model.metrics if type(one) is keras.metrics.Mean and one.name.endswith("_loss")]
    return trackers[: len(calls)] if len(trackers) >= len(calls) else ["loss"] * len(calls)


def loss_name(loss: Loss) -> str:
    """Return the name of the function that a loss stands for, or of its class."""
    return str(getattr(getattr(loss, "fn", loss), "__name__", type(loss).__name__))


def setting_of(loss: PerOutput, name: str) -> Any:
    """Return what a loss was created with, such as `from_logits`; None where it has no such setting."""
    sparse = keras.losses.SparseCategoricalCrossentropy
    settings = sparse.get_config(loss) if isinstance(loss, sparse) else {}  # from Keras 3.16 on they are no attributes
    return getattr(loss, name, settings.get(name))


def mask_of(tensor: tf.Tensor) -> Any:
    """Return the mask that Keras has put on a tensor, or None."""
    return private.get("masking.get_keras_mask")(tensor)


Shape: TypeAlias = "list[int | None]"

_ROWS = (132, 156, 204, 228, 276, 348)  # divisible by 12, so that a loss over pairs, say, is traced too
_SIZE = 7  # of other dimensions that the data does not tell


def loss_faults(calls: Sequence[LossCall], names: Sequence[str]) -> dict[str, str]:
    """Return by its log name what is wrong with the shapes that each loss is called with."""
    found = {}
    with unchanged([]):  # a loss may draw from Python's or NumPy's generator
        for name, call in zip(names, calls, strict=True):
            if all(tf.is_tensor(one) for one in call[1:3]) and (fault := _fault(call)):
                found[name] = f"The {name} ({loss_name(call.loss)}) {fault}"
    return found


def _fault(call: LossCall) -> str | None:
    """Say what is wrong, of a loss that is tried on many rows, with targets and weights of other shapes too."""
    loss, y, y_pred = call.loss, list(call.y.shape), list(call.y_pred.shape)
    weight: Shape = list(call.weight.shape) if tf.is_tensor(call.weight) else []
    rows, other_rows, *_ = [rows for rows in _ROWS if rows not in {*y[1:], *y_pred[1:], *weight[1:]}]

    def values(y: Shape, *, of_y: int = rows, size: int | None = None) -> tf.TensorShape | None:
        """Return the shape of the values for targets, before Keras's own mean; None where the loss raises.

        `of_y` is how many targets there are, other than outputs, and `size` that of unknown dimensions.
        """
        specs = [_spec(call.y, y, of_y, size), _spec(call.y_pred, y_pred, rows, size)]
        return _traced(lambda *both: loss.call(*(tf.cast(one, loss.dtype) for one in both)), *specs)

    def takes(weight: Shape) -> bool:
        """Return whether its values can be summed with sample weights of this shape."""
        parts = zip(call[1:], (y, y_pred, weight), strict=True)
        return _traced(loss, *[_spec(of, shape, rows) for of, shape in parts]) is not None

    found = values(y)
    if found is None:
        # Other shapes that targets may have: that of the outputs, or with a class index in place of the last axis.
        for targets in (y_pred, y_pred[:-1], [*y_pred[:-1], 1]):
            taken = values(targets) if targets and targets[1:] != y[1:] else None
            if taken is not None and taken.rank and taken[0] == rows:
                return (
                    f"does not take targets {shown(y)} for outputs {shown(y_pred)}. It takes targets {shown(targets)}. "
                    "Sparse losses take class indices (tf.argmax(y, axis=-1)), others the outputs' shape "
                    "(tf.one_hot(y, classes)). Choose a loss for these targets, or make others."
                )
        return None
    if found.rank and found[0] is None:
        found = values(y, size=_SIZE) or found
    if found.rank and found[0] not in (None, rows):
        return (
            f"returned shape {list(found)} for {rows} rows of targets {shown(y)} and outputs {shown(y_pred)}; a step "
            "takes the mean over the examples. Return one value for each, shape [rows], or several, [rows, ...]: with "
            "Keras's Dice and Tversky by axis=, all but the first."
        )
    # TensorFlow stretches [N] and [N, 1] to [N, N], unless the targets have the shape that meets the outputs by rows.
    fitting = None
    if len(y_pred) == len(y) + 1 and y_pred[-1] == 1:
        fitting = [*y, 1]
    elif len(y) == len(y_pred) + 1 and y[-1] == 1:
        fitting = y[:-1]
    # Only a loss that does not pair them takes more targets than outputs.
    if fitting and values(y, of_y=other_rows) is not None and values(fitting, of_y=other_rows) is None:
        return (
            f"compares every target with every output: TensorFlow stretches targets {shown(y)} and outputs "
            f"{shown(y_pred)} over each other. Let the data yield targets {shown(fitting)}: y[:, tf.newaxis], or "
            "tf.squeeze(y, -1). Of whole numbers [N, 1] mk.data.arrays makes [N]; give it floats."
        )
    if weight and not takes(weight) and takes(weight[:1]):
        return (
            f"does not take sample weights {shown(weight)} for targets {shown(y)} and outputs {shown(y_pred)}. Let the "
            "data yield one weight for each example, [N]."
        )
    return None


def _spec(of: tf.Tensor, shape: Shape, rows: int, size: int | None = None) -> tf.TensorSpec:
    return tf.TensorSpec([rows, *(size if length is None else length for length in shape[1:])], of.dtype)


def _traced(function: Callable[..., Any], *specs: tf.TensorSpec) -> tf.TensorShape | None:
    try:
        traced = tf.function(lambda *tensors: function(*tensors), autograph=False).get_concrete_function(*specs)
        return tf.TensorShape(traced.structured_outputs.shape)
    except Exception:  # whatever a user's loss may raise
        return None


def shown(shape: Shape) -> str:
    """Return a shape as a message has it: [N, 10]."""
    return f"[{', '.join(['N', *('?' if length is None else str(length) for length in shape[1:])])}]"


def warn_on_logits_mismatch(model: KerasModel, loss: PerOutput) -> None:
    """Warn when the last layer gives logits and the loss expects probabilities, or vice versa.

    Both train without an error and to a poor result.
    """
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    if "crossentropy" not in name.replace("_", "").lower() or not getattr(model, "layers", None):
        return
    layer = model.layers[-1]
    activation = getattr(getattr(layer, "activation", None), "__name__", None)
    from_logits = bool(setting_of(loss, "from_logits"))
    is_plain = isinstance(layer, (keras.layers.Dense, keras.layers.Conv2D)) and activation in (None, "linear")
    if is_plain and not from_logits:
        found, cure = "the model's last layer has no activation, so it returns logits", "from_logits=True"
    elif activation in ("softmax", "sigmoid") and from_logits:
        found, cure = f"the model's last layer applies {activation}, so it returns probabilities", "from_logits=False"
    else:
        return
    cls = "".join(part.capitalize() for part in name.split("_")) if isinstance(loss, str) else name
    warnings.warn(
        f"The loss {name!r} does not fit the model: {found}. Use keras.losses.{cls}({cure}).", UserWarning, stacklevel=3
    )
