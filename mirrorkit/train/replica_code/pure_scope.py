"""The scope of a model's own step as a function of values: of weights, of layer state, and of the metrics' states.

Nothing is assigned and no update is made. What the optimizer is given is the gradient, and metrics begin at zero, so
that what they hold afterwards is a part of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasOptimizer, KerasVariable, Nest
from mirrorkit.optim import trainable_variables
from mirrorkit.train.keras_model.calling import Scope, in_loop
from mirrorkit.train.reduce.gathering import Gather
from mirrorkit.train.replica_code.scope import Share
from mirrorkit.variables import native, path


class NotAFunction(BaseException):
    """A step needs real variables, or makes more than one update; the message says why: "it ...".

    No `Exception`, which Keras would catch in a layer and raise with other words. `of_data` says that it failed for the
    data that it was given, which may be none to train on.
    """

    def __init__(self, why: str, *, of_data: bool = False) -> None:
        super().__init__(why)
        self.of_data = of_data


class Applied(NamedTuple):
    """What an optimizer was given."""

    optimizer: KerasOptimizer
    variables: list[KerasVariable]
    gradients: list[Any]  # of the mean over the rows; None where there is none


class Divisor(NamedTuple):
    """What divides a mean over something else than rows."""

    own: tf.Tensor  # what counts in these rows
    portion: tf.Tensor  # their part, by rows, of what counts in the whole batch


class Term(NamedTuple):
    """A part of the gradient that a divisor of its own divides: that of a mean over something else than rows."""

    gradients: list[Any]  # one for each source, None where there is none
    divisor: Divisor


class PureScope(Scope):
    """Within it a model's own step runs on one replica's rows.

    Args:
        share: what this replica computes.
        weights: each trained variable, and its value.
        others: the other variables that the step may read and assign, and their values.
        scale: what the loss is multiplied by; None where its gradient is to be that of the mean over the rows.
        is_part: whether that makes it the share's part of the loss of the whole batch, and not a mean over its rows.
        gather: what gathers the rows of parts that are computed one after the other, in a check; else None.
        separates: whether gradients of means over something else than rows are kept apart, since several batches make
            an update.
        by_user: whether it is a user who wrote the step, and not Keras.

    Attributes:
        applied: what the one update was given.
        draws: how many draws were made that have no seed of their own.
        asks: whether a mean is over something else than rows, so that replicas have to ask each other.
        is_scaled: whether the loss scale was asked for.
        assigned: each variable that was assigned, and the value, in order.
        at_update: how many operations the graph had when the update was made.
        minimized: of what the last gradient was taken.
        terms: the parts of the last gradient that were kept apart, and in `rest` what is left of it.
    """

    def __init__(
        self,
        share: Share,
        weights: Sequence[tuple[KerasVariable, Any]],
        others: Sequence[tuple[KerasVariable, tf.Tensor]],
        *,
        scale: tf.Tensor | None = None,
        is_part: bool = False,
        gather: Gather | None = None,
        separates: bool = False,
        by_user: bool = False,
    ) -> None:
        super().__init__(state_mapping=[*weights, *others], collect_losses=True)
        self.share, self.scale, self.is_part = share, scale, is_part
        self.applied: Applied | None = None
        self.draws = 0
        self.asks = self.is_scaled = False
        self.assigned: list[tuple[KerasVariable, tf.Tensor]] = []
        self.at_update = 0
        self.minimized: Any = None
        self.separates, self.by_user = separates, by_user
        self.divisor: Divisor | None = None  # of the mean that is being taken
        self.terms: list[Term] = []
        self.rest: Sequence[Any] | None = None
        self._means: list[tuple[tf.Tensor, Divisor]] = []
        self._weights = {id(variable): value for variable, value in weights}
        # A frozen weight is watched too: Keras leaves TensorFlow's variable trainable.
        floats = [(native(variable), value) for variable, value in others if value.dtype.is_floating]
        self._watched = [*self._weights.values(), *(value for one, value in floats if getattr(one, "trainable", False))]
        self._gather = gather
        self._graph = _graph()

    def get_current_value(self, variable: KerasVariable) -> Any:
        """Return what Keras reads; refuse a weight after the update, which is not made yet."""
        if self.applied is not None and id(variable) in self._weights:
            raise NotAFunction(f"it reads the weight {path(variable)!r} after the update")
        return super().get_current_value(variable)

    def add_update(self, update: tuple[KerasVariable, tf.Tensor]) -> None:
        """Let Keras keep the new value; refuse that of a weight, which follows from its gradient alone."""
        if id(update[0]) in self._weights:
            raise NotAFunction(f"it assigns the weight {path(update[0])!r}")
        super().add_update(update)
        self.assigned.append((update[0], self.state_mapping[id(update[0])]))

    def watch(self, tape: tf.GradientTape) -> None:
        """Let a tape record what is done with the weights."""
        tape.watch(self._watched)

    def sources(self, sources: Nest) -> Nest:
        """Return values in place of Keras's variables, of which a gradient is asked."""
        return tf.nest.map_structure(
            lambda one: self.get_current_value(one) if isinstance(one, keras.Variable) else one, sources
        )

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss as small gradients need it."""
        self.is_scaled = True
        return loss if self.scale is None else loss * tf.cast(self.scale, loss.dtype)

    def apply(self, optimizer: KerasOptimizer, gradients: Sequence[Any], variables: Any) -> None:
        """Keep what an optimizer is given; refuse a second update."""
        self.require_outermost("an update is made")
        if self.applied is not None:
            raise NotAFunction("it makes several updates")
        given = trainable_variables(optimizer) if variables is None else list(variables)
        if other := [path(variable) for variable in given if id(variable) not in self._weights]:
            raise NotAFunction(f"it updates {other[0]!r}, which is not among the model's trainable variables")
        if len(set(map(id, given))) < len(given):
            raise NotAFunction("it gives an optimizer a weight twice")
        self.applied = Applied(optimizer, given, list(gradients))
        self.at_update = 0 if self._graph is None else len(self._graph.get_operations())

    def portion(self, own: tf.Tensor) -> tf.Tensor:
        """Return its part, by rows, of a number that is added up over all replicas; see `Share.portion`."""
        self.require_outermost("a mean over what a mask or weights leave is taken")
        self.asks = True
        if self._gather is None:
            return self.share.portion(own)
        total, rows = tf.unstack(tf.reduce_sum(self._gather(tf.stack([own, self.share.rows])[tf.newaxis]), 0))
        return total * self.share.rows / rows

    def divided(self, mean: tf.Tensor) -> tf.Tensor:
        """Return a mean that was taken, and remember it where a divisor of its own divides it."""
        divisor, self.divisor = self.divisor, None
        if divisor is not None and self.separates:
            mean = tf.identity(mean)
            self._means.append((mean, divisor))
        return mean

    @property
    def means(self) -> int:
        """How many means were taken that a divisor of their own divides."""
        return len(self._means)

    def separate(self, target: tf.Tensor, sources: Nest) -> None:
        """Take the gradient apart, of a loss in a graph that is linear in its means."""
        flat = tf.nest.flatten(sources)
        self.rest = tf.gradients(target, flat, stop_gradients=[mean for mean, _ in self._means])
        self.terms = [
            Term(tf.gradients(mean, flat, grad_ys=tf.gradients(target, mean)), divisor) for mean, divisor in self._means
        ]

    def summaries(self) -> None:
        """Refuse to write a summary."""
        raise NotAFunction("it calls tf.summary")

    def require_no_loop(self) -> None:
        """Refuse to draw where each round would draw the same."""
        if self._graph is not None and in_loop(self._graph):
            raise NotAFunction("it draws random numbers within a loop")

    def require_outermost(self, what: str) -> None:
        """Refuse what cannot be taken out of a branch or loop."""
        if _graph() is not self._graph:
            raise NotAFunction(f"{what} within a tf.cond or a tf.while_loop")


def _graph() -> tf.Graph | None:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
