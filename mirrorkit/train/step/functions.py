"""The arithmetic of a step: pure functions of tensors, traced once and the same on every replica.

`train_sums` and `test_sums` give what one shard adds; `new_values` what follows from the sums over all shards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit._types import KerasModel, KerasOptimizer, Nest, Sums, Variable
from mirrorkit.errors import StepError
from mirrorkit.optim import Joined
from mirrorkit.train.keras_model.calling import call_model, require_no_foreign_weights, with_values
from mirrorkit.train.keras_model.layer_state import LayerState, is_seed
from mirrorkit.train.keras_model.outputs import UnpackedBatch, count_examples, match, unpack_batch
from mirrorkit.train.reduce.gathering import gathering, rows_of_all
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.reduce.sparse_gradient import SparseGradient, SummedSparseGradient, as_rows, dense_of
from mirrorkit.train.reduce.tracing import TraceOnce, foreign_state, outside_replica, require_only_read
from mirrorkit.train.step.averages import Averages
from mirrorkit.train.step.changing import Changing, dense
from mirrorkit.train.step.clock import Clock
from mirrorkit.train.step.devices import OneDevice
from mirrorkit.train.step.empty_shares import has_no_rows, of_size
from mirrorkit.train.step.facts import ShardSums, TraceFacts, sent_by_rows
from mirrorkit.train.step.loop_step import Pass
from mirrorkit.train.step.loss_scale import all_finite, only_if, scaled
from mirrorkit.train.step.options import Options
from mirrorkit.train.step.own_loss import names_of_values
from mirrorkit.train.step.replicated_optimizer import Gradient, Kept, ReplicatedOptimizer
from mirrorkit.train.step.tables import needs_rows
from mirrorkit.train.step.whole_batch import EachExample
from mirrorkit.train.totals.totals import EXAMPLES, Term, Totals, summed


class Functions:
    """The functions of one step; `shards` is into how many one update's examples are cut (replicas times batches).

    Attributes:
        needs_total: whether a shard must know how many rows the whole batch has.
    """

    needs_total = False

    def __init__(
        self,
        model: KerasModel,
        optimizer: KerasOptimizer,
        options: Options,
        *,
        state: LayerState,
        variables: Changing,
        averages: Averages | None,
        clock: Clock,
        shards: int,
        devices: OneDevice,
        apply: ReplicatedOptimizer,
        loss: EachExample,
    ) -> None:
        self._model, self._apply = model, apply
        self._iterations = next(i for i, v in enumerate(variables.slots) if v is optimizer.iterations)
        self._options = options
        self.state = state
        self.shapes = [tuple(weight.shape) for weight in variables.weights]
        self._variables, self._averages = variables, averages
        self._clock, self._shards = clock, shards
        self._devices, self._loss = devices, loss
        self.communicate(train=state.synchronized or loss.communicates, test=loss.communicates)
        self._new_values = devices.trace_update(self._pure_new_values, lambda: self.facts, alone=apply.alone)
        self._totals: Totals | None = None
        self._facts: TraceFacts | None = None
        self.test_changes: list[bool] | None = None  # for each variable of the layer state, without training

    def communicate(self, *, train: bool, test: bool) -> None:
        """Say in which passes replicas communicate: these must be traced on each replica."""
        self.training, self.testing = (self._devices.replicas(communicate=one) for one in (train, test))
        trace = functools.partial(self._devices.trace, jit_compile=self._options.jit_compile)
        self._sums = trace(self.shard_sums, alone=not train)
        self._test_sums = trace(self.shard_totals, alone=not test)

    def resolve(self, batch: UnpackedBatch, what: Pass = "train") -> None:
        """Find out, once, which loss and metrics belong to which output, and refuse data that does not fit them."""
        if self._totals is None or not self._totals.has_seen(batch):
            self._totals = outside_replica(lambda: self._resolved(batch))
        self._totals.require_targets(batch)

    def _resolved(self, batch: UnpackedBatch) -> Totals:
        given = self._options
        if given.of_values:
            return self._totals or Totals.of_values(names_of_values(self._model, self._variables, batch.x, self.gather))
        with gathering(self.gather):
            if self._totals is None:
                asked = given.losses, given.metrics, given.unchecked
                return Totals.resolve(self._model, batch, *asked, trains=given.trains)
            return self._totals.checked(self._model, batch, given.unchecked)

    @property
    def totals(self) -> Totals:
        """What the totals hold; known once a batch was seen."""
        if self._totals is None:
            raise StepError(
                "What a step measures is known once it has seen a batch. Call strategy.run(step.compute, "
                "args=(batch,)) first, or strategy.run(step.test, args=(batch,))."
            )
        return self._totals

    @property
    def facts(self) -> TraceFacts:
        """What tracing found out; known once the step was traced."""
        if self._facts is None:
            raise StepError(
                "Which weights have a gradient is known once `compute` was traced. Call strategy.run(step.compute, "
                "args=(batch,)) before step.update, which takes the sums that it returns."
            )
        return self._facts

    @property
    def only_read(self) -> list[Variable]:
        """Variables that training reads and no update writes: of the layer state, and what losses and metrics read."""
        state = zip(self.state.variables, self.facts.changes, strict=True)
        read = self._sums.variables if isinstance(self._sums, TraceOnce) else []
        return [*(variable for variable, changes in state if not changes and not is_seed(variable)), *read]

    @property
    def weights(self) -> list[Variable]:
        """The weights that it trains."""
        return list(self._variables.weights)

    @property
    def tables(self) -> Sequence[int]:
        """The numbers of the weights that an update writes in place; see `ReplicatedOptimizer`."""
        return self._apply.tables

    def gather(self, rows: Nest) -> Nest:
        """What `mk.train.all_gather` does in a trace that is the same for every shard."""
        return self._loss.gather(rows)

    def train_sums(
        self,
        values: Changing,
        batch: Nest,
        place: tf.Tensor,
        is_all: bool | tf.Tensor = False,
        largest: int | None = None,
        total: tf.Tensor | None = None,
    ) -> Sums:
        """Return what a shard adds: gradients, layer state and totals, a nest of float tensors; zeros without any rows.

        Of `values` only weights, state and scale are needed; `place` is for the seeds, see `LayerState.seeded`;
        `is_all` as of `Copies`. Where the size of the `largest` shard is given, gradients of tables stay rows. `total`
        is how many rows the whole batch has, where that must be known.
        """
        known = [] if total is None else [total]
        like, by_rows = None, functools.partial(sent_by_rows, weights=self.weights, always=self._apply.lazy)
        if largest and self.tables and not self.training.communicate:
            like = self._sums.trace(values, of_size(batch, largest), place, *known).structured_outputs
        elif self._apply.lazy:
            raise needs_rows("the size of the batch is not known, or several batches make an update")
        if has_no_rows(batch) and not self.training.communicate:
            if self._facts is None:
                self._found(like or self._sums.trace(values, of_size(batch, None), place, *known).structured_outputs)
            return self.facts.zeros if like is None else by_rows(like.nothing, like)
        with gathering(functools.partial(rows_of_all, is_all=is_all)):
            sums = self._sums(values, batch, place, *known)
        self._found(sums)
        return sums.sent(self._dense) if like is None else by_rows(sums, like)

    def _dense(self, weight: int, rows: SparseGradient) -> tf.Tensor:
        return dense_of(rows.ids, rows.values, self.shapes[weight][0])

    def _found(self, sums: ShardSums) -> None:
        """Keep the facts of the first trace, and refuse another that finds others."""
        facts = TraceFacts.of(sums, self.shapes)
        self._facts = self._facts or facts
        self._facts.require_same(facts)

    def test_sums(
        self,
        values: Changing,
        batch: Nest,
        place: tf.Tensor,
        is_all: bool | tf.Tensor = False,
        total: tf.Tensor | None = None,
    ) -> Sums:
        """Return what a shard adds without training: totals, and of the layer state that changes; see `train_sums`."""
        known = [] if total is None else [total]
        if has_no_rows(batch) and not self.testing.communicate:
            if self.test_changes is None:
                found = self._test_sums.trace(values, of_size(batch, None), place, *known).structured_outputs[1]
                self.test_changes = [value is not None for value in found]
            state = [tf.zeros(v.shape) for v, has in zip(self.state.variables, self.test_changes, strict=True) if has]
            return {"totals": tf.zeros([self.totals.size]), "state": state}
        with gathering(functools.partial(rows_of_all, is_all=is_all)):
            totals, state = self._test_sums(values, batch, place, *known)
        self.test_changes = [value is not None for value in state]
        return {"totals": totals, "state": [value for value in state if value is not None]}

    def shard_sums(self, values: Changing, batch: Nest, place: tf.Tensor) -> ShardSums:
        """Return what a shard adds; traced by `train_sums`."""
        weights = values.weights

        def sums() -> ShardSums:
            own_state = self.state.seeded(values.state, place)
            with tf.GradientTape(persistent=tf.executing_eagerly()) as tape:  # see `_gradients`
                tape.watch(weights)
                terms, totals, new_state = self.forward(weights, own_state, batch, training=True, tape=tape)
                objectives = [self._scaled(term, totals, values.scale) for term in terms]
            found = _gradients(tape, [objective for objective, _ in objectives], weights)
            tables = [i for i in self.tables if sum(of_term[i] is not None for of_term in found) == 1]
            gradients = {}
            for term, (_, unscale), of_term in zip(terms, objectives, found, strict=True):
                gradients[term.divisor] = [self._sum(i, g, unscale, i in tables) for i, g in enumerate(of_term)]
            if all(gradient is None for of_term in gradients.values() for gradient in of_term):
                raise StepError(
                    "The loss does not depend on any trainable weight of the model. Look at loss and model."
                )
            return ShardSums(gradients, self.state.sums(own_state, new_state, lambda: totals[EXAMPLES]), totals)

        of_shard: ShardSums = self.training.run(batch, sums)
        return of_shard

    def _sum(
        self, weight: int, gradient: Any, unscale: Callable[[tf.Tensor], tf.Tensor], may_be_rows: bool
    ) -> tf.Tensor | SparseGradient | None:
        """Return a weight's gradient as it is sent: None, rows, or dense."""
        if gradient is None:
            return None
        rows = as_rows(gradient, unscale) if may_be_rows else None
        if rows is None and self._apply.lazy and weight in self.tables:
            raise needs_rows(f"the gradient of {self.weights[weight].path!r} is not by rows")
        return unscale(dense(gradient, self.shapes[weight])) if rows is None else rows

    def shard_totals(self, values: Changing, batch: Nest, place: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
        """Return the same without training; traced by `test_sums`."""

        def totals() -> tuple[tf.Tensor, list[tf.Tensor | None]]:
            own_state = self.state.seeded(values.state, place)
            with tf.GradientTape() as tape:
                _, totals, new_state = self.forward(values.weights, own_state, batch, training=False, tape=tape)
            return totals, self.state.sums(own_state, new_state, lambda: totals[EXAMPLES])

        found: tuple[tf.Tensor, list[tf.Tensor | None]] = self.testing.run(batch, totals)
        return found

    def objective(
        self, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], batch: Nest, place: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """Return what a shard's step minimizes; outside of the training, with these values of weights and state."""
        with tf.GradientTape() as tape:
            terms, *_ = self.forward(weights, self.state.seeded(state, place), batch, training=training, tape=tape)
        return summed([term.numerator for term in terms])

    def forward(
        self,
        weights: Sequence[tf.Tensor],
        state: Sequence[tf.Tensor],
        batch: Nest,
        *,
        training: bool,
        tape: tf.GradientTape,
    ) -> tuple[list[Term], tf.Tensor, list[tf.Tensor]]:
        """Return what to minimize, the totals, and the layer state after the pass."""
        batch = unpack_batch(batch)
        with self._loss.tracing():
            y_pred, new_state, added = call_model(self._model, weights, state, batch.x, training=training)
            require_no_foreign_weights(tape, weights)
            if self._shards > 1 and "state" not in self._options.unchecked and not tf.executing_eagerly():
                self.state.require_no_rows(state, new_state, batch.x)
            outputs = match(self.totals.names, batch.y, y_pred, batch.weight)
            with with_values(self._model, weights, new_state) as assigned:  # which a loss or a metric may read
                terms, totals = self.totals.of(outputs, tf.cast(count_examples(batch), tf.float32), added)
            if assigned:
                raise foreign_state([f"the Keras variable {path!r} (assigned in a loss)" for path in assigned.values()])
        return terms, totals, new_state

    def _scaled(
        self, term: Term, totals: tf.Tensor, scale: list[tf.Tensor]
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        """Return a term as float16 is to see it, and what makes its gradient that of the term again."""
        if self._options.loss_scale is None:
            return term.numerator, lambda gradient: gradient
        share = totals[term.divisor]
        if self.training.communicate:  # which mixes gradients: one number for all
            share = all_reduce(share) / tf.distribute.get_replica_context().num_replicas_in_sync
        return scaled(term.numerator, share * self._shards, scale[0])

    def new_values(self, sums: Sums, flat: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor | None], tf.Tensor]:
        """Return the new value of each variable (None where it stays) and the totals, from the reduced sums."""
        rate = [] if self._clock.rate is None else [self._clock.rate]
        found = self._apply.update(self._new_values, sums, flat, rate)
        if isinstance(self._new_values, TraceOnce):
            require_only_read(self._new_values.variables, self._variables.flat)
        return found

    def _pure_new_values(
        self, sums: Sums, flat: Sequence[tf.Tensor], rate: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor | None], tf.Tensor, Nest]:
        """Return new values and totals, and what is left to do: the gradients of tables, and whether they count."""
        old, totals = self._variables.regroup(flat), sums["totals"]
        gradients, rows = self._apply.summed(sums["gradients"], self.facts)
        divisors = [totals[index] for index in self.facts.divisors]
        weights, slots, averages = self._applied(old, gradients, rows, divisors, rate)
        left = [weights[i] for i in self.tables]
        weights = [None if i in self.tables else value for i, value in enumerate(weights)]
        state = self.state.new_values(self.facts.changes, sums["state"], old.state, totals[EXAMPLES])
        if self._averages is not None:
            rest, iterations = old.averages[len(weights) :], old.slots[self._iterations]
            averages = [*averages, *self._averages.new_state_values(rest, old.state, state, iterations)]
        new = [*weights, *slots, *state, *averages]
        if self._options.loss_scale is None:
            return new, totals, (left, [])
        finite = all_finite(gradients)
        new = only_if(finite, new, old._replace(scale=[]).flat)
        return [*new, *self._options.loss_scale.new_values(finite, old.scale)], totals, (left, [finite])

    def _applied(
        self,
        old: Changing,
        gradients: Sequence[tf.Tensor],
        rows: Mapping[int, SummedSparseGradient],
        divisors: Sequence[tf.Tensor],
        rate: Sequence[tf.Tensor],
    ) -> tuple[Kept, Kept, Kept]:
        """Return the new weights, slots and averages of the weights."""

        def average(averages: Sequence[tf.Tensor], weights: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
            iterations = old.slots[self._iterations]
            return [] if self._averages is None else self._averages.new_values(averages, weights, iterations)

        mean = functools.partial(self._mean_gradients, flat=gradients, divisors=divisors)
        of_weights = old._replace(averages=old.averages[: len(old.weights)])
        gradient = Gradient(mean, average, rate[0] if rate else None, rows)
        return self._apply.new_values(of_weights, gradient, self.facts, self._devices.stages)

    def _mean_gradients(
        self, joined: Joined, flat: Sequence[tf.Tensor], divisors: Sequence[tf.Tensor]
    ) -> list[tf.Tensor | None]:
        """Return the clipped gradient of the whole batch: one for each joined weight, None where it has none."""
        means = self.facts.means(joined, flat, divisors)
        clipped = iter(self._options.clip([gradient for gradient in means if gradient is not None]))
        return [None if gradient is None else next(clipped) for gradient in means]


def _gradients(
    tape: tf.GradientTape, objectives: Sequence[tf.Tensor], weights: Sequence[tf.Tensor]
) -> list[Sequence[Any]]:
    """Return the gradients of each objective.

    A persistent tape gives several, too; without a graph nothing else does. But in one, TensorFlow puts a loop that is
    recorded by such a tape into a function of its own, and parts of the loop onto the first replica's device: a
    recurrent layer copies its state there and back at each time step.
    """
    if len(objectives) == 1 or tf.executing_eagerly():
        return [tape.gradient(objective, weights) for objective in objectives]
    return [tf.gradients(objective, weights) for objective in objectives]
