"""What layers assign while a model predicts, or a user's own step tests: the same on all replicas afterwards.

Such a pass runs with the real variables, so that its loops draw new numbers in each round. Each replica writes its own
copy; then all copies get one value, by the rule of layer state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from mirrorkit._types import KerasModel, KerasVariable, Nest, Variable
from mirrorkit.strategy import local_replica
from mirrorkit.train.keras_model.calling import require_assignable
from mirrorkit.train.keras_model.layer_state import advance, combined, is_generator
from mirrorkit.train.keras_model.outputs import count_examples
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.replica_code.scope import Assignments, adds_up
from mirrorkit.train.step.global_batch import has_no_rows, unless_empty


def run_and_combine(
    strategy: tf.distribute.Strategy,
    variables: Iterable[Variable],
    rows: Nest,
    compute: Callable[[Nest], Nest],
    *,
    tables: Iterable[KerasVariable] = (),
    outputs: bool = True,
    always: bool = False,
    model: KerasModel | None = None,
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
        model: of which this is a prediction, so that its seed generators get the states back that they had, and a
            weight that is assigned is refused.
    """
    # Traced as a share of unknown size: the others must know what it assigns.
    if has_no_rows(rows) and not always and not tf.executing_eagerly():
        rows = tf.nest.map_structure(lambda t: tf.compat.v1.placeholder_with_default(t, [None, *t.shape[1:]]), rows)
    with Assignments(local_replica(strategy), variables, tables=tables) as scope:
        result = unless_empty(rows, lambda: compute(rows), always=always, rows_of_none=outputs)
    if model is not None:
        require_assignable(model, scope.noted)
    changed = []
    for found in scope.noted.values():
        if model is not None and is_generator(found.variable):
            found.own.assign(found.before)
        elif not adds_up(found.variable):
            changed.append(found)
    if changed:
        examples = tf.cast(count_examples(rows), tf.float32)
        advances = [advance(found.before, tf.convert_to_tensor(found.own)) for found in changed]
        # A mask may hold infinity.
        sums = [tf.math.multiply_no_nan(value, tf.cast(examples, value.dtype)) for value in advances]
        write_means([found.own for found in changed], [found.before for found in changed], sums, examples)
    return result


def write_means(
    own: Iterable[tf.Variable], before: Iterable[tf.Tensor], sums: Sequence[tf.Tensor], examples: tf.Tensor
) -> None:
    """Write means over all examples into a replica's copies of variables, where there are examples; in replica context.

    Args:
        own: the copies, on a strategy whose replicas have some of their own.
        before: the values that they had.
        sums: what this replica's examples add to each.
        examples: how many these are.
    """
    count, *totals = all_reduce([examples, *sums])
    for variable, old, total in zip(own, before, totals, strict=True):
        variable.assign(tf.where(count > 0, combined(old, total, count), old))
