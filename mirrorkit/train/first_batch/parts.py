"""Check that a batch gives the same as its parts, on the first batch, before the first pass of a kind.

A replica sees its own rows only. A loss, a metric or a layer that looks at all rows of its batch (a ratio of counts, a
loss over pairs, a sum given to `add_loss`) means something else there, and trains without an error to another result.
So the step is run on a few rows all at once and in two parts (see `rows.py`), and gradients, layer state, logs and
predictions are compared. Where they differ, the calls of layers are compared to name what is to blame (`culprits.py`).

Losses and metrics of a compiled model are compared by themselves first (`functions.py`), with the real targets and with
others: with all predictions on one side of a threshold many faults do not show.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from mirrorkit._types import Batch, Nest
from mirrorkit.errors import MirrorkitError, StepError
from mirrorkit.strategy import num_workers
from mirrorkit.train.first_batch.compared import Ran, but_for_rounding, differing, nudge_of
from mirrorkit.train.first_batch.culprits import LAYERS, culprits
from mirrorkit.train.first_batch.functions import function_faults, is_loss
from mirrorkit.train.first_batch.keras_updates import update_faults
from mirrorkit.train.first_batch.rows import Computed, in_float32
from mirrorkit.train.first_batch.running import predicted, run, state_by_path
from mirrorkit.train.first_batch.same_results import require_same_results, rows_of_chief
from mirrorkit.train.first_batch.sampled_rows import ROWS, few_rows, is_telling, parts_of, seen_by, some_rows, take
from mirrorkit.train.first_batch.shares import CURE, SETS, cannot_run
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.requirements.data import check_batched, check_tensors
from mirrorkit.train.requirements.same_rows import ANY_ROWS, told
from mirrorkit.train.step.loop_step import FirstOf
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import path, unchanged

_log = logging.getLogger("mirrorkit")

_STATE = (
    "Replicas' values are combined as a mean over the examples, integers as a number of calls. Keep a mean over the "
    "rows (keras.ops.mean), or leave it to a metric."
)


def compare_parts(step: Supervised, batch: Batch, what: FirstOf, *, again: bool = False) -> bool:
    """Refuse a step that on parts of a batch does not come to what it does on all rows, and an optimizer like that.

    Returns whether there were rows that can tell a difference. Losses and metrics are compared by themselves before the
    first training, and each time that it is compared `again` later.
    """
    parts: Nest | None = batch
    if what == "predict":
        check_tensors(batch)
        check_batched(step.trained, step.unpack(batch).x)
    else:
        parts = step.unpack(batch).present
        step.prepare(batch, what)
        _require_known(step, step.options.unchecked)
    if what == "train" and not again and "keras" not in step.options.unchecked:
        for found in update_faults(step.optimizer):
            raise StepError(f"The step does not do what Keras's fit does: {found}")
    shards = step.shards if what == "train" else step.strategy.num_replicas_in_sync
    if shards == 1:
        return True
    if num_workers(step.strategy) > 1 and what != "predict":  # each may have rows of its own: all come to one verdict
        parts = rows_of_chief(step.strategy, parts, ROWS)
    size = 0 if parts is None else int(tf.nest.flatten(parts)[0].shape[0])
    if size == 0 or (size == 1 and step.options.runs_keras):
        return False
    is_first = what != "predict" and "train" not in step.checked
    with in_float32(step.trained):
        if is_first:
            require_same_results(step, batch, training=what == "train")
        with unchanged([]):  # a layer may draw from Python's or NumPy's generator
            outside_replica(functools.partial(_compare, step, parts, what, again or is_first))
    return is_telling(parts)


def _require_known(step: Supervised, unchecked: Sequence[str]) -> None:
    of_steps = {"rows", "state", "keras"}
    known = of_steps if step.options.runs_keras else {*of_steps, "add_loss", "loss", *step.totals.names}
    if unknown := sorted(set(unchecked) - known):
        raise StepError(f"unchecked={unknown} names no check; the checks are {', '.join(sorted(known))}.")


def _compare(step: Supervised, parts: Nest, what: FirstOf, with_functions: bool) -> None:
    unchecked = step.options.unchecked
    found: dict[str, list[str]] = {}
    if with_functions and not step.options.takes_batches:
        found = function_faults(step, some_rows(parts))
    differences = [] if "rows" in unchecked else _differences(step, parts, what)
    if differences and step.options.runs_keras:
        name = f"{what}_step of {type(step.model).__name__}"
        raise StepError(f"{name} does not mean the same on shares of a batch: it {differences[0][1]} {CURE}")
    if differences:
        # Losses and layers explain gradients and logs; what neither explains is told as it is.
        found |= _blamed(step, parts, what, differences)
        is_explained = any(texts for name, texts in found.items() if is_loss(name) or name in ("rows", "add_loss"))
        rest = [f"The step {text}" for name, text in differences if name not in found]
        found["rows"] = found["rows"] if is_explained else rest
    names = tuple(name for name, texts in found.items() if texts and name not in unchecked)
    if names:
        texts = itertools.chain(*(found[name] for name in names))
        raise StepError(
            f"{step.shards} shards of a batch would not give what the whole batch gives. {' '.join(texts)} (Seen on a "
            f"few rows of the data and on parts of them. If you know that it is right: unchecked={names!r}, an "
            f"argument of mk.train.Step{'.from_loss' * step.options.of_values} and mk.fit.)"
        )


def _blamed(
    step: Supervised, parts: Nest, what: FirstOf, differences: Sequence[tuple[str, str]]
) -> dict[str, list[str]]:
    """Say what is to blame for the differences, by the name that leaves it unchecked."""
    x = few_rows(step.trained, parts if what == "predict" else parts[0])
    found = {"rows": [], **culprits(step, x, training=what == "train")}
    found["state"] = [f"The step {text} {_STATE}" for name, text in differences if name == "state"]
    if what == "predict":
        title = predicted(differences[0][0], len(tf.nest.flatten(x)[0]))
        found["rows"] = [f"{title} is not what parts of them give.", *(found["rows"] or [LAYERS])]
    return found


def _differences(step: Supervised, parts: Nest, what: FirstOf) -> list[tuple[str, str]]:
    """Say how parts of rows differ from all of them, for one set of rows after the other."""
    found: list[tuple[str, str]] = []
    for rows in _sets(step, parts):
        try:
            found += _between(step, rows, what)
        except MirrorkitError:
            raise
        except Exception as error:  # whatever a user's step may raise
            if set(step.options.unchecked) - {"keras"}:  # what is left out may fail on other rows
                _log.warning("A few rows of a batch could not be compared: %s", told(error))
            else:
                _require_failing(step, parts, what, error, len(tf.nest.flatten(rows)[0]))
            break
    return found


def _require_failing(step: Supervised, parts: Nest, what: FirstOf, error: Exception, count: int) -> None:
    """Refuse a step that cannot be run on a few rows; but one that cannot on the whole batch, the training will."""
    size, name = int(tf.nest.flatten(parts)[0].shape[0]), f"{what}_step of {type(step.model).__name__}"
    for shares in (step.strategy.num_replicas_in_sync, 1):  # a constant batch size fits the whole alone
        try:
            for own in np.array_split(np.arange(size), shares):
                run(step, Computed(step, take(parts, own), training=what == "train"), what, [[own.size]])
        except Exception:  # whatever a user's step may raise
            continue
        raise cannot_run(name, count, error, ANY_ROWS) from error
    if step.options.runs_keras or what == "predict":
        raise cannot_run(name, count, error) from error
    _log.warning("The first batch could not be checked: %s", told(error))


def _sets(step: Supervised, parts: Nest) -> list[Nest]:
    """Return the rows that the step is run on: of a user's step several sets, since a threshold may hide in one."""
    if not step.options.runs_keras:
        return [few_rows(step.trained, parts)]
    there = int(tf.nest.flatten(parts)[0].shape[0])
    size = min(seen_by(step.trained, parts), there if there < 2 * SETS else there // SETS)
    return [take(parts, np.arange(first, first + size)) for first in range(0, there - size + 1, size)][:SETS]


def _between(step: Supervised, rows: Nest, what: FirstOf) -> list[tuple[str, str]]:
    """Say in sentences how parts of these rows differ from all of them."""
    computed = Computed(step, rows, training=what == "train")
    before = None if what == "predict" else state_by_path(step, computed.values.state)
    both = functools.partial(run, step, computed, what)
    whole, parts = both([[computed.count], parts_of(computed.count)])
    parts = _known_logs(step, parts)
    weights = [path(weight) for weight in step.functions.weights_with_gradient] if what == "train" else []
    compare = functools.partial(differing, step.model, before=before, weights=weights)
    if not any(compare(whole, parts)):
        return []
    # What differs without being cut, or with other seeds where draws are not known by row, is no proof.
    for seeds in [None] if computed.all_draws_known else [None, computed.other_seeds]:
        (again,) = both([[computed.count]], state=seeds)
        if any(compare(again, whole, before=None)):
            return []
    if what == "train":
        (nudged,) = both([[computed.count]], nudge=nudge_of(step.model))
        parts = but_for_rounding(whole, parts, nudged)
    return list(compare(whole, parts))


def _known_logs(step: Supervised, parts: Ran) -> Ran:
    """Leave out logs that are not to be compared: unchecked ones, and of an accumulated update those of metrics."""
    with_metrics = step.strategy.num_replicas_in_sync > 1 or step.options.runs_keras
    names = [name for name in parts.logs if with_metrics or is_loss(name)]
    return parts._replace(logs={n: parts.logs[n] for n in names if n not in step.options.unchecked})
