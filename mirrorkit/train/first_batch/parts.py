"""Check that a batch gives the same as its parts, on the first batch, before the first update.

A replica sees its own rows only. A loss, a metric or a layer that looks at all rows of its batch (a ratio of counts, a
loss over pairs, a sum given to `add_loss`) means something else there, and trains without an error to another result.
So the step is run on a few rows all at once and in two parts (see `rows.py`), and gradients, layer state and logs are
compared. Where they differ, what the model's layers do is compared to name what is to blame (`culprits.py`).

Losses and metrics of a compiled model are compared by themselves first (`functions.py`), on more rows with the real
targets and with others: with all predictions on one side of a threshold many faults do not show.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._types import Batch, Nest
from mirrorkit.errors import MirrorkitError, StepError
from mirrorkit.strategy import num_workers
from mirrorkit.train.first_batch.culprits import culprits
from mirrorkit.train.first_batch.functions import function_faults, is_loss
from mirrorkit.train.first_batch.keras_updates import update_faults
from mirrorkit.train.first_batch.rounding import LARGEST, SIXTEEN, differ
from mirrorkit.train.first_batch.rows import PARTS, Computed, InParts
from mirrorkit.train.first_batch.same_results import require_same_results, rows_of_chief
from mirrorkit.train.first_batch.sampled_rows import ROWS, SEEN, some_rows, take
from mirrorkit.train.first_batch.shards import FIRST, combined_state, small
from mirrorkit.train.first_batch.shares import CURE, SETS, Ran, cannot_run, differing, gradients_apart
from mirrorkit.train.first_batch.state import RESOLUTION
from mirrorkit.train.keras_model.layer_state import has_sixteen_bits, is_seed
from mirrorkit.train.reduce.sparse_gradient import SparseGradient
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.requirements.same_rows import ANY_ROWS, told
from mirrorkit.train.step.facts import ShardSums
from mirrorkit.train.step.functions import Functions
from mirrorkit.train.step.loop_step import Pass
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.train.totals.totals import DIVISOR, EXAMPLES, LOSS
from mirrorkit.variables import path, unchanged

_log = logging.getLogger("mirrorkit")

_CALLS = 1e-4  # rounding of what models compute for batches of different sizes, in parts of a number's size
_ROUNDED = 30  # times what the last digits of the weights change: as much may be rounding


def compare_parts(step: Supervised, batch: Batch, what: Pass, *, again: bool = False) -> bool:
    """Refuse a step that on parts of a batch does not come to what it does on all rows, and an optimizer like that.

    Returns whether there were rows enough to compare. Losses and metrics are compared by themselves before the first
    training, and `again` where a number that they read has changed.
    """
    parts: Nest | None = step.unpack(batch).present
    step.prepare(batch, what)
    unchecked = step.options.unchecked
    _require_known(step, unchecked)
    if what == "train" and "keras" not in unchecked:
        for found in update_faults(step.optimizer):
            raise StepError(f"The step does not do what Keras's fit does: {found}")
    shards = step.shards if what == "train" else step.strategy.num_replicas_in_sync
    if shards == 1:
        return True
    if num_workers(step.strategy) > 1:  # of which each may have rows of its own: all are to come to one verdict
        parts = rows_of_chief(step.strategy, parts, ROWS)
    size = 0 if parts is None else int(tf.nest.flatten(parts)[0].shape[0])
    if size == 0 or (size == 1 and step.options.runs_keras):
        return False
    if "train" not in step.checked:
        require_same_results(step, batch, training=what == "train")
    with unchanged([]):  # a layer may draw from Python's or NumPy's generator
        outside_replica(functools.partial(_compare, step, parts, what, again or "train" not in step.checked))
    return True


def _require_known(step: Supervised, unchecked: Sequence[str]) -> None:
    of_steps = {"rows", "state", "keras"}
    known = of_steps if step.options.runs_keras else {*of_steps, "add_loss", "loss", *step.totals.names}
    if unknown := sorted(set(unchecked) - known):
        raise StepError(f"unchecked={unknown} names no check; the checks are {', '.join(sorted(known))}.")


def _compare(step: Supervised, parts: Nest, what: Pass, with_functions: bool) -> None:
    unchecked, of_users = step.options.unchecked, step.options.runs_keras
    found: dict[str, list[str]] = {}
    if with_functions and not step.options.takes_batches:
        found = function_faults(step, some_rows(parts))
    differences: list[str] = []
    if "rows" not in unchecked:
        for some in _sets(parts, of_users):
            try:
                differences += _differences(step, some, what)
            except MirrorkitError:
                raise
            except Exception as error:  # whatever a user's step may raise
                if set(unchecked) - {"keras"}:  # what is left out may fail on other rows
                    _log.warning("A few rows of the first batch could not be compared: %s", told(error))
                else:
                    _require_failing(step, parts, what, error)
                break
    if differences and of_users:
        name = f"{what}_step of {type(step.model).__name__}"
        raise StepError(f"{name} does not mean the same on shares of a batch: {differences[0]} {CURE}")
    of_sums = [v for v in step.trained.non_trainable_variables if getattr(v, "aggregation", None) == "sum"]
    if (differences or of_sums) and not any(found.values()):
        found |= culprits(step, some_rows(parts), training=what == "train")
        if not any(found.values()):
            found["rows"] = [text for text in differences if text]
    names = tuple(name for name, texts in found.items() if texts and name not in unchecked)
    if names:
        texts = itertools.chain(*(found[name] for name in names))
        raise StepError(
            f"{step.shards} shards of a batch would not give what the whole batch gives. {' '.join(texts)} (Seen on a "
            "few rows of the first batch and on parts of them. If you know that it is right, write "
            f"Step{'.from_loss' * step.options.of_values}(..., unchecked={names!r}).)"
        )


def _require_failing(step: Supervised, parts: Nest, what: Pass, error: Exception) -> None:
    """Refuse a step that cannot be run on a few rows; but one that cannot on the whole batch, the training will."""
    size, name = int(tf.nest.flatten(parts)[0].shape[0]), f"{what}_step of {type(step.model).__name__}"
    for shares in (step.strategy.num_replicas_in_sync, 1):  # a constant batch size fits the whole alone
        try:
            for own in np.array_split(np.arange(size), shares):
                _ran(step, Computed(step, take(parts, own), training=what == "train"), what, [[own.size]])
        except Exception:  # whatever a user's step may raise
            continue
        raise cannot_run(name, SEEN, error, ANY_ROWS) from error
    if step.options.runs_keras:
        raise cannot_run(name, SEEN, error) from error
    _log.warning("The first batch could not be checked: %s", told(error))


def _sets(parts: Nest, of_users: bool) -> list[Nest]:
    """Return the rows that the step is run on: of a user's step several sets, since a threshold may hide in one."""
    if not of_users:
        return [take(some_rows(parts), np.linspace(0, ROWS - 1, SEEN).astype(int))]
    there = int(tf.nest.flatten(parts)[0].shape[0])
    size = min(there, SEEN)
    return [take(parts, np.arange(first, first + size)) for first in range(0, there - size + 1, size)][:SETS]


def _differences(step: Supervised, rows: Nest, what: Pass) -> list[str]:
    """Say in sentences how parts of these rows differ from all of them."""
    computed = Computed(step, rows, training=what == "train")
    both = functools.partial(_ran, step, computed, what)
    whole, parts = both([[computed.count], _cut(computed.count)])
    found = _between(step, computed, whole, _known_logs(step, parts))
    if not found:
        return []
    # What differs without being cut, or with other seeds where draws are not known by row, is no proof.
    for seeds in [None] if computed.all_draws_known else [None, computed.other_seeds]:
        (again,) = both([[computed.count]], state=seeds)
        if any(differing(step.model, again, whole._replace(values={}))):
            return []
    if what == "train":
        (nudged,) = both([[computed.count]], nudge=2.0**-7 if has_sixteen_bits(step.model) else 2.0**-22)
        if gradients_apart(whole, parts) <= _ROUNDED * gradients_apart(whole, nudged):
            parts = parts._replace(gradients=whole.gradients)
            found = _between(step, computed, whole, _known_logs(step, parts))
    return found


def _between(step: Supervised, computed: Computed, whole: Ran, parts: Ran) -> list[str]:
    """Say how parts differ; an empty sentence for layer state, which has its own rules, but in a user's own step."""
    if step.options.runs_keras:
        return list(differing(step.model, whole, parts))
    texts = differing(step.model, whole, parts._replace(values={}), LARGEST)
    found = [_with_worst(step, whole, parts, text) for text in texts]
    before = dict(zip(whole.values, _state(step, computed.values.state), strict=True))
    of_state = any(_is_suspect(step, before[name], whole.values[name], parts.values[name]) for name in before)
    return [*found, *([""] if of_state else [])]


def _with_worst(step: Supervised, whole: Ran, parts: Ran, text: str) -> str:
    """Name the weight whose gradient differs most, where it is of gradients that a sentence tells."""
    if "gradients" not in text:
        return text
    pairs = zip(whole.gradients[0], parts.gradients[0], strict=True)
    apart = [float(np.max(np.abs(one - other), initial=0.0)) for one, other in pairs]
    weights = step.functions.weights_with_gradient
    return f"{text} They differ most for {path(weights[int(np.argmax(apart))])!r}."


def _is_suspect(step: Supervised, *values: np.ndarray) -> bool:
    """Return whether the rules for layer state are to be asked for one of its variables."""
    old, one, other = (value.astype(np.float64) for value in values)
    size = max(np.max(np.abs(one - old), initial=0.0), np.max(np.abs(other - old), initial=0.0))
    largest = max(np.max(np.abs(one), initial=0.0), np.max(np.abs(other), initial=0.0))
    rounding = SIXTEEN if has_sixteen_bits(step.model) else _CALLS
    return differ(one, other, max(rounding * size, RESOLUTION * largest))


def _cut(count: int) -> list[int]:
    return PARTS if count == sum(PARTS) else [1, count - 1]


def _known_logs(step: Supervised, parts: Ran) -> Ran:
    """Leave out logs that are not to be compared: unchecked ones, and of an accumulated update those of metrics."""
    with_metrics = step.strategy.num_replicas_in_sync > 1 or step.options.runs_keras
    names = [name for name in parts.logs if with_metrics or is_loss(name)]
    return parts._replace(logs={n: parts.logs[n] for n in names if n not in step.options.unchecked})


def _ran(
    step: Supervised,
    computed: Computed,
    what: Pass,
    cuts: Sequence[Sequence[int]],
    *,
    state: Sequence[tf.Tensor] | None = None,
    nudge: float = 0.0,
) -> list[Ran]:
    """Return what a step comes to where its rows are cut into parts of these sizes, for each cut."""
    functions, training, total = step.functions, what == "train", tf.constant(float(computed.count))

    def of_cuts(weights: list[tf.Tensor], state: list[tf.Tensor], in_parts: InParts) -> list[Nest]:
        scale = [tf.ones_like(value) for value in computed.values.scale]  # the real one may overflow at first
        weights = [_nudged(weight, nudge) for weight in weights] if nudge else weights
        values = computed.values._replace(weights=weights, state=state, scale=scale)
        compute = _totals
        if training:
            compute = _whole if step.is_whole else _sums
        return [compute(functions, values, in_parts, sizes, total) for sizes in cuts]

    return [_as_ran(step, one) for one in computed(of_cuts, state)]


def _sums(functions: Functions, values: Any, in_parts: InParts, sizes: Sequence[int], total: tf.Tensor) -> Nest:
    """Return gradients, layer state and totals of all parts."""
    found: list[ShardSums] = in_parts(lambda rows: functions.shard_sums(values, rows, FIRST, total), sizes)
    totals = tf.add_n([one.totals for one in found])
    of_parts = [_dense(functions, one.gradients[DIVISOR]) for one in found]
    sums = [tf.add_n(of_weight) for of_weight in zip(*of_parts, strict=True)]
    return _means(sums, totals), combined_state(functions, values.state, [one.state for one in found], totals), totals


def _whole(functions: Functions, values: Any, in_parts: InParts, sizes: Sequence[int], total: tf.Tensor) -> Nest:
    """Return the same of a loss over the whole batch, whose gradient goes through what parts gather of each other."""
    seeded = functions.state.seeded(values.state, FIRST)

    def of_part(rows: Nest) -> Any:
        ran = functions.run("train", values, seeded, rows, FIRST, total)
        return ran, functions.totals.of(ran, ran.scope.share.fraction)

    with tf.GradientTape() as tape:
        tape.watch(values.weights)
        found = in_parts(of_part, sizes)
        totals = tf.add_n([of_part for _, of_part in found])
        loss = tf.add_n([ran.scope.minimized for ran, _ in found])
    means = _means(_dense(functions, tape.gradient(loss, values.weights)), totals)
    state = [functions.state.sums(seeded, ran.state, functools.partial(_examples, own)) for ran, own in found]
    return means, combined_state(functions, values.state, state, totals), totals


def _means(sums: Sequence[tf.Tensor], totals: tf.Tensor) -> list[tf.Tensor]:
    return [one / tf.cast(totals[DIVISOR], one.dtype) for one in sums]


def _examples(totals: tf.Tensor) -> tf.Tensor:
    return totals[EXAMPLES]


def _totals(functions: Functions, values: Any, in_parts: InParts, sizes: Sequence[int], total: tf.Tensor) -> Nest:
    """Return the same without training."""
    found = in_parts(lambda rows: functions.shard_totals(values, rows, FIRST, total), sizes)
    totals = tf.add_n([of_part for of_part, _ in found])
    return [], combined_state(functions, values.state, [state for _, state in found], totals), totals


def _dense(functions: Functions, gradients: Sequence[Any]) -> list[tf.Tensor]:
    of_weights = [
        tf.IndexedSlices(one.values, one.ids) if isinstance(one, SparseGradient) else one for one in gradients
    ]
    return [one for one in small(functions, enumerate(of_weights)) if one is not None]


def _as_ran(step: Supervised, found: Nest) -> Ran:
    gradients, state, totals = found
    variables = [variable for variable in step.trained.non_trainable_variables if not is_seed(variable)]
    values = dict(zip(map(path, variables), _state(step, state), strict=True))
    logs = {name: np.asarray(value) for name, value in step.logs(totals).items()}
    logs.setdefault("loss", np.asarray(totals[LOSS] / totals[EXAMPLES]))
    return Ran([[np.asarray(one) for one in gradients]], values, logs)


def _state(step: Supervised, state: Sequence[tf.Tensor]) -> list[np.ndarray]:
    """Return the layer state but for seeds."""
    variables = zip(step.trained.non_trainable_variables, state, strict=True)
    return [np.asarray(value) for variable, value in variables if not is_seed(variable)]


def _nudged(weight: tf.Tensor, eps: float) -> tf.Tensor:
    """Change the last digits: of a converged model, the gradient is what rounding leaves, and changes as a whole."""
    return weight * (1 + eps * tf.random.stateless_normal(weight.shape, [0, 0], dtype=weight.dtype))
