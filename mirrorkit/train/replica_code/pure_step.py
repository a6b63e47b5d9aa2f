"""A replica's share of a batch, and a model's own `train_step` and `test_step` on it as functions of values.

The values are of weights, layer state and states of metrics. Nothing is assigned and no update is made. What the
optimizer is given is the gradient, and metrics begin at zero, so that what they hold afterwards is a part of a sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, KerasOptimizer, KerasVariable, Nest
from mirrorkit.errors import StepError
from mirrorkit.optim import trainable_variables
from mirrorkit.train.keras_model.calling import Scope, graph_of_now, in_loop
from mirrorkit.train.keras_model.keras_operations import Total
from mirrorkit.train.reduce.gathering import Gather
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.variables import native, path


class NotAFunction(BaseException):
    """A step needs real variables, or makes more than one update; the message says why: "it ...".

    No `Exception`, which Keras would catch in a layer and raise with other words. `of_data` says that it failed for the
    data that it was given, which may be none to train on.
    """

    def __init__(self, why: str, *, of_data: bool = False) -> None:
        super().__init__(why)
        self.of_data = of_data


@dataclass(frozen=True)
class Share:
    """The part of a global batch that one replica computes.

    Attributes:
        replica: its number among those of this process.
        replicas: how many there are in all.
        rows: how many rows it computes, a float32 scalar.
        total: how many rows the batch has, likewise.
        once: 1, or 0 where every replica computes all rows and another one counts.
        draw_numbers: what tells its draws from those of others and of other steps, int64 [N].
        differs: tensors of which other replicas have others, from which all else follows that differs; None if not
            known.
    """

    replica: int
    replicas: int
    rows: float | tf.Tensor
    total: float | tf.Tensor
    once: float | tf.Tensor
    draw_numbers: Callable[[], tf.Tensor]
    differs: Nest = None

    @property
    def fraction(self) -> float | tf.Tensor:
        """Its rows by all rows."""
        return self.rows / self.total

    def totals(self) -> tuple[Total, Total]:
        """Return what sums a message over the replicas within the model, for synchronized layers, and its gradient.

        What a replica has is the gradient of a mean over its own rows, and counts by their number when gradients are
        averaged. So the gradients of others that arrive here count by their rows, against its own.
        """
        if self.replicas == 1:
            return tf.identity, tf.identity

        @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
        def total(own: tf.Tensor) -> tf.Tensor:
            return all_reduce(tf.stop_gradient(own)), weighed

        @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
        def weighed(gradient: tf.Tensor) -> tf.Tensor:
            rows = tf.cast(self.rows, gradient.dtype)
            return all_reduce(tf.stop_gradient(gradient) * rows) / rows, total

        return total, weighed


class ShareScope:
    """What the two scopes of a step have in common: the share of the batch, its draws, and where replicas can wait.

    They differ in how a variable is written. A `ReplicaScope` assigns a replica's copy and makes each update, so that a
    step may make several. A `PureScope` keeps values, so that a step can be traced once.

    Args:
        share: what this replica computes.
        by_user: whether it is a user who wrote the step, and not Keras.

    Attributes:
        draws: how many draws were made that have no seed of their own.
    """

    is_pure = False  # whether it is a `PureScope`
    _graph: tf.Graph | None  # that of the step

    def __init__(self, share: Share, by_user: bool) -> None:
        self.share, self.by_user = share, by_user
        self.draws = 0

    def refusal(self, why: str, cure: str) -> BaseException:
        """Return the error about what a step must not do."""
        raise NotImplementedError

    def require_no_loop(self) -> None:
        """Refuse to draw where each round would draw the same."""
        if in_loop(self._graph):
            raise self.refusal(
                "it draws random numbers within a loop",
                " (tf.while_loop, tf.map_fn), where each round would draw the same. Draw those of all rounds before "
                "the loop, or let Python unroll it (`for`).",
            )

    def require_outermost(self, what: str) -> None:
        """Refuse what would make replicas wait for each other within a branch or loop, which one may not come to."""
        if graph_of_now() is not self._graph:
            raise self.refusal(
                f"{what} within a tf.cond, a tf.while_loop or a tf.function",
                ", where replicas cannot wait for each other. Do it in the body of train_step itself; for a choice, "
                "apply gradients that tf.where makes 0.",
            )

    def portion(self, own: tf.Tensor) -> tf.Tensor:
        """Return its part, by rows, of a number that is added up over all replicas, which all must come here.

        They are float32 scalars.
        """
        self.require_outermost("a mean over what a mask or weights leave is taken")
        own_rows = self.share.rows
        total, rows = tf.unstack(all_reduce(tf.stack([tf.stop_gradient(own), tf.cast(own_rows, tf.float32)])))
        return total * own_rows / rows


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
        watched: values that a tape watches as it would their variables.
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
        self.watched = [*self._weights.values(), *(value for one, value in floats if getattr(one, "trainable", False))]
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
