"""The variables of a model while its own code runs on a replica: each replica writes its copy, and all become equal.

What the code writes from its share of a batch is an average over the rows of the share, or for metrics a sum. It is
combined over the replicas when it is next read, with the gradients of the next update, or with the logs at the end of
the step, in one message for all that was written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasOptimizer, KerasVariable, Variable
from mirrorkit.errors import StepError
from mirrorkit.optim import Joined, functional_apply, trainable_variables
from mirrorkit.train.ambient import ambient
from mirrorkit.train.keras_model.calling import graph_of_now
from mirrorkit.train.keras_model.layer_state import advance, combined, some_follow, summed_as
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.reduce.tracing import TraceOnce
from mirrorkit.train.reduce.transforms import Transforms
from mirrorkit.train.replica_code.pure_step import Share, ShareScope
from mirrorkit.variables import own_copy, path


class Assigned(NamedTuple):
    """A variable that was assigned."""

    variable: KerasVariable
    own: tf.Variable  # this replica's copy
    before: tf.Tensor


class Assignments(keras.StatelessScope):  # type: ignore[name-defined, misc]
    """Within it Keras assigns this replica's copy of a variable; in replica context.

    Keras tells a `StatelessScope` each value that it assigns; unlike its base class this one assigns at once.

    Args:
        replica: the number of the replica among those of this process.
        variables: those whose copies are looked up now. Later they may not be found: within a layer of mixed precision,
            Keras gives a cast value in place of a variable.
        tables: those of which Keras gets this replica's copy, to read rows of it, and not the value.
        collect_losses: as of a `StatelessScope`.

    Attributes:
        noted: what was assigned, by the id of the variable.
    """

    def __init__(
        self,
        replica: int,
        variables: Iterable[Variable],
        *,
        tables: Iterable[KerasVariable] = (),
        collect_losses: bool = False,
    ) -> None:
        mapping = [(variable, own_copy(variable, replica)) for variable in tables]
        super().__init__(state_mapping=mapping, collect_losses=collect_losses)
        self._replica = replica
        self._own = {id(variable): own_copy(variable, replica) for variable in variables}
        self._graph = graph_of_now()
        self.noted: dict[int, Assigned] = {}

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Let Keras variables be plain ones within the block."""
        with ambient.set(scope=None):
            self.__exit__()
            try:
                yield
            finally:
                self.__enter__()

    def own(self, variable: KerasVariable) -> tf.Variable:
        """Return this replica's copy."""
        return self._own[id(variable)] if id(variable) in self._own else own_copy(variable, self._replica)

    def add_update(self, update: tuple[KerasVariable, tf.Tensor]) -> None:
        """Assign this replica's copy."""
        variable, value = update
        with self.outside():
            if id(variable) not in self.noted:
                own = self.own(variable)
                # The value before is needed after a loop or branch that assigns.
                with contextlib.nullcontext() if self._graph is None else self._graph.as_default():
                    self.noted[id(variable)] = Assigned(variable, own, tf.identity(own))
            own = self.noted[id(variable)].own
            own.assign(tf.cast(value, own.dtype))


class ReplicaScope(ShareScope, Assignments):
    """Within it a model's own step runs: what it assigned is the same on all replicas when it is read; in a graph.

    Args:
        share, by_user: see `ShareScope`.
        variables: of the model, Keras's.
        plain: `tf.Variable`s that the step writes. Keras tells nothing of them; they are combined at the end.
        updates: of each optimizer, by its id and those of the variables that it is given gradients of, its update as a
            pure function, traced once for all replicas.
        transforms: of the gradients that each optimizer is given, by its id.

    Attributes:
        noted: what was assigned since replicas were last equal.
        applied: the gradients that each update of an optimizer was given, averaged over all rows.
    """

    def __init__(
        self,
        share: Share,
        variables: Sequence[Variable],
        plain: Sequence[tf.Variable],
        updates: dict[tuple[int, ...], TraceOnce],
        transforms: Mapping[int, Transforms],
        *,
        by_user: bool = True,
    ) -> None:
        ShareScope.__init__(self, share, by_user)
        Assignments.__init__(self, share.replica, variables, collect_losses=True)
        self._updates, self._transforms = updates, transforms
        owned = [(variable, own_copy(variable, share.replica)) for variable in plain]
        self._plain = [Assigned(variable, own, tf.identity(own)) for variable, own in owned]
        self.applied: list[Sequence[tf.Tensor]] = []

    def get_current_value(self, variable: KerasVariable) -> Any:
        """Return what Keras reads: the variable, after all replicas came to one value."""
        if id(variable) in self.noted:
            self.combine()
        with self.outside():
            return variable.value

    def add_update(self, update: tuple[KerasVariable, tf.Tensor]) -> None:
        """Assign this replica's copy; what every replica assigns alike need not be combined."""
        super().add_update(update)
        if not adds_up(update[0]) and not self.may_differ([tf.identity(update[1])]):
            del self.noted[id(update[0])]

    def may_differ(self, values: Sequence[tf.Tensor]) -> bool:
        """Return whether other replicas may have other values; those of variables are the same on all."""
        is_told = self.share.differs is not None and graph_of_now() is self._graph
        return not is_told or some_follow(values, self.share.differs)

    def combine(self, values: Sequence[tf.Tensor] = ()) -> Sequence[tf.Tensor]:
        """Give all copies of what was written one value; return the means over all rows of means over each share.

        Whole numbers that are the same on all replicas stay so: they are divided after the sum.
        """
        written, self.noted = list(self.noted.values()), {}
        if self.share.replicas == 1:
            return values
        if written:
            self.require_outermost(f"the variable {path(written[0].variable)!r} is read after it was written")
        rows, total = self.share.rows * self.share.once, self.share.total
        with self.outside():
            weighed = []
            for variable, own, before in written:
                now = tf.ensure_shape(tf.convert_to_tensor(own), before.shape)
                if adds_up(variable):
                    weighed.append((tf.cast(now - before, summed_as(now.dtype)), self.share.once))
                else:
                    weighed.append((advance(before, now), rows))
            weighed += [(value, rows) for value in values]
            # A mask may hold infinity.
            sums = all_reduce([tf.math.multiply_no_nan(value, tf.cast(by, value.dtype)) for value, by in weighed])
            for (variable, own, before), change in zip(written, sums, strict=False):
                if adds_up(variable):
                    own.assign(before + tf.cast(change, own.dtype))
                else:
                    own.assign(combined(before, change, total))
            return [value / tf.cast(total, value.dtype) for value in sums[len(written) :]]

    def apply(self, optimizer: KerasOptimizer, gradients: Sequence[Any], variables: Any) -> None:
        """Average gradients over all rows, and make the same update of this replica's copies as every other replica."""
        if not gradients:
            return
        self.require_outermost(f"{type(optimizer).__name__}.apply is called")
        own_variables = trainable_variables(optimizer)
        given = own_variables if variables is None else list(variables)
        pairs = [(tf.convert_to_tensor(g), v) for g, v in zip(gradients, given, strict=True) if g is not None]
        means = self.combine([tf.ensure_shape(gradient, variable.shape) for gradient, variable in pairs])
        with self.outside():
            self.applied.append(means)
            of, transforms = [variable for _, variable in pairs], self._transforms[id(optimizer)]
            changing = [*own_variables, *optimizer.variables, *transforms.variables]
            key = (id(optimizer), *map(id, of))
            if key not in self._updates:
                self._updates[key] = TraceOnce(_pure_update(optimizer, of, given, transforms))
            own = [self.own(variable) for variable in changing]
            step = tf.cast(self.own(optimizer.iterations), tf.int32)
            new = self._updates[key]([tf.convert_to_tensor(variable) for variable in own], means, step)
            for variable, value in zip(own, new, strict=True):
                if value is not None:
                    variable.assign(value)

    def end(self, values: Sequence[tf.Tensor] = ()) -> Sequence[tf.Tensor]:
        """Combine at the end of the step."""
        self.noted |= {id(one.variable): one for one in self._plain}
        self._plain = []
        return self.combine(values)

    def refusal(self, why: str, cure: str) -> StepError:
        """See `ShareScope`."""
        return StepError(f"In the model's train_step {why}{cure}")


def adds_up(variable: KerasVariable) -> bool:
    """Return whether a variable is a metric's, of which replicas keep parts of a sum."""
    return bool(getattr(variable, "synchronization", None) == "on_read")


def _pure_update(
    optimizer: KerasOptimizer, of: Sequence[KerasVariable], given: Sequence[KerasVariable], transforms: Transforms
) -> Callable[..., list[tf.Tensor | None]]:
    """Return an update by gradients `of` variables: from the values of all that changes to new ones.

    What changes are the optimizer's variables, its own, and the states of the transforms. Keras warns of variables that
    it is `given` without a gradient.
    """
    trained = trainable_variables(optimizer)
    size, last = len(trained), len(trained) + len(optimizer.variables)
    apart = Joined(trained)

    def update(values: list[tf.Tensor], means: list[tf.Tensor], step: tf.Tensor) -> list[tf.Tensor | None]:
        weights, slots, states = values[:size], values[size:last], values[last:]
        by_id = dict(zip(map(id, of), means, strict=True))
        with ambient.set(inlines=True):  # of a transform, of the optimizer or its schedule
            gradients, states = transforms([by_id.get(id(one)) for one in trained], states, step, apart)
            by_id |= zip(map(id, trained), gradients, strict=True)
            gradients = [by_id.get(id(one)) for one in given]
            weights, slots = functional_apply(optimizer, weights, slots, gradients, of=given)
        return [None if new is old else new for old, new in zip(values, [*weights, *slots, *states], strict=True)]

    return update
