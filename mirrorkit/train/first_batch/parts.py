"""Check that a batch gives the same as its parts, on the first batch, before the first update.

A replica sees its own rows only. A loss, a metric or a layer that looks at all rows of its batch (a ratio of counts, a
loss over pairs, a sum given to `add_loss`) means something else there, and trains without an error to another result.
So a few rows are computed all at once and in two parts (see `rows.py`), and gradients, layer state and logs compared.
Where they differ, the outputs, what layers add to the loss and their state are compared to name what is to blame.

Losses and metrics are compared by themselves too, on more rows with the real targets and with others: with all
predictions on one side of a threshold many faults do not show.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._types import Nest
from mirrorkit.errors import StepError
from mirrorkit.train.first_batch.functions import of_loss, of_metric
from mirrorkit.train.first_batch.results import Results, differences, largest_apart
from mirrorkit.train.first_batch.rounding import LARGEST, SIXTEEN, differ, numbers
from mirrorkit.train.first_batch.rows import PARTS, Computed, InParts, rows_differ
from mirrorkit.train.first_batch.sampled_rows import (
    ROWS,
    SEEN,
    kinds_of,
    some_rows,
    take,
    variants_of,
)
from mirrorkit.train.first_batch.shards import on_one_shard, on_shards
from mirrorkit.train.first_batch.state import RESOLUTION, state_faults
from mirrorkit.train.first_batch.trying import NotChecked, on_all, tried
from mirrorkit.train.keras_model.calling import call_model
from mirrorkit.train.keras_model.layer_state import has_sixteen_bits
from mirrorkit.train.keras_model.outputs import UnpackedBatch, match, per_output
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import native, unchanged

_log = logging.getLogger("mirrorkit")

_ROUNDED = 30  # times what the last digits of the weights change: as much may be rounding
_CALLS = 1e-4  # rounding of what models compute for batches of different sizes, in parts of a number's size

Checks = Mapping[str, Callable[[], Iterable[str]]]  # by the name under which one can be left out


def compare_parts(step: Supervised, batch: UnpackedBatch, *, training: bool, functions: bool = True) -> None:
    """Refuse a step that means something else on several shards than on the whole batch.

    Args:
        step: one that is prepared for the batch.
        batch: a global batch, taken apart.
        training: whether the training is checked, or only the evaluation.
        functions: whether losses and metrics are compared by themselves, on more rows.
    """
    if tf.nest.flatten(batch.x)[0].shape[0]:
        with unchanged([]):  # a layer may draw from Python's or NumPy's generator
            try:
                outside_replica(_Parts(step, batch, training=training, functions=functions).compare)
            except NotChecked as failed:
                for shares in (step.strategy.num_replicas_in_sync, 1):  # a constant batch size fits the whole alone
                    if outside_replica(functools.partial(_are_computed, step, batch, training, shares)):
                        raise
                _log.warning("%s", failed)  # the training will say more, or works where this does not


def _are_computed(step: Supervised, batch: UnpackedBatch, training: bool, shares: int) -> bool:
    """Return whether a batch can be computed in so many shares, as its few rows could not."""
    rows = np.arange(tf.nest.flatten(batch.x)[0].shape[0])
    try:
        for own in np.array_split(rows, shares):
            on_one_shard(step.functions, step.values(), take(batch.present, own), training=training)
    except Exception:  # whatever a user's code may raise: labels that are no classes, a function for graphs only
        return False
    return True


class _Parts:
    """The comparisons of one step."""

    def __init__(self, step: Supervised, batch: UnpackedBatch, *, training: bool, functions: bool) -> None:
        self._step, self._totals, self._training = step, step.totals, training
        self._with_functions = functions
        self._replicas = step.strategy.num_replicas_in_sync
        names = self._totals.names
        self._targets = [None if y is None else kinds_of(y) for y in per_output(names, batch.y, "targets")]
        self._batch = some_rows(batch)
        seen = np.linspace(0, ROWS - 1, SEEN).astype(int)
        self._seen = UnpackedBatch(*[None if part is None else take(part, seen) for part in self._batch])

    def compare(self) -> None:
        """Raise an error that names what does not give the same."""
        unchecked = self._step.options.unchecked
        try:
            functions = self._functions(self._outputs()) if self._with_functions else {}
        except StepError:
            raise
        except Exception as error:  # whatever a user's layer may raise
            if "rows" in unchecked:
                return
            raise NotChecked("rows", error) from error
        left_out = {name: check for name, check in functions.items() if name in unchecked}
        found = {name: list(tried(name, check)) for name, check in functions.items() if name not in unchecked}
        differing = list(tried("rows", self._differences, may_fail="rows" in unchecked or bool(left_out)))
        if differing:
            layers = {"rows": self._rows, "add_loss": self._added, **({"state": self._state} if self._training else {})}
            found |= {name: list(tried(name, check, may_fail=True)) for name, check in (layers | left_out).items()}
            if not any(found.values()):  # nothing that is known is to blame
                found["rows"] = [text for text in differing if text]
        names = tuple(name for name, texts in found.items() if texts and name not in unchecked)
        if names:
            raise StepError(
                f"{self._step.shards} shards of a batch would not give what the whole batch "
                f"gives. {' '.join(text for name in names for text in found[name])} (Seen on a few rows of the first "
                "batch and on parts of them. If you know that it is right, write "
                f"Step{'.from_loss' * bool(self._totals.values)}(..., unchecked={names!r}).)"
            )

    def _outputs(self) -> Nest:
        """Return what the model predicts; what it gives in training where it cannot predict, as with RandomCrop."""
        try:
            return self._predicted(training=False)
        except Exception:
            if not self._training:
                raise
            return self._predicted(training=True)

    def _predicted(self, *, training: bool) -> Nest:
        step = self._step

        def outputs(weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], in_parts: InParts) -> Nest:
            (of_all,) = in_parts(lambda x: call_model(step.trained, weights, state, x, training=training)[0], [SEEN])
            return of_all

        return Computed(step, self._seen.x, training=training)(outputs)

    def _functions(self, y_pred: Nest) -> Checks:
        """Return the checks of losses and metrics."""
        totals = self._totals
        outputs = match(totals.names, self._batch.y, y_pred, self._batch.weight)
        variants = [list(variants_of(output, ys)) for output, ys in zip(outputs, self._targets, strict=True)]
        checks: dict[str, Callable[[], Iterable[str]]] = {}
        for name, (i, loss) in zip(totals.losses.log_names, totals.losses.members, strict=True):
            checks[name] = functools.partial(of_loss, name, loss, variants[i])
        if self._replicas > 1:  # the parts of an accumulated update are batches to a metric, as in Keras
            for number, (name, i) in enumerate(zip(totals.metrics.names, totals.metrics.outputs, strict=True)):
                state_of = functools.partial(totals.metrics.state, number)
                checks[name] = functools.partial(of_metric, name, state_of, variants[i])
        return checks

    def _differences(self) -> Iterator[str]:
        """Yield in sentences how parts differ from all rows; an empty one for layer state, which has its own rules."""
        step, training = self._step, self._training
        computed = Computed(step, self._seen.present, training=training)
        of_shards = functools.partial(on_shards, step.functions, training=training)
        losses, replicas = {"loss", *self._totals.losses.own_names}, self._replicas

        def of_all(weights: list[tf.Tensor], state: list[tf.Tensor], in_parts: InParts) -> Nest:
            values = computed.values._replace(weights=weights, state=state)
            return of_shards(values, lambda of_shard: in_parts(of_shard, [SEEN]))

        def of_both(weights: list[tf.Tensor], state: list[tf.Tensor], in_parts: InParts) -> list[Nest]:
            values = computed.values._replace(weights=weights, state=state)
            whole = on_all(lambda: of_all(weights, state, in_parts))
            return [whole, of_shards(values, lambda of_shard: in_parts(of_shard, PARTS))]

        def results(gradients: Any, state: Any, totals: Any) -> Results:
            logs = {name: log for name, log in step.logs(totals).items() if name not in step.options.unchecked}
            return Results(gradients, state, {n: log for n, log in logs.items() if n in losses or replicas > 1})

        whole, parts = (results(*found) for found in computed(of_both))
        found = differences(step, parts, whole._replace(state=parts.state), "on all rows")
        if found and training:
            nudge = functools.partial(_nudged, eps=2.0**-7 if has_sixteen_bits(step.model) else 2.0**-22)
            nudged = results(*computed(lambda weights, *given: of_all([nudge(one) for one in weights], *given)))
            if largest_apart(parts, whole) <= _ROUNDED * largest_apart(nudged, whole):
                parts = parts._replace(gradients=whole.gradients)
                found = differences(step, parts, whole._replace(state=parts.state), "on all rows")
        before = computed.values.state
        of_state = training and any(map(self._is_suspect, range(len(before)), before, whole.state, parts.state))
        if not found and not of_state:
            return
        # What differs without being cut, or with other seeds where draws are not known by row, is no proof.
        seeds = [None] if computed.all_draws_known else [None, computed.other_seeds]
        again = [results(*computed(of_all, state)) for state in seeds]
        if not any(differences(step, one._replace(state=whole.state), whole, "") for one in again):
            yield from found
            yield from [""] * of_state

    def _is_suspect(self, number: int, before: tf.Tensor, *after: tf.Tensor) -> bool:
        """Return whether the rules for layer state are to be asked for one of its variables."""
        old, one, other = numbers([before, *after])
        if getattr(self._step.trained.non_trainable_variables[number], "aggregation", None) == "sum":
            return differ(old, one, 0)
        size = max(np.max(np.abs(one - old), initial=0.0), np.max(np.abs(other - old), initial=0.0))
        largest = max(np.max(np.abs(one), initial=0.0), np.max(np.abs(other), initial=0.0))
        return differ(one, other, max(self._rounding * size, RESOLUTION * largest))

    def _called(self, rows: Nest, sizes: Sequence[int]) -> Nest:
        """Return what the model gives: outputs, state, added losses; for all rows, and for parts of these sizes."""
        model, training = self._step.trained, self._training

        def called(weights: list[tf.Tensor], state: list[tf.Tensor], in_parts: InParts) -> list[Nest]:
            def of_part(x: Nest) -> Nest:
                return call_model(model, weights, state, x, training=training)

            (whole,) = on_all(lambda: in_parts(of_part, [tf.nest.flatten(rows)[0].shape[0]]))
            return [whole, *in_parts(of_part, sizes)]

        return Computed(self._step, rows, training=training)(called)

    def _rows(self) -> Iterator[str]:
        """Compare the outputs for each row."""
        whole, *parts = (tf.nest.flatten(outputs) for outputs, *_ in self._called(self._seen.x, PARTS))
        values = list(self._totals.values)
        with_loss = {number for number, _ in self._totals.losses.members}
        share = SIXTEEN if has_sixteen_bits(self._step.model) else LARGEST
        for number, name in enumerate(values or tf.nest.flatten(self._totals.names)):
            title = "The model's output" if name is None else f"The output {name!r}"
            output = whole[number]
            if number in with_loss and output.shape[:1] == [1]:
                yield (
                    f"{title} has the shape {list(output.shape)} for {SEEN} rows of inputs; a loss needs a row for "
                    "each. Let layers work along other axes than the first."
                )
            elif output is None or not rows_differ(output, [part[number] for part in parts], share):
                continue
            elif self._step.is_whole:
                yield (
                    f"What loss_fn returns as {name!r} is not the same for parts of a batch that gather rows from each "
                    "other as for the whole batch. All that it uses of other examples, and how many there are, must "
                    "come from mk.train.all_gather, and it must return the values of its own rows."
                )
            elif values:
                yield (
                    f"What loss_fn returns as {name!r} for an example depends on the other examples of its batch, or "
                    "on how many there are. Each value must come from its own example alone: take means over other "
                    "axes than the first, do not divide by the number of rows, since a step takes the mean over the "
                    "global batch itself, and let the data give each example its pair or its negatives. A loss that is "
                    "over the whole batch gathers what it needs of the others with mk.train.all_gather, in "
                    "Step.from_loss(..., whole_batch=True)."
                )
            else:
                yield (
                    f"{title} for an example depends on the other examples of its batch, on how many there are, or on "
                    f"its place among them (training={self._training}): a layer uses all rows of its batch, of which a "
                    "replica has only its own, or draws with a constant seed, which each replica repeats. Let layers "
                    "work along other axes than the first, normalize by "
                    "keras.layers.BatchNormalization(synchronized=True), and draw from a keras.random.SeedGenerator."
                )

    def _added(self) -> Iterator[str]:
        """Compare what layers add to the loss, which must be a mean over the rows."""
        whole, *parts = (added for _, _, added in self._called(self._seen.x, PARTS))
        for i, value in enumerate(whole):
            total, values = _number(value), [_number(part[i]) for part in parts]
            mean = float(np.dot(PARTS, values)) / SEEN
            if abs(total - mean) > self._rounding * max(abs(total), *map(abs, values)):
                yield (
                    f"A layer adds {total:.6g} to the loss (add_loss or activity_regularizer) for {SEEN} rows, but the "
                    f"mean over parts of them is {mean:.6g}: {values[0]:.6g} for {PARTS[0]} rows, {values[1]:.6g} for "
                    f"{PARTS[1]}. Add a mean over the rows (keras.ops.mean) of what each row gives by itself. An "
                    "activity_regularizer returns the sum over the rows, by whose number Keras divides it."
                )

    def _state(self) -> Iterator[str]:
        """Compare what layers remember."""

        def after(sizes: Sequence[int]) -> list[Sequence[tf.Tensor]]:
            whole, *parts = (state for _, state, _ in self._called(self._batch.x, sizes))
            return parts if len(sizes) > 1 else [whole]

        def twice() -> list[Sequence[tf.Tensor]]:
            half = list(range(ROWS // 2))
            both, one, _ = (state for _, state, _ in self._called(take(self._batch.x, half * 2), [ROWS // 2] * 2))
            return [both, one]

        state = [tf.convert_to_tensor(native(v)) for v in self._step.trained.non_trainable_variables]
        return state_faults(self._step.trained, state, after, twice, ROWS, self._rounding)

    @property
    def _rounding(self) -> float:
        return SIXTEEN if has_sixteen_bits(self._step.model) else _CALLS


def _nudged(weight: tf.Tensor, eps: float) -> tf.Tensor:
    """Change the last digits: of a converged model, the gradient is what rounding leaves, and changes as a whole."""
    return weight * (1 + eps * tf.random.stateless_normal(weight.shape, [0, 0], dtype=weight.dtype))


def _number(tensor: tf.Tensor) -> float:
    return float(tf.reduce_sum(tf.cast(tensor, tf.float64)))
