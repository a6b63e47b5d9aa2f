"""Check that a batch gives the same as its parts, before the first pass of a kind and later.

A replica sees its own rows only. A loss, a metric or a layer that looks at all rows of its batch (a ratio of counts, a
loss over pairs, a sum given to `add_loss`) means something else there, and trains without an error to another result.
So the step is run on a few rows all at once and in parts, and gradients, layer state, logs and predictions are compared
(`compared.py`). A step that is a function is run on one device (`running.py`), another one on the replicas themselves
(`replica_runs.py`). Where they differ, the calls of layers are compared to name what is to blame (`culprits.py`).

Losses and metrics of a compiled model are also compared by themselves (`functions.py`), with other targets, predictions
and weights than the batch has: with all predictions on one side of a threshold many faults do not show.
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
from mirrorkit.strategy import of_all_workers
from mirrorkit.train.first_batch.at_rest import in_float32
from mirrorkit.train.first_batch.compared import but_for_rounding, differing, is_loss
from mirrorkit.train.first_batch.culprits import LAYERS, culprits
from mirrorkit.train.first_batch.functions import function_faults
from mirrorkit.train.first_batch.replica_runs import ReplicaRuns
from mirrorkit.train.first_batch.running import PureRuns, predicted
from mirrorkit.train.first_batch.same_results import require_same_results, rows_of_chief
from mirrorkit.train.first_batch.sampled_rows import FEW, is_telling, rows_to_see, size_of, spread, take
from mirrorkit.train.reduce.tracing import numbers_by_row, outside_replica
from mirrorkit.train.requirements.data import ANY_ROWS, check_batched, check_tensors, told
from mirrorkit.train.step.keras_step import KerasStep
from mirrorkit.train.step.loop_step import FirstOf
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import unchanged

_log = logging.getLogger("mirrorkit")

_CURE = (
    "On several replicas each runs it on its share of the rows, and the gradients, single numbers given to a metric, "
    "and states are averaged, weighed by rows; so they must be means over rows (tf.reduce_mean, a keras Loss), not "
    "sums, norms or comparisons of rows with each other; and rows must draw from a SeedGenerator or without a seed, "
    "not from one that all replicas have. The state of a metric must be a sum over rows (assign_add), which result() "
    "may divide. For a loss over the whole batch use Step.from_loss(model, optimizer, loss_fn, whole_batch=True)."
)
_STATE = (
    "Replicas' values are combined as a mean over the examples, integers as a number of calls. Keep a mean over the "
    "rows (keras.ops.mean), or leave it to a metric."
)


def compare_parts(step: Supervised | KerasStep, batch: Batch, what: FirstOf, *, again: bool = False) -> bool:
    """Refuse a step that on parts of a batch does not come to what it does on all rows.

    Returns whether there were rows that can tell a difference. Losses and metrics are compared by themselves before the
    first training, and each time that it is compared `again` later.
    """
    # First the rows: what a pass over one of them takes says how many fit, the chief's are sent to all workers, and so
    # many are taken from all over the batch. Then the comparison, in float32, as on one device.
    if isinstance(step, KerasStep):
        model, numbers, least = step.model, step.numbers[what], step.strategy.num_replicas_in_sync + 1
    else:
        model, least = step.trained, FEW
        batch, numbers = _taken_apart(step, batch, what)
    to_see = functools.partial(rows_to_see, numbers=numbers, least=least)
    parts = rows_of_chief(step.strategy, batch, to_see(size_of(batch)))
    if parts is None:  # and so would those of the next batch be
        return True
    rows = spread(parts, to_see(size_of(parts)))
    with_functions = what != "predict" and (again or "train" not in step.checked)
    with in_float32(model), unchanged([]):  # a layer may draw from Python's or NumPy's generator
        outside_replica(lambda: _compare(step, rows, parts, what, with_functions=with_functions))
    return is_telling(rows)


def _taken_apart(step: Supervised, batch: Batch, what: FirstOf) -> tuple[Nest, int]:
    """Return what the step is given of a batch, and how many numbers a pass over each row holds."""
    if what == "predict":
        check_tensors(batch)
        check_batched(step.trained, step.unpack(batch).x)
        try:
            traced = tf.function(step.outputs, autograph=False).get_concrete_function(batch)
        except Exception:  # whatever a user's layer may raise; the run, which is next, will
            return batch, 0
        return batch, numbers_by_row(traced.graph, size_of(batch))
    parts = step.unpack(batch).present
    step.prepare(batch, what)
    _require_known(step)
    return parts, step.own.found(what, step.options.data(parts)).numbers


def _require_known(step: Supervised) -> None:
    if not step.options.unchecked:
        return
    known = {"rows", "state"}
    if not step.options.runs_keras:
        known |= {"add_loss", "loss", *step.totals.names}
    if unknown := sorted(set(step.options.unchecked) - known):
        raise StepError(f"unchecked={unknown} names no check; the checks are {', '.join(sorted(known))}.")


def _runs(step: Supervised | KerasStep, rows: Nest, what: FirstOf) -> PureRuns | ReplicaRuns:
    return PureRuns(step, rows, what) if isinstance(step, Supervised) else ReplicaRuns(step, rows, what)


def _name(step: Supervised | KerasStep, what: FirstOf) -> str:
    return f"{what}_step of {type(step.model).__name__}"


def _compare(step: Supervised | KerasStep, rows: Nest, batch: Nest, what: FirstOf, *, with_functions: bool) -> None:
    """Refuse a step that does otherwise on parts of some rows of a batch, and name what is to blame."""
    runs, options = _runs(step, rows, what), step.options
    differences = _differences(step, runs, batch, what)
    found: dict[str, list[str]] = {}
    if isinstance(runs, ReplicaRuns) or options.runs_keras:
        found["rows"] = [
            f"{_name(step, what)} does not mean the same on shares of a batch: it {text} {_CURE}"
            for _, text in differences[:1]
        ]
    else:
        if with_functions and not options.takes_batches:
            found = function_faults(runs, batch, differs=bool(differences))
        if differences and "rows" not in options.unchecked:
            # Losses and layers explain gradients and logs; what neither explains is told as it is.
            found |= _blamed(runs, what, differences)
            if not any(texts for name, texts in found.items() if is_loss(name) or name in ("rows", "add_loss")):
                found["rows"] = [f"The step {text}" for name, text in differences if name not in found]
    names = tuple(name for name, texts in found.items() if texts and name not in options.unchecked)
    if names:
        texts = itertools.chain(*(found[name] for name in names))
        raise StepError(
            f"{step.strategy.num_replicas_in_sync * step.accumulate} shards of a batch would not give what the whole "
            f"batch gives. {' '.join(texts)} (Seen on rows of the data and on parts of them. If you know that it is "
            f"right: unchecked={names!r}, an argument of mk.train.Step{'.from_loss' * options.of_values} and mk.fit.)"
        )


def _blamed(runs: PureRuns, what: FirstOf, differences: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Say what is to blame for the differences, by the name that leaves it unchecked."""
    found = {"rows": [], **culprits(runs, training=what == "train")}
    found["state"] = [f"The step {text} {_STATE}" for name, text in differences if name == "state"]
    if what == "predict":
        title = predicted(differences[0][0], runs.count)
        found["rows"] = [f"{title} is not what parts of them give.", *(found["rows"] or [LAYERS])]
    return found


def _differences(
    step: Supervised | KerasStep, runs: PureRuns | ReplicaRuns, batch: Nest, what: FirstOf
) -> list[tuple[str, str]]:
    """Say how parts of rows differ from all of them; refuse a step that these rows alone cannot be given.

    What fails on the batch too, the training will tell of; what is left out may fail on other rows.
    """
    try:
        return _between(step, runs, nudge=what == "train")
    except MirrorkitError:
        raise
    except Exception as error:  # whatever a user's step may raise
        if not step.options.unchecked and _runs_on(step, batch, what):
            raise StepError(
                f"{_name(step, what)} cannot be run on {runs.count} rows and on shares of them: {told(error)} "
                f'{ANY_ROWS} If this is right, leave the check out: unchecked="rows".'
            ) from error
        _log.warning("The rows of a batch could not be compared: %s", told(error))
        return []


def _runs_on(step: Supervised | KerasStep, batch: Nest, what: FirstOf) -> bool:
    """Return whether a step can be run on a batch, or on the replicas' shares of it."""
    for shares in (step.strategy.num_replicas_in_sync, 1):  # a constant batch size fits the whole alone
        try:
            for own in np.array_split(np.arange(size_of(batch)), shares):
                _runs(step, take(batch, own), what).whole()
        except Exception:  # whatever a user's step may raise
            continue
        return True
    return False


def _between(step: Supervised | KerasStep, runs: PureRuns | ReplicaRuns, *, nudge: bool) -> list[tuple[str, str]]:
    """Say in sentences how parts of these rows differ from all of them; refuse workers that differ in these."""
    try:
        whole, parts = runs.both()
    except MirrorkitError:
        raise
    except Exception:  # whatever a user's step may raise, perhaps on this worker alone
        of_all_workers(step.strategy, True)
        raise
    if any(of_all_workers(step.strategy, False)):
        return []
    if not step.checked:
        require_same_results(step.strategy, step.model, whole, runs.weights, runs.count)
    compare = functools.partial(differing, step.model, weights=runs.weights)
    if not any(compare(whole, parts, before=runs.before)):
        return []
    # What differs without being cut, or with other seeds where draws are not known by row, is no proof.
    for other_seeds in [False] if runs.all_draws_known else [False, True]:
        if any(compare(runs.whole(other_seeds=other_seeds), whole)):
            return []
    if nudge:
        parts = but_for_rounding(whole, parts, runs.whole(nudge=True))
    return list(compare(whole, parts, before=runs.before))
