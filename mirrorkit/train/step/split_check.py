"""Whether a batch gives the same as its parts: seen on the first batch, before the first update.

A replica sees its own rows only. A loss, a metric or a layer that looks at all rows of its batch (a ratio of counts, a
loss over pairs, a sum given to `add_loss`) means something else there, and trains without an error to another result.
So functions are compared on the model's outputs for a few rows: all of them at once, and in two parts of unequal size,
since equal ones hide a mean that is taken for a sum. They see the real targets, and others: with all predictions on one
side of a threshold many faults do not show.

Only functions of fixed outputs are compared, and the rows of the outputs without training. So what is known to depend
on the cut (BatchNormalization, Dropout) raises no alarm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mirrorkit.errors import StepError
from mirrorkit.train.step.calling import call_model
from mirrorkit.train.step.losses import Losses, loss_sum, mask_of
from mirrorkit.train.step.metrics import Metrics
from mirrorkit.train.step.outputs import Batch, Output, match, per_output
from mirrorkit.train.step.state_check import state_faults

_SEEN = 3  # rows that the model itself sees: of a large model a row costs as much as all the rest
_ROWS = 16  # rows for everything else, with the outputs of those three in turns
_KEPT = [np.array([1]), np.array([0, 2])]  # of the rows seen: those that stay where they are, beside copies of them
_PARTS = [np.arange(5), np.arange(5, _ROWS)]
_OTHER_ORDER = np.random.default_rng(1).permutation(_ROWS)
_LABEL = 64  # numbers in a target, at most, that may be a class; more are a picture, and no two are alike
_EXACT = 1e-5  # of a sum's size: rounding, where the rows in another order differ by less than a tenth of it
_LARGEST = 1e-3  # of a sum's size: no rounding, however much the rows in another order differ


class Checked(NamedTuple):
    """What is compared, and for whom."""

    model: Any
    losses: Losses
    metrics: Metrics
    names: Sequence[str | None]  # of the model's outputs
    shards: int  # into which an update's examples are cut
    replicas: int
    unchecked: Sequence[str]  # what the user vouches for


def check_split(checked: Checked, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], batch: Batch) -> None:
    """Refuse a step that means something else on several shards than on the whole batch.

    Args:
        checked: the step.
        weights: values of the trainable variables.
        state: values of the non-trainable variables.
        batch: a global batch.

    Raises:
        StepError: it names each loss, metric, output and state, and says what to do.
    """
    sizes = [tensor.shape[0] for tensor in getattr(checked.model, "inputs", None) or []]
    if any(sizes) or not tf.nest.flatten(batch.x)[0].shape[0]:
        return  # the model takes batches of one size only; or there are no rows
    targets = [None if y is None else _kinds(y) for y in per_output(checked.names, batch.y, "targets")]
    batch = _some_rows(batch)

    def call(x: Any, training: bool = False) -> tuple[Any, list[tf.Tensor], list[tf.Tensor]]:
        return call_model(checked.model, weights, state, x, training=training)

    seen = _take(batch.x, np.linspace(0, _ROWS - 1, _SEEN).astype(int))
    y_pred, _, added = call(seen)
    others = [call(_take(seen, np.where(np.isin(np.arange(_SEEN), kept), np.arange(_SEEN), kept[0]))) for kept in _KEPT]
    found = list(_of_rows(checked.names, y_pred, [beside for beside, *_ in others]))
    if found and any(_of_rows(checked.names, y_pred, [call(seen)[0]] * 2)):
        found = []  # the same rows give something else again: random numbers without a seed, which a trace refuses
    # What does not depend on the batch, a regulariser of weights, is the same in every part.
    if any(np.any(one != other) for *_, beside in others for one, other in zip(added, beside, strict=True)):
        found += _of_added(call, batch.x)
    outputs = match(checked.names, batch.y, y_pred, batch.weight)
    variants = [list(_variants(output, ys)) for output, ys in zip(outputs, targets, strict=True)]
    found += _of_losses(checked.losses, variants)
    if checked.replicas > 1:  # the parts of an accumulated update are batches to a metric, as in Keras
        found += _of_metrics(checked.metrics, variants)
    texts = state_faults(checked.model, state, lambda rows: call(_take(batch.x, rows), training=True)[1], _ROWS)
    found += [_Fault("state", text) for text in texts]
    found = [fault for fault in found if fault.name not in checked.unchecked]
    if found:
        names = tuple(dict.fromkeys(fault.name for fault in found))
        raise StepError(
            f"{checked.shards} shards of a batch would not give what the whole batch gives. "
            + " ".join(fault.text for fault in found)
            + f" (Seen on {_ROWS} rows of the first batch and on parts of them. If you know that it is right, write "
            f"Step(..., unchecked={names!r}).)"
        )


class _Fault(NamedTuple):
    name: str  # for `unchecked`
    text: str


def _some_rows(batch: Batch) -> Batch:
    """Take rows from all over the batch; of a small batch, some of them twice."""
    size = tf.nest.flatten(batch.x)[0].shape[0]
    rows = np.linspace(0, size - 1, _ROWS).astype(int) if size >= _ROWS else np.arange(_ROWS) % size
    return Batch(*[None if part is None else _take(part, rows) for part in batch])


def _take(nest: Any, rows: np.ndarray) -> Any:
    return tf.nest.map_structure(lambda tensor: None if tensor is None else tf.gather(tensor, rows), nest)


def _of_rows(names: Sequence[str | None], y_pred: Any, beside: Sequence[Any]) -> Iterator[_Fault]:
    """Compare rows of the outputs with the same rows beside others."""
    for name, one, *others in zip(names, *map(tf.nest.flatten, (y_pred, *beside)), strict=True):
        if one.shape[:1] != [_SEEN] or not one.dtype.is_floating:
            continue
        rounding = _LARGEST if one.dtype.size >= 4 else 0.05
        whole, *again = _numbers([one, *others])
        pairs = [(whole[part], other[part]) for part, other in zip(_KEPT, again, strict=True)]
        if any(_differ(kept, other, rounding * np.max(np.abs(kept), initial=0.0)) for kept, other in pairs):
            output = "The model's output" if name is None else f"The output {name!r}"
            yield _Fault(
                "rows",
                f"{output} for an example depends on the other examples of its batch (training=False): a layer mixes "
                "the rows. Let it work along other axes than the first.",
            )


def _of_added(call: Callable[..., Any], x: Any) -> Iterator[_Fault]:
    """Compare what layers add to the loss, which must be a mean over the rows."""
    whole = call(x)[2]
    parts = [call(_take(x, rows))[2] for rows in _PARTS]
    control = call(_take(x, _OTHER_ORDER))[2]
    for i, value in enumerate(whole):
        sums = [rows.size * _number(part[i]) for rows, part in zip(_PARTS, parts, strict=True)]
        total = _ROWS * _number(value)
        # Noise that a layer draws in evaluation too is other noise for other rows: the control has it as well.
        rounding = max(3 * abs(_ROWS * _number(control[i]) - total), _EXACT * abs(total))
        if _differ(np.array(total), np.array(sum(sums)), rounding):
            yield _Fault(
                "add_loss",
                f"A layer adds {_number(value):.6g} to the loss for {_ROWS} rows (add_loss), and "
                f"{' and '.join(f'{_number(part[i]):.6g}' for part in parts)} for parts of "
                f"{' and '.join(str(rows.size) for rows in _PARTS)}: not a mean over the rows. Divide a sum by the "
                "number of rows (keras.ops.mean); what compares rows with each other cannot be added up.",
            )


def _of_losses(losses: Losses, variants: Sequence[Sequence[Output]]) -> Iterator[_Fault]:
    names = losses.own_names or ["loss"]
    for name, (index, loss) in zip(names, losses.members, strict=True):
        if difference := _in_parts(functools.partial(_loss_numbers, loss), variants[index]):
            yield _Fault(
                name,
                f"The {name} ({getattr(loss, '__name__', type(loss).__name__)}) of a batch is not that of its parts: "
                f"{difference}. Each value must come from its own example alone.",
            )


def _loss_numbers(loss: Any, output: Output) -> list[tf.Tensor]:
    return [number for number in loss_sum(loss, output) if number is not None]


def _of_metrics(metrics: Metrics, variants: Sequence[Sequence[Output]]) -> Iterator[_Fault]:
    for number, (name, index) in enumerate(zip(metrics.names, metrics.outputs, strict=True)):
        if difference := _in_parts(functools.partial(metrics.state, number), variants[index]):
            yield _Fault(
                name,
                f"The state of the metric {name!r} for a batch is not that of its parts: {difference}. Let a metric "
                "function return one value per example (shape [batch]); for a ratio of counts write a "
                "keras.metrics.Metric that adds up the counts and divides in result(), or take one of Keras's.",
            )


def _in_parts(sums: Callable[[Output], list[tf.Tensor]], variants: Sequence[Output]) -> str | None:
    """Return how the sums over all rows differ from those over the parts, or None."""
    for number, variant in enumerate(variants):
        try:
            whole = _numbers(sums(variant))
        except (ValueError, tf.errors.InvalidArgumentError):
            if number == 0:
                raise
            continue  # the function asks more of targets and predictions than that they are of these kinds
        parts = [_numbers(sums(_part_of(variant, rows))) for rows in _PARTS]
        control = _numbers(sums(_part_of(variant, _OTHER_ORDER)))
        for value, first, second, other in zip(whole, *parts, control, strict=True):
            size = np.max(np.abs([value, first, second]), initial=0.0)
            rounding = float(np.clip(10 * np.max(np.abs(other - value), initial=0.0), _EXACT * size, _LARGEST * size))
            if _differ(value, first + second, rounding):
                place = np.unravel_index(np.argmax(np.abs(value - first - second)), value.shape)
                numbers = f"{value[place]:.6g} in place of {first[place]:.6g} + {second[place]:.6g}"
                return f"{numbers} for {' + '.join(str(rows.size) for rows in _PARTS)} rows"
    return None


def _variants(output: Output, targets: np.ndarray | None) -> Iterator[Output]:
    """Yield the output as it is, with other targets of the batch, and with other predictions, weights and masks."""
    if output.y_pred.shape[:1] != [_SEEN]:  # rows that are no examples
        return
    output = output._replace(y_pred=_rows_of(output.y_pred, np.arange(_ROWS) % _SEEN))
    yield output
    rng = np.random.default_rng(0)
    y = None if targets is None else tf.constant(rng.choice(targets, _ROWS), output.y.dtype)
    yield output._replace(y=y)
    weight, mask = output.weight, mask_of(output.y_pred)
    if weight is not None:
        weight = tf.cast(weight, tf.float32) * rng.uniform(0.5, 1.5, weight.shape).astype("float32")
    y_pred = np.asarray(tf.cast(output.y_pred, tf.float32))
    for other in (_other_predictions(y_pred, rng, share=0.5), _other_predictions(y_pred, rng, share=1.0)):
        found = tf.cast(other, output.y_pred.dtype)
        if mask is not None:
            found._keras_mask = tf.constant(rng.uniform(size=mask.shape) < 0.6)
        yield output._replace(y=y, y_pred=found, weight=weight)


def _kinds(y: tf.Tensor) -> np.ndarray:
    """Return each target of the batch once, so that rare ones are drawn as often as others."""
    targets = np.asarray(y)
    return targets if targets[0].size > _LABEL else np.unique(targets, axis=0)


def _other_predictions(y_pred: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Give other classes to a share of the rows; with a single column let them change sides (1 - p, or -z)."""
    turned = rng.uniform(size=[len(y_pred), *[1] * (y_pred.ndim - 1)]) < share
    if y_pred.ndim > 1 and y_pred.shape[-1] > 1:
        turns = rng.integers(1, y_pred.shape[-1], len(y_pred))
        other = np.stack([np.roll(row, turn, axis=-1) for row, turn in zip(y_pred, turns, strict=True)])
    else:
        is_share = y_pred.size and np.min(y_pred) >= 0 and np.max(y_pred) <= 1
        other = 1 - y_pred if is_share else -y_pred
    return np.where(turned, other, y_pred)


def _rows_of(tensor: Any, rows: np.ndarray) -> Any:
    """Take rows of a tensor and of its mask."""
    if tensor is None:
        return None
    taken = tf.gather(tensor, rows)
    if mask_of(tensor) is not None:
        taken._keras_mask = tf.gather(mask_of(tensor), rows)
    return taken


def _part_of(output: Output, rows: np.ndarray) -> Output:
    y, y_pred, weight = (_rows_of(tensor, rows) for tensor in (output.y, output.y_pred, output.weight))
    return output._replace(y=y, y_pred=y_pred, weight=weight)


def _numbers(tensors: Sequence[tf.Tensor]) -> list[np.ndarray]:
    return [np.asarray(tf.cast(tensor, tf.float64)) for tensor in tensors]


def _number(tensor: tf.Tensor) -> float:
    return float(tf.reduce_sum(tf.cast(tensor, tf.float64)))


def _differ(one: np.ndarray, other: np.ndarray, rounding: float) -> bool:
    """Whether two arrays differ by more than rounding; what is not a number on both sides says nothing."""
    return bool(np.any(np.abs(one - other) > rounding)) if one.shape == other.shape else True
