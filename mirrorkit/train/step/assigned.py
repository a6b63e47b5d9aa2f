"""What layers assign while a model predicts, or a user's own step tests: the same on all replicas afterwards.

Such a pass runs with the real variables, so that its loops draw new numbers in each round. Each replica writes its own
copy; then all copies get one value, by the rule of layer state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from mirrorkit._types import KerasVariable, Nest, Sums, Variable
from mirrorkit.strategy import local_replica
from mirrorkit.train.keras_model.layer_state import LayerState, advance, combined
from mirrorkit.train.keras_model.outputs import count_examples
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.replica_code.scope import Assignments, adds_up
from mirrorkit.train.step.empty_shares import has_no_rows, unless_empty
from mirrorkit.train.totals.totals import EXAMPLES
from mirrorkit.variables import own_copy


def run_and_combine(
    strategy: tf.distribute.Strategy,
    variables: Iterable[Variable],
    rows: Nest,
    compute: Callable[[Nest], Nest],
    *,
    tables: Iterable[KerasVariable] = (),
    outputs: bool = True,
    always: bool = False,
    stays: Callable[[KerasVariable], bool] = lambda variable: False,
    check: Callable[[dict[int, str]], None] = lambda paths: None,
) -> Nest:
    """Compute something of a replica's rows, and give all copies of what that assigned one value.

    Args:
        strategy: one whose replicas have copies of their own.
        variables: those that layers may assign; seeds need not be among them.
        rows: this replica's share of a batch, in replica context; without rows nothing is run, but `always`.
        compute: from the rows to a nest of tensors.
        tables: variables of which it reads rows, and which layers do not assign.
        outputs: whether these are [rows, ...]; else sums, of static shape.
        always: whether every replica runs it, since it may talk to the others.
        stays: whether a variable gets the value back that it had.
        check: called with the path of each assigned variable by its id; may refuse.
    """
    # Traced as a share of unknown size: the others must know what it assigns.
    if has_no_rows(rows) and not always and not tf.executing_eagerly():
        rows = tf.nest.map_structure(lambda t: tf.compat.v1.placeholder_with_default(t, [None, *t.shape[1:]]), rows)
    with Assignments(local_replica(strategy), variables, tables=tables) as scope:
        result = compute(rows) if always else unless_empty(rows, lambda: compute(rows), rows_of_none=outputs)
    check({key: found.variable.path for key, found in scope.noted.items()})
    changed = [found for found in scope.noted.values() if not adds_up(found.variable)]
    for found in changed:
        if stays(found.variable):
            found.own.assign(found.before)
    changed = [found for found in changed if not stays(found.variable)]
    if changed:
        examples = tf.cast(count_examples(rows), tf.float32)
        advances = [advance(found.before, tf.convert_to_tensor(found.own)) for found in changed]
        sums = [tf.math.multiply_no_nan(value, examples) for value in advances]  # a mask may hold infinity
        *totals, count = all_reduce([*sums, examples])
        for found, total in zip(changed, totals, strict=True):
            found.own.assign(tf.where(count > 0, combined(found.before, total, count), found.before))
    return result


def write_tested(
    strategy: tf.distribute.Strategy,
    layer_state: LayerState,
    changes: Sequence[bool],
    sums: Sums,
    before: Sequence[tf.Tensor],
) -> None:
    """Write what layers assign in a pass of a `Step` without training, as Keras does; in replica context.

    Args:
        strategy: one whose replicas have copies of their own.
        layer_state: of the model.
        changes: for each of its variables whether the pass assigns it.
        sums: what the pass adds.
        before: the values that the variables had.
    """
    reduced = all_reduce({"state": sums["state"], "examples": sums["totals"][EXAMPLES]})
    count, replica = reduced["examples"], local_replica(strategy)
    new = layer_state.new_values(changes, reduced["state"], before, count)
    for variable, old, value in zip(layer_state.variables, before, new, strict=True):
        if value is not None:
            own_copy(variable, replica).assign(tf.where(count > 0, value, old))
