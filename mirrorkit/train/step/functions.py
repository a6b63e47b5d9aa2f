"""The arithmetic of a step: pure functions of tensors, traced once and the same on every replica.

`train_sums` and `test_sums` give what one shard adds; `new_values` what follows from the sums over all shards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from mirrorkit._types import Batch, KerasModel, KerasOptimizer, Nest, Sums, Variable
from mirrorkit.errors import StepError
from mirrorkit.optim import Joined
from mirrorkit.train.keras_model.calling import call_model, require_no_foreign_weights
from mirrorkit.train.keras_model.layer_state import LayerState, is_seed
from mirrorkit.train.keras_model.outputs import UnpackedBatch, count_examples, match, unpack_batch
from mirrorkit.train.reduce.gathering import gathering, rows_of_all
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.reduce.tracing import TraceOnce, outside_replica
from mirrorkit.train.step.averages import Averages
from mirrorkit.train.step.changing import Changing, dense
from mirrorkit.train.step.clock import Clock
from mirrorkit.train.step.devices import OneDevice
from mirrorkit.train.step.empty_shares import has_no_rows, of_any_size
from mirrorkit.train.step.facts import ShardSums, TraceFacts
from mirrorkit.train.step.loss_scale import all_finite, only_if
from mirrorkit.train.step.options import Options
from mirrorkit.train.step.own_loss import value_names
from mirrorkit.train.step.replicated_optimizer import Gradient, Kept, ReplicatedOptimizer
from mirrorkit.train.step.whole_batch import EachExample
from mirrorkit.train.totals.totals import EXAMPLES, Term, Totals, summed

_FIRST = np.zeros(2, np.int64)  # the place of the first shard of the first step


class Functions:
    """The functions of one step; `shards` is into how many one update's examples are cut (replicas times batches)."""

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
        self._state = state
        self._variables, self._averages = variables, averages
        self._clock, self._shards = clock, shards
        self._devices, self._loss = devices, loss
        # What communicates must be traced on each replica.
        self.training = devices.replicas(communicate=state.synchronized or loss.communicates)
        self.testing = devices.replicas(communicate=loss.communicates)
        trace = functools.partial(devices.trace, jit_compile=options.jit_compile)
        self._sums = trace(self._shard_sums, alone=not self.training.communicate)
        self._test_sums = trace(self._shard_totals, alone=not self.testing.communicate)
        self._new_values = devices.trace_update(self._pure_new_values, lambda: self.facts, alone=apply.alone)
        self._totals: Totals | None = None
        self._facts: TraceFacts | None = None
        self.test_changes: list[bool] | None = None  # for each variable of the layer state, without training

    def resolve(self, batch: UnpackedBatch) -> None:
        """Find out, once, which loss and metrics belong to which output, and refuse data that does not fit them."""
        if self._totals is None or not self._totals.has_seen(batch):
            self._totals = outside_replica(lambda: self._resolved(batch))
        self._totals.require_targets(batch)

    def _resolved(self, batch: UnpackedBatch) -> Totals:
        given = self._options
        if given.of_values:
            return self._totals or Totals.of_values(self._values(batch))
        with gathering(self.gather):
            if self._totals is None:
                asked = given.losses, given.metrics, given.unchecked
                return Totals.resolve(self._model, batch, *asked, trains=given.trains)
            return self._totals.checked(self._model, batch, given.unchecked)

    def _values(self, batch: UnpackedBatch) -> list[str]:
        """Return the names of the values that the user's loss function gives."""

        def values(weights: list[tf.Tensor], state: list[tf.Tensor], x: Nest) -> Nest:
            with gathering(self.gather):
                return call_model(self._model, weights, state, x, training=False)[0]

        groups = (self._variables.weights, self._variables.state)
        known = [[tf.TensorSpec(variable.shape, variable.dtype) for variable in group] for group in groups]
        trace = TraceOnce(values, reads=True).trace
        return value_names(batch.x, lambda x: trace(*known, x).structured_outputs)

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
        state = zip(self._state.variables, self.facts.changes, strict=True)
        read = self._sums.variables if isinstance(self._sums, TraceOnce) else []
        return [*(variable for variable, changes in state if not changes and not is_seed(variable)), *read]

    def gather(self, rows: Nest) -> Nest:
        """What `mk.train.all_gather` does in a trace that is the same for every shard."""
        return self._loss.gather(rows)

    def train_sums(self, values: Changing, batch: Nest, place: tf.Tensor, is_all: bool | tf.Tensor = False) -> Sums:
        """Return what a shard adds: gradients, layer state and totals, a nest of float tensors; zeros without any rows.

        Of `values` only weights, state and scale are needed; `place` is for the seeds, see `LayerState.seeded`;
        `is_all` as of `Copies`.
        """
        if has_no_rows(batch) and not self.training.communicate:
            if self._facts is None:
                self._found(self._sums.trace(values, of_any_size(batch), place).structured_outputs)
            return self.facts.zeros
        with gathering(functools.partial(rows_of_all, is_all=is_all)):
            sums = self._sums(values, batch, place)
        self._found(sums)
        return sums.sent

    def _found(self, sums: ShardSums) -> None:
        """Keep the facts of the first trace, and refuse another that finds others."""
        facts = TraceFacts.of(sums)
        self._facts = self._facts or facts
        if self._facts != facts:
            raise StepError(
                "For batches of this shape other weights have a gradient, or another layer state changes, than for "
                "those before: the model or the loss computes something else, or a layer's `trainable` was changed "
                "since. Let it do the same for batches of any size, or make a new optimizer and a new Step."
            )

    def test_sums(self, values: Changing, batch: Nest, place: tf.Tensor, is_all: bool | tf.Tensor = False) -> Sums:
        """Return what a shard adds without training: totals, and of the layer state that changes; see `train_sums`."""
        if has_no_rows(batch) and not self.testing.communicate:
            if self.test_changes is None:
                found = self._test_sums.trace(values, of_any_size(batch), place).structured_outputs[1]
                self.test_changes = [value is not None for value in found]
            state = [tf.zeros(v.shape) for v, has in zip(self._state.variables, self.test_changes, strict=True) if has]
            return {"totals": tf.zeros([self.totals.size]), "state": state}
        with gathering(functools.partial(rows_of_all, is_all=is_all)):
            totals, state = self._test_sums(values, batch, place)
        self.test_changes = [value is not None for value in state]
        return {"totals": totals, "state": [value for value in state if value is not None]}

    def _shard_sums(self, values: Changing, batch: Nest, place: tf.Tensor) -> ShardSums:
        weights = values.weights

        def sums() -> ShardSums:
            own_state = self._state.seeded(values.state, place)
            with tf.GradientTape(persistent=True) as tape:  # one gradient for each term
                tape.watch(weights)
                terms, totals, new_state = self._forward(weights, own_state, batch, training=True, tape=tape)
                scaled = [self._scaled(term, totals, values.scale) for term in terms]
            gradients = {}
            for term, (objective, unscale) in zip(terms, scaled, strict=True):
                of_term = zip(tape.gradient(objective, weights), weights, strict=True)
                gradients[term.divisor] = [None if g is None else unscale(dense(g, weight)) for g, weight in of_term]
            if all(gradient is None for of_term in gradients.values() for gradient in of_term):
                raise StepError(
                    "The loss does not depend on any trainable weight of the model. Look at loss and model."
                )
            return ShardSums(gradients, self._state.sums(own_state, new_state, lambda: totals[EXAMPLES]), totals)

        found: ShardSums = self.training.run(batch, sums)
        return found

    def _shard_totals(
        self, values: Changing, batch: Nest, place: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
        def totals() -> tuple[tf.Tensor, list[tf.Tensor | None]]:
            own_state = self._state.seeded(values.state, place)
            with tf.GradientTape() as tape:
                _, totals, new_state = self._forward(values.weights, own_state, batch, training=False, tape=tape)
            return totals, self._state.sums(own_state, new_state, lambda: totals[EXAMPLES])

        found: tuple[tf.Tensor, list[tf.Tensor | None]] = self.testing.run(batch, totals)
        return found

    def seeded(self, state: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the layer state with the seeds that `on_one_shard` and `on_shards` draw from."""
        return self._state.seeded(state, _FIRST)

    def on_one_shard(
        self, values: Changing, batch: Nest, *, training: bool
    ) -> tuple[list[tf.Tensor | None], list[tf.Tensor], tf.Tensor]:
        """Return what follows where one shard has all rows: mean gradients (in training), layer state, totals."""
        means: list[tf.Tensor | None] = []
        if training:
            found = self._shard_sums(values, batch, _FIRST)
            facts, totals, state = TraceFacts.of(found), found.totals, found.state
            apart = Joined(self._variables.weights, [[i] for i in range(len(values.weights))])
            means = facts.means(apart, found.sent["gradients"], [totals[index] for index in facts.divisors])
        else:
            totals, state = self._shard_totals(values, batch, _FIRST)
        return means, self._combined(values.state, [state], totals), totals

    def on_shards(
        self, values: Changing, compute: Callable[[Callable[[Batch], Nest]], list[Nest]], *, training: bool
    ) -> tuple[list[tf.Tensor | None], list[tf.Tensor], tf.Tensor]:
        """Return the same of several shards, which `compute` gives to the function that it is given, one by one."""
        weights, before = values.weights, self.seeded(values.state)

        def of_shard(batch: Batch) -> tuple[list[Term], tf.Tensor, list[tf.Tensor]]:
            with tf.GradientTape() as own:  # it tells what the model reads from what losses read
                return self._forward(weights, before, batch, training=training, tape=own)

        with tf.GradientTape() as tape:
            tape.watch(weights)
            found = compute(of_shard)
            totals = tf.add_n([of_shard for _, of_shard, _ in found])
            divisors = tf.stop_gradient(totals)
            terms = [term for of_shard, *_ in found for term in of_shard]
            loss = summed([tf.math.divide_no_nan(term.numerator, divisors[term.divisor]) for term in terms])
        gradients = tape.gradient(loss, weights) if training else []
        means = [None if g is None else dense(g, weight) for g, weight in zip(gradients, weights, strict=training)]
        state = [self._state.sums(before, new, functools.partial(_examples, own)) for _, own, new in found]
        return means, self._combined(values.state, state, totals), totals

    def _combined(
        self, before: Sequence[tf.Tensor], shards: Sequence[Sequence[tf.Tensor | None]], totals: tf.Tensor
    ) -> list[tf.Tensor]:
        """Return the layer state after a pass, from what shards add."""
        sums = [None if of_all[0] is None else tf.add_n(of_all) for of_all in zip(*shards, strict=True)]
        sent = [value for value in sums if value is not None]
        new = self._state.new_values([value is not None for value in sums], sent, before, totals[EXAMPLES])
        return [old if after is None else after for old, after in zip(before, new, strict=True)]

    def objective(
        self, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], batch: Nest, place: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """Return what a shard's step minimizes; outside of the training, with these values of weights and state."""
        with tf.GradientTape() as tape:
            terms, *_ = self._forward(weights, self._state.seeded(state, place), batch, training=training, tape=tape)
        return summed([term.numerator for term in terms])

    def _forward(
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
            require_no_foreign_weights(tape)
            outputs = match(self.totals.names, batch.y, y_pred, batch.weight)
            terms, totals = self.totals.of(outputs, tf.cast(count_examples(batch), tf.float32), added)
        return terms, totals, new_state

    def _scaled(
        self, term: Term, totals: tf.Tensor, scale: list[tf.Tensor]
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        """Return a term as float16 is to see it, and what makes its gradient that of the term again."""
        if self._options.loss_scale is None:
            return term.numerator, lambda gradient: gradient
        # Scaled is the mean over the whole batch, as in Keras: a sum would overflow earlier. Its size is not known yet,
        # but near the share's times the shards. What talks to other replicas mixes gradients: one number for all.
        share = totals[term.divisor]
        if self.training.communicate:
            share = all_reduce(share) / tf.distribute.get_replica_context().num_replicas_in_sync
        count = share * self._shards
        unscale = count / scale[0]
        return tf.math.divide_no_nan(term.numerator * scale[0], count), lambda g: g * tf.cast(unscale, g.dtype)

    def new_values(self, sums: Sums, flat: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor | None], tf.Tensor]:
        """Return the new value of each variable (None where it stays) and the totals, from the reduced sums."""
        rate = [] if self._clock.rate is None else [self._clock.rate]
        new: tuple[list[tf.Tensor | None], tf.Tensor] = self._new_values(sums, list(flat), rate)
        return new

    def _pure_new_values(
        self, sums: Sums, flat: Sequence[tf.Tensor], rate: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor | None], tf.Tensor]:
        old = self._variables.regroup(flat)
        totals, gradients = sums["totals"], sums["gradients"]
        divisors = [totals[index] for index in self.facts.divisors]
        weights, slots, averages = self._applied(old, gradients, divisors, rate)
        state = self._state.new_values(self.facts.changes, sums["state"], old.state, totals[EXAMPLES])
        if self._averages is not None:
            rest, iterations = old.averages[len(weights) :], old.slots[self._iterations]
            averages = [*averages, *self._averages.new_state_values(rest, old.state, state, iterations)]
        new = [*weights, *slots, *state, *averages]
        if self._options.loss_scale is None:
            return new, totals
        finite = all_finite(gradients)
        new = only_if(finite, new, old._replace(scale=[]).flat)
        return [*new, *self._options.loss_scale.new_values(finite, old.scale)], totals

    def _applied(
        self, old: Changing, gradients: Sequence[tf.Tensor], divisors: Sequence[tf.Tensor], rate: Sequence[tf.Tensor]
    ) -> tuple[Kept, Kept, Kept]:
        """Return the new weights, slots and averages of the weights."""

        def average(averages: Sequence[tf.Tensor], weights: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
            iterations = old.slots[self._iterations]
            return [] if self._averages is None else self._averages.new_values(averages, weights, iterations)

        mean = functools.partial(self._mean_gradients, flat=gradients, divisors=divisors)
        of_weights = old._replace(averages=old.averages[: len(old.weights)])
        gradient = Gradient(mean, average, rate[0] if rate else None)
        return self._apply.new_values(of_weights, gradient, self.facts, self._devices.stages)

    def _mean_gradients(
        self, joined: Joined, flat: Sequence[tf.Tensor], divisors: Sequence[tf.Tensor]
    ) -> list[tf.Tensor | None]:
        """Return the clipped gradient of the whole batch: one for each joined weight, None where it has none."""
        means = self.facts.means(joined, flat, divisors)
        clipped = iter(self._options.clip([gradient for gradient in means if gradient is not None]))
        return [None if gradient is None else next(clipped) for gradient in means]


def _examples(totals: tf.Tensor) -> tf.Tensor:
    return totals[EXAMPLES]
