"""A model's own `train_step` and `test_step` as functions of values: weights, layer state, states of metrics.

Nothing is assigned and no update is made. What the optimizer is given is the gradient, and metrics begin at zero, so
that what they hold afterwards is a part of a sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, KerasOptimizer, KerasVariable, Nest
from mirrorkit.errors import StepError
from mirrorkit.optim import trainable_variables
from mirrorkit.train.keras_model.calling import Scope
from mirrorkit.train.reduce.gathering import Gather
from mirrorkit.train.replica_code.scope import Share, ShareScope
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
    gradients: dict[int, Any]  # of the mean over the rows, by the id of the weight; None where there is none


class Divisor(NamedTuple):
    """What divides a mean over something else than rows."""

    own: tf.Tensor  # what counts in these rows
    portion: tf.Tensor  # their part, by rows, of what counts in the whole batch


class Term(NamedTuple):
    """A part of the gradient that a divisor of its own divides: that of a mean over something else than rows."""

    gradients: list[Any]  # one for each source, None where there is none
    divisor: Divisor


class PureScope(ShareScope, Scope):
    """Within it a model's own step runs on one replica's rows.

    Args:
        share, by_user: see `ShareScope`.
        weights: each trained variable, and its value.
        others: the other variables that the step may read and assign, and their values.
        scale: what the loss is multiplied by; None where its gradient is to be that of the mean over the rows.
        is_part: whether that makes it the share's part of the loss of the whole batch, and not a mean over its rows.
        gather: what gathers the rows of parts that are computed one after the other, in a check; else None.
        separates: whether gradients of means over something else than rows are kept apart, since several batches make
            an update.
        differentiates: whether gradients are taken; else they are zeros.

    Attributes:
        applied: what the one update was given.
        asks: whether a mean is over something else than rows, so that replicas have to ask each other.
        is_scaled: whether the loss scale was asked for.
        at_update: how many operations the graph had when the update was made.
        minimized: of what the last gradient was taken.
        means: the means that were taken, and that a divisor of their own divides.
        terms: the parts of the last gradient that were kept apart, and in `rest` what is left of it.
    """

    is_pure = True

    def __init__(
        self,
        share: Share,
        weights: Sequence[tuple[KerasVariable, Any]],
        others: Sequence[tuple[KerasVariable, tf.Tensor]],
        *,
        scale: tf.Tensor | None,
        is_part: bool,
        gather: Gather | None,
        separates: bool,
        by_user: bool,
        differentiates: bool,
    ) -> None:
        ShareScope.__init__(self, share, by_user)
        Scope.__init__(self, [*weights, *others])
        self.scale, self.is_part, self.separates = scale, is_part, separates
        self.differentiates = differentiates
        self.applied: Applied | None = None
        self.asks = self.is_scaled = False
        self.at_update = 0
        self.minimized: Any = None
        self.divisor: Divisor | None = None  # of the mean that is being taken
        self.terms: list[Term] = []
        self.rest: Sequence[Any] | None = None
        self.means: list[tuple[tf.Tensor, Divisor]] = []
        self._weights = {id(variable): value for variable, value in weights}
        # A frozen weight is watched too: Keras leaves TensorFlow's variable trainable.
        floats = [(native(variable), value) for variable, value in others if value.dtype.is_floating]
        self._watched = [*self._weights.values(), *(value for one, value in floats if getattr(one, "trainable", False))]
        self._gather = gather

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
        self.applied = Applied(optimizer, dict(zip(map(id, given), gradients, strict=True)))
        self.at_update = 0 if self._graph is None else len(self._graph.get_operations())

    def portion(self, own: tf.Tensor) -> tf.Tensor:
        """Return its part, by rows, of a number that is added up over all replicas; see `ShareScope`."""
        self.asks = True
        if self._gather is None:
            return super().portion(own)
        total, rows = tf.unstack(tf.reduce_sum(self._gather(tf.stack([own, self.share.rows])[tf.newaxis]), 0))
        return total * self.share.rows / rows

    def divided(self, mean: tf.Tensor) -> tf.Tensor:
        """Return a mean that was taken, and remember it where a divisor of its own divides it."""
        divisor, self.divisor = self.divisor, None
        if divisor is not None and self.separates:
            mean = tf.identity(mean)
            self.means.append((mean, divisor))
        return mean

    def separate(self, target: tf.Tensor, sources: Nest) -> None:
        """Take the gradient apart, of a loss in a graph that is linear in its means."""
        flat = tf.nest.flatten(sources)
        self.rest = tf.gradients(target, flat, stop_gradients=[mean for mean, _ in self.means])
        self.terms = [
            Term(tf.gradients(mean, flat, grad_ys=tf.gradients(target, mean)), divisor) for mean, divisor in self.means
        ]

    def summaries(self) -> None:
        """Refuse to write a summary."""
        raise NotAFunction("it calls tf.summary")

    def refusal(self, why: str, cure: str) -> NotAFunction:
        """See `ShareScope`; the cure is that of a step with variables."""
        return NotAFunction(why)


class Values(NamedTuple):
    """What a step reads: values of the trainable and non-trainable variables, and of `metric_variables`."""

    weights: Sequence[tf.Tensor]
    state: Sequence[tf.Tensor]
    metrics: Sequence[tf.Tensor]


class Ran(NamedTuple):
    """What a step comes to on one replica's rows."""

    gradients: list[Any]  # of the mean over the rows, one for each trainable variable; None where there is none
    state: list[tf.Tensor]  # the same tensor where nothing was assigned
    metrics: list[tf.Tensor]
    logs: Mapping[str, tf.Tensor]
    scope: PureScope


def metric_variables(model: KerasModel) -> list[KerasVariable]:
    """Return those of the metrics that Keras resets and reads: the model's, also where it hides those of `compile`."""
    metrics = [*keras.Model.metrics.fget(model), *model.metrics]
    variables = itertools.chain(*(metric.variables for metric in metrics))
    return list({id(variable): variable for variable in variables}.values())


def gather_of(shards: int) -> Gather:
    """Return what `mk.train.all_gather` does where each of so many shards is computed by itself."""

    def gather(rows: Nest) -> Nest:
        if shards > 1:
            raise StepError(
                "mk.train.all_gather was called in a step that computes on each shard of a batch alone, where the rows "
                "of other shards are not available. Write a step whose loss is over the whole batch: "
                "mk.train.Step.from_loss(models, optimizer, loss_fn, whole_batch=True), without accumulate; or call it "
                "in `compute` of a step of your own."
            )
        return rows

    return gather
