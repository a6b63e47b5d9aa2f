"""What layers assign while a model predicts, or a user's own step tests: the same on all replicas afterwards.

Such a pass runs with the real variables, so that its loops draw new numbers in each round. Each replica writes its own
copy; then all copies get one value, by the rule of layer state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasVariable, Nest, Variable
from mirrorkit.strategy import is_parameter_server, local_replica
from mirrorkit.train.keras_model.layer_state import advance, combined
from mirrorkit.train.keras_model.outputs import count_examples
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.step.empty_shares import has_no_rows, unless_empty
from mirrorkit.variables import copies


def has_copies(strategy: tf.distribute.Strategy) -> bool:
    """Return whether each replica can write by itself, to a copy of each variable that is its own."""
    central = isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)
    return not central and not is_parameter_server(strategy)


def own_copy(variable: Variable, replica: int) -> tf.Variable:
    """Return the copy of a local replica; the variable itself where there is one."""
    own = copies(variable)
    return own[0] if len(own) == 1 else own[replica]


class Assigned(NamedTuple):
    """A variable that a pass assigned."""

    variable: KerasVariable
    own: tf.Variable  # this replica's copy
    before: tf.Tensor


class Assignments(keras.StatelessScope):  # type: ignore[name-defined, misc]
    """Within it an assignment goes to this replica's copy of a Keras variable, and is noted; in replica context."""

    def __init__(self, strategy: tf.distribute.Strategy, variables: Iterable[Variable]) -> None:
        super().__init__()
        self._replica = local_replica(strategy)
        # Found now: within a layer of mixed precision, Keras gives a cast value in place of the variable.
        self._own = {id(variable): own_copy(variable, self._replica) for variable in variables}
        self._around: Callable[[], Any] = contextlib.nullcontext
        if not tf.executing_eagerly():
            self._around = tf.compat.v1.get_default_graph().as_default
        self.noted: dict[int, Assigned] = {}  # by the id of the variable

    def add_update(self, update: tuple[KerasVariable, tf.Tensor]) -> None:
        """Write at once."""
        variable, value = update
        self.__exit__()  # to Keras, a plain assignment
        try:
            if id(variable) not in self.noted:
                own = self._own[id(variable)] if id(variable) in self._own else own_copy(variable, self._replica)
                with self._around():  # the value is needed after a loop or branch that assigns it
                    self.noted[id(variable)] = Assigned(variable, own, tf.identity(own))
            own = self.noted[id(variable)].own
            own.assign(tf.cast(value, own.dtype))
        finally:
            self.__enter__()


def run_and_combine(
    strategy: tf.distribute.Strategy,
    variables: Iterable[Variable],
    rows: Nest,
    compute: Callable[[Nest], Nest],
    *,
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
        outputs: whether these are [rows, ...]; else sums, of static shape.
        always: whether every replica runs it, since it may talk to the others.
        stays: whether a variable gets the value back that it had.
        check: called with the path of each assigned variable by its id; may refuse.
    """
    # Traced as a share of unknown size: the others must know what it assigns.
    if has_no_rows(rows) and not always and not tf.executing_eagerly():
        rows = tf.nest.map_structure(lambda t: tf.compat.v1.placeholder_with_default(t, [None, *t.shape[1:]]), rows)
    with Assignments(strategy, variables) as scope:
        result = compute(rows) if always else unless_empty(rows, lambda: compute(rows), rows_of_none=outputs)
    check({key: found.variable.path for key, found in scope.noted.items()})
    changed = [found for found in scope.noted.values() if not _may_differ(found.variable)]
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


def _may_differ(variable: KerasVariable) -> bool:
    """Whether replicas keep parts of a sum, as those of a metric."""
    return getattr(variable, "synchronization", None) == "on_read"
