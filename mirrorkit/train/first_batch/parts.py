"""Check that a batch gives the same as its parts, on the first batch, before the first update.

A replica sees its own rows only. A loss, a metric or a layer that looks at all rows of its batch (a ratio of counts, a
loss over pairs, a sum given to `add_loss`) means something else there, and trains without an error to another result.
So functions are compared on the model's outputs for a few rows: all of them at once, and in two parts of unequal size,
since equal ones hide a mean that is taken for a sum. They see the real targets, and others: with all predictions on one
side of a threshold many faults do not show.

Only functions of fixed outputs are compared, and the rows of the outputs: in training with BatchNormalization at rest,
and beside rows that draw the same. So what is known to depend on the split raises no alarm.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Loss, Nest
from mirrorkit.errors import StepError
from mirrorkit.train.first_batch.rounding import COARSE, LARGEST, SIXTEEN, differ, numbers
from mirrorkit.train.first_batch.rows import (
    Forward,
    caller,
    in_parts,
    known_mixers_at_rest,
    of_gathered_values,
    of_places,
    of_rows,
    of_rows_in_training,
    of_values,
    other_seeds,
)
from mirrorkit.train.first_batch.sampled_rows import (
    OTHER_ORDER,
    PARTS,
    ROWS,
    SEEN,
    kinds_of,
    part_of,
    some_rows,
    take,
    variants_of,
)
from mirrorkit.train.first_batch.state import state_faults
from mirrorkit.train.keras_model.calling import call_model
from mirrorkit.train.keras_model.layer_state import has_sixteen_bits, layers_of
from mirrorkit.train.keras_model.outputs import Output, UnpackedBatch, match, per_output
from mirrorkit.train.reduce.gathering import gathering
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.train.totals.losses import loss_sum
from mirrorkit.train.totals.totals import Totals
from mirrorkit.variables import unchanged

_log = logging.getLogger("mirrorkit")

# Differences, in parts of a number's size:
_EXACT = 1e-5  # rounding of sums, where the rows in another order differ by less than a tenth of it
_CALLS = 1e-4  # rounding of what models compute for batches of different sizes


T = TypeVar("T")


class About(NamedTuple):
    """The step that is checked."""

    model: KerasModel
    totals: Totals  # which loss and metrics belong to which output
    training: bool  # or only evaluation
    whole_batch: bool  # whether the values of an example may depend on what it gathers from others
    placed: Callable[[Callable[..., Nest]], Callable[..., Nest]] | None  # as OneDevice.on_first, of a placed model
    shards: int  # into how many an update's examples are cut
    replicas: int
    unchecked: Sequence[str]  # names that are not checked

    @property
    def sixteen_bits(self) -> bool:
        """Whether a layer computes in 16 bits."""
        return has_sixteen_bits(self.model)


def compare_parts(step: Supervised, batch: UnpackedBatch, *, training: bool) -> None:
    """Refuse a step that means something else on several shards than on the whole batch.

    Args:
        step: one that is prepared for the batch.
        batch: a global batch, taken apart.
        training: whether the training is checked, or only the evaluation.
    """
    replicas = step.strategy.num_replicas_in_sync
    about = About(
        model=step.trained,
        totals=step.totals,
        training=training,
        whole_batch=step.is_whole,
        placed=step.on_first,
        shards=replicas * step.accumulate,
        replicas=replicas,
        unchecked=step.options.unchecked,
    )
    values = step.values()

    def compare() -> None:
        with gathering(step.gather):
            _compare(about, values.weights, values.state, batch)

    with unchanged([]):  # a layer may draw from Python's or NumPy's generator
        outside_replica(compare)


def _compare(about: About, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], batch: UnpackedBatch) -> None:
    if not tf.nest.flatten(batch.x)[0].shape[0]:
        return
    targets = [None if y is None else kinds_of(y) for y in per_output(about.totals.names, batch.y, "targets")]
    batch = some_rows(batch)
    seen = take(batch.x, np.linspace(0, ROWS - 1, SEEN).astype(int))
    call = _caller(about, weights, state, batch.x)
    try:
        y_pred, _, added = call(seen)
    except StepError:
        raise
    except Exception as error:  # whatever a user's layer may raise
        _log.warning(
            "Whether a batch gives the same as its parts could not be checked: the model does not take %d rows "
            "outside of the training (%s: %s).",
            *(SEEN, type(error).__name__, error),
        )
        return
    outputs = match(about.totals.names, batch.y, y_pred, batch.weight)
    variants = [list(variants_of(output, ys)) for output, ys in zip(outputs, targets, strict=True)]
    rows: Callable[[], Iterable[str]] = functools.partial(
        of_rows, call, tf.nest.flatten(about.totals.names), [i for i, _ in about.totals.losses.members], seen, y_pred
    )
    others = other_seeds(about.model, state)
    if about.totals.values:
        rows = functools.partial(of_values, call, about.totals.values, others, seen, y_pred)
        if about.whole_batch:
            share = SIXTEEN if about.sixteen_bits else LARGEST
            rows = functools.partial(of_gathered_values, call, about.totals.values, others, seen, y_pred, share)
    named = list(about.totals.values) or tf.nest.flatten(about.totals.names)
    places = functools.partial(of_places, call, named, others, seen, training=about.training)

    def of_all_rows() -> Iterator[str]:
        found = [*rows(), *([] if about.whole_batch else places())]
        yield from found
        if about.training and not found and not about.totals.values:
            in_training = _caller(about, weights, state, batch.x, in_training=True)
            yield from of_rows_in_training(in_training, named, seen, is_random=bool(others))

    losses = zip(about.totals.losses.own_names or ["loss"], about.totals.losses.members, strict=True)
    checks: list[tuple[str, Callable[[], Iterable[str]]]] = [
        ("rows", of_all_rows),
        ("add_loss", lambda: _of_added(call, about, state, batch.x, added)),
        *((name, functools.partial(_of_loss, name, loss, variants[i])) for name, (i, loss) in losses),
    ]
    if about.replicas > 1:  # the parts of an accumulated update are batches to a metric, as in Keras
        for number, (name, i) in enumerate(zip(about.totals.metrics.names, about.totals.metrics.outputs, strict=True)):
            state_of = functools.partial(about.totals.metrics.state, number)
            checks.append((name, functools.partial(_of_metric, name, state_of, variants[i])))
    if about.training:
        rounding = SIXTEEN if about.sixteen_bits else _CALLS

        def after(rows: np.ndarray | None) -> Sequence[tf.Tensor]:
            if rows is None:
                return _on_all(functools.partial(call, batch.x, training=True))[1]
            return call(take(batch.x, rows), training=True)[1]

        checks.append(("state", lambda: state_faults(about.model, state, after, ROWS, rounding)))
    found = {name: list(_tried(name, check)) for name, check in checks if name not in about.unchecked}
    if any(found.values()):
        names = tuple(name for name, texts in found.items() if texts)
        raise StepError(
            f"{about.shards} shards of a batch would not give what the whole batch gives. "
            + " ".join(text for texts in found.values() for text in texts)
            + f" (Seen on {ROWS} rows of the first batch and on parts of them. If you know that it is right, write "
            f"Step{'.from_loss' * bool(about.totals.values)}(..., unchecked={names!r}).)"
        )


def _caller(
    about: About, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], x: Nest, *, in_training: bool = False
) -> Forward:
    """Return a function that calls the model on any number of rows; always `in_training`, without known mixers."""

    def compute(weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], x: Nest, *, training: bool) -> Nest:
        if not in_training:
            return call_model(about.model, weights, state, x, training=training)
        with known_mixers_at_rest(about.model):
            return call_model(about.model, weights, state, x, training=True)

    at_once = about.whole_batch  # what is gathered is another with each call, which a trace could not know
    return caller(about.model, compute, weights, state, x, placed=about.placed, at_once=at_once)


class _NotOnAll(Exception):
    """All rows together could not be computed; why is its cause."""


def _on_all(compute: Callable[[], T]) -> T:
    """Compute something for all rows together."""
    try:
        return compute()
    except StepError:
        raise
    except Exception as error:  # whatever a user's function may raise
        raise _NotOnAll from error


def _tried(name: str, check: Callable[[], Iterable[str]]) -> Iterator[str]:
    try:
        yield from check()
    except StepError:
        raise
    except _NotOnAll as failed:  # the training will say more, or works where this does not: within a tf.function
        cause = failed.__cause__
        _log.warning("The first batch could not be checked for %r: %s: %s", name, type(cause).__name__, cause)
    except Exception as error:
        raise StepError(
            f"Before the first step on several shards, {ROWS} rows of the first batch and parts of them are checked. "
            f"The parts failed for {name!r}: {type(error).__name__}: {error}. A replica may get any number of rows, so "
            f"all must work on any. If this is right, write Step(..., unchecked=({name!r},))."
        ) from error


def _of_added(
    call: Forward, about: About, state: Sequence[tf.Tensor], x: Nest, added: Sequence[tf.Tensor]
) -> Iterator[str]:
    """Compare what layers add to the loss, which must be a mean over the rows."""
    try:
        few = call(take(x, [0]), training=about.training)[2]
    except StepError:
        raise
    except Exception:  # some layers do not train on a single row
        few = call(take(x, PARTS[0]), training=about.training)[2]
    if len(few) == len(added) and all(_number(a) == _number(b) for a, b in zip(few, added, strict=True)):
        return  # regularisers of weights
    others = other_seeds(about.model, state)
    cut = bool(others) or any(isinstance(layer, keras.layers.BatchNormalization) for layer in layers_of(about.model))
    for training in (False, True) if len(few) != len(added) else (False,):
        whole = _on_all(functools.partial(call, x, training))[2]

        def added_for(rows: np.ndarray, training: bool = training) -> Nest:
            return call(take(x, rows), training)[2]

        parts = in_parts(added_for, PARTS)
        for i, value in enumerate(whole):
            values = [_number(part[i]) for part in parts]
            total, of_parts = ROWS * _number(value), float(np.dot([rows.size for rows in PARTS], values))
            size = max(abs(total), *(abs(rows.size * v) for rows, v in zip(PARTS, values, strict=True)))
            rounding = (SIXTEEN if about.sixteen_bits else _CALLS) * size
            if not differ(np.array(total), np.array(of_parts), rounding):
                continue
            # In training BatchNormalization and random layers are known to depend on the split; some always draw noise.
            drawn = [_number(call(x, training, other)[2][i]) for other in others]
            noise = max((abs(ROWS * number - total) for number in drawn), default=0.0)
            is_noisy = (training and cut) or noise > rounding
            if is_noisy and abs(total - of_parts) < max(COARSE * size, 2 * noise):
                continue
            yield (
                f"A layer adds {_number(value):.6g} to the loss (add_loss or activity_regularizer) for {ROWS} rows, "
                f"but the mean over parts of them is {of_parts / ROWS:.6g}: {values[0]:.6g} for {PARTS[0].size} rows, "
                f"{values[1]:.6g} for {PARTS[1].size}. Add a mean over the rows (keras.ops.mean) of what each row "
                "gives by itself."
            )


def _of_loss(name: str, loss: Loss, variants: Sequence[Output]) -> Iterator[str]:
    def sums(output: Output) -> list[tf.Tensor]:
        return [number for number in loss_sum(loss, output) if number is not None]

    if difference := _in_parts(sums, variants):
        yield (
            f"The {name} ({getattr(loss, '__name__', type(loss).__name__)}) of a batch is not that of its parts: "
            f"{difference}. Each value must come from its own example alone. A loss over the whole batch gathers the "
            "other examples: mk.train.all_gather, in Step.from_loss(..., whole_batch=True)."
        )


def _of_metric(name: str, state_of: Callable[[Output], list[tf.Tensor]], variants: Sequence[Output]) -> Iterator[str]:
    if difference := _in_parts(state_of, variants):
        is_flat = len(variants[0].y.shape) == len(variants[0].y_pred.shape) == 1
        cure = "Give targets and outputs a last axis, [batch, 1], which Keras's metrics take means over. " * is_flat
        yield (
            f"The state of the metric {name!r} for a batch is not that of its parts: {difference}. {cure}Let a metric "
            "function return one value per example (shape [batch]); for a ratio of counts write a "
            "keras.metrics.Metric that adds up the counts and divides in result(), or take one of Keras's."
        )


def _in_parts(sums: Callable[[Output], list[tf.Tensor]], variants: Sequence[Output]) -> str | None:
    """Return how the sums over all rows differ from those over the parts, or None."""
    for number, variant in enumerate(variants):
        try:
            found = _difference(sums, variant)
        except Exception:
            if number == 0:
                raise
            continue  # the function requires more of targets and predictions than these kinds
        if found:
            return found
    return None


def _difference(sums: Callable[[Output], list[tf.Tensor]], output: Output) -> str | None:
    whole = numbers(_on_all(lambda: sums(output)))
    control, *parts = (numbers(sums(part_of(output, rows))) for rows in (OTHER_ORDER, *PARTS))
    for value, other, first, second in zip(whole, control, *parts, strict=True):
        size = np.max(np.abs([value, first, second]), initial=0.0)
        rounding = float(np.clip(10 * np.max(np.abs(other - value), initial=0.0), _EXACT * size, LARGEST * size))
        if differ(value, first + second, rounding):
            place = np.unravel_index(np.argmax(np.abs(value - first - second)), value.shape)
            found = f"{value[place]:.6g} in place of {first[place]:.6g} + {second[place]:.6g}"
            return f"{found} for {' + '.join(str(rows.size) for rows in PARTS)} rows"
    return None


def _number(tensor: tf.Tensor) -> float:
    return float(tf.reduce_sum(tf.cast(tensor, tf.float64)))
