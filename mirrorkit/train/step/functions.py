"""The arithmetic of a step: pure functions of tensors, traced once and the same on every replica.

`sums` gives what one shard adds; `new_values` what follows from the sums over all shards.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mirrorkit._types import KerasOptimizer, Nest, Sums, Variable
from mirrorkit.data import HOST
from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient
from mirrorkit.train.keras_model.layer_state import LayerState, is_seed, overrides
from mirrorkit.train.keras_model.outputs import UnpackedBatch, count_examples
from mirrorkit.train.reduce.gathering import rows_of_all
from mirrorkit.train.reduce.sparse_gradient import SparseGradient
from mirrorkit.train.reduce.tracing import TraceOnce, require_only_read
from mirrorkit.train.reduce.transforms import Transforms
from mirrorkit.train.replica_code.own_step import OwnStep
from mirrorkit.train.replica_code.pure_step import NotAFunction, Ran, Share, Values
from mirrorkit.train.step import variants
from mirrorkit.train.step.averages import Averages
from mirrorkit.train.step.clock import Clock
from mirrorkit.train.step.facts import Changing, ShardSums, TraceFacts, to_send
from mirrorkit.train.step.global_batch import has_no_rows, of_size, unless_empty, weigh_copies
from mirrorkit.train.step.loop_step import Pass
from mirrorkit.train.step.loss_scale import all_finite, only_if
from mirrorkit.train.step.options import Options
from mirrorkit.train.step.tables import needs_rows
from mirrorkit.train.totals.totals import DIVISOR, EXAMPLES, Totals


class Functions:
    """The functions of one step; making one creates what is missing (slots, averages, loss scale) in the scope.

    Args:
        strategy: of the replicas; an update has as many shards as there are of these, times batches.
        optimizer: of the model.
        options: of the step.
        own: the model's step.

    Attributes:
        state: the layer state.
        averages: with `ema`, those of the weights; else None.
        variables: what an update changes.
        clock: what the host knows of the step that is running.
        devices: where the variables lie.
        optimizer: the model's, as this step updates with it; see `ReplicatedOptimizer`.
        tables: the numbers of the weights that an update writes in place; see `ReplicatedOptimizer`.
        weights: those that it trains.
        shapes: of these.
        communicates: for each kind of pass, whether replicas wait for each other in it: none is left without rows.
        facts_of: for each kind of pass, what its last trace found out.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, optimizer: KerasOptimizer, options: Options, own: OwnStep
    ) -> None:
        self.options, self.own, self._model = options, own, own.model
        self.weights = list(self._model.trainable_variables)
        self.shapes = [tuple(weight.shape) for weight in self.weights]
        self.state = LayerState(self._model)
        self.averages: Averages | None = None
        scale: list[Variable] = []  # the loss scale, good steps, skipped steps
        with strategy.scope():
            self.optimizer = variants.make_optimizer(options, strategy, optimizer, self._model)
            if options.ema is not None:
                self.averages = Averages(options.ema, self.weights, self.state)
            if options.loss_scale is not None:
                scale = options.loss_scale.create()
            self._transforms = Transforms(options.chain, self.weights)
        averages = self.averages.variables if self.averages else []
        groups = averages, self._transforms.variables, scale
        self.variables = Changing(self.weights, self.state.variables, list(optimizer.variables), *groups)
        counters, always = [optimizer.iterations, *scale[2:]], bool(options.runs_keras or options.transforms)
        self.clock = Clock(optimizer, counters, self.state.seeds, always=always)
        self.tables = self.optimizer.tables
        # Where it is to be traced.
        self.devices = variants.make_devices(options, strategy, self.variables)
        self._shards = own.replicas * options.accumulate
        self.communicates: dict[Pass, bool] = {}
        self._traced: dict[Pass, Any] = {}
        is_whole = options.whole_batch and own.replicas > 1
        self._communicate("train", communicate=self.state.synchronized or is_whole)
        self._communicate("test", communicate=is_whole)
        self._new_values = self.devices.trace(
            self._pure_new_values, alone=self.optimizer.alone, facts=lambda: self.facts
        )
        self._totals: Totals | None = None
        self.facts_of: dict[Pass, TraceFacts] = {}
        # Whether its step calls `Optimizer.scale_loss`, as Keras's does.
        self._scales = not (own.by_user and overrides(own.model, "train_step"))

    def _communicate(self, what: Pass, *, communicate: bool) -> None:
        """Say whether replicas communicate in a pass: then it must be traced on each replica."""

        def shard_sums(values: Changing, batch: Nest, place: tf.Tensor, total: tf.Tensor) -> ShardSums:
            return self.shard_sums(what, values, batch, place, total)

        self.communicates[what] = communicate
        jit_compile = self.options.jit_compile
        self._traced[what] = self.devices.trace(shard_sums, alone=not communicate, jit_compile=jit_compile)

    def resolve(self, batch: UnpackedBatch, what: Pass) -> None:
        """Trace the step once for data of this kind, and refuse one that is no function of values."""
        try:
            found = self.own.found(what, self.options.data(batch.present))
        except NotAFunction as why:
            raise self._refused(what, why) from why
        self._totals = self._totals or Totals(self._model)
        if found.asks and not self.communicates[what]:
            self._communicate(what, communicate=True)

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
        if "train" not in self.facts_of:
            raise StepError(
                "Which weights have a gradient is known once `compute` was traced. Call strategy.run(step.compute, "
                "args=(batch,)) before step.update, which takes the sums that it returns."
            )
        return self.facts_of["train"]

    @property
    def only_read(self) -> list[Variable]:
        """Variables that training reads and no update writes: of the layer state, and what losses and metrics read."""
        # Before a training was traced, that may be any of the state.
        places = self.kept if "train" in self.facts_of else range(len(self.state.variables))
        state = [self.state.variables[place] for place in places]
        found = [variable for variable in state if not is_seed(variable)]
        for traced in (self._traced["train"], self._new_values):
            found += traced.variables if isinstance(traced, TraceOnce) else []
        return found

    @property
    def kept(self) -> list[int]:
        """The places of the layer state that no update computes, such as a mask; none before the step was traced."""
        facts = self.facts_of.get("train")
        return [place for place, changes in enumerate(facts.changes) if not changes] if facts else []

    def sums(
        self,
        what: Pass,
        values: Changing,
        batch: Nest,
        place: tf.Tensor,
        total: tf.Tensor,
        is_all: bool | tf.Tensor,
        largest: int | None,
    ) -> Sums:
        """Return what a shard adds: gradients, layer state and totals, a nest of float tensors; zeros without any rows.

        Of `values` only weights, state and scale are needed; `place` is for the seeds, see `LayerState.seeded`;
        `is_all` as of `weigh_copies`. Where the size of the `largest` shard is given, gradients of tables stay rows.
        `total` is how many rows the whole batch has, where that must be known.
        """
        traced, communicate = self._traced[what], self.communicates[what]
        like, sent = None, functools.partial(to_send, weights=self.weights, always=self.optimizer.lazy)
        if largest and self.tables and not communicate:
            like = traced.trace(values, of_size(batch, largest), place, total).structured_outputs
        elif self.optimizer.lazy and what == "train":
            raise needs_rows(
                "replicas exchange numbers within the step"
                if communicate
                else "the size of the batch is not known, or several batches make an update"
            )
        if has_no_rows(batch) and not communicate:
            if what not in self.facts_of:
                self._found(what, like or traced.trace(values, of_size(batch, None), place, total).structured_outputs)
            if like is not None:
                return sent(like.nothing, like)
            return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), self.facts_of[what].specs)
        with ambient.set(gather=functools.partial(rows_of_all, is_all=is_all)):
            sums = traced(values, batch, place, total)
        self._found(what, sums)
        return weigh_copies(sent(sums, like), is_all)

    def _found(self, what: Pass, sums: ShardSums) -> None:
        """Keep the facts of a trace; refuse one of a training that finds others than earlier ones."""
        facts = TraceFacts.of(sums, self.shapes)
        if what == "train":
            if not facts.weights:
                raise StepError(
                    f"The loss of {self._model.name!r} gives no gradient to any of its weights, so there is nothing to "
                    "train: look for a stop_gradient, a comparison or a conversion to integers or NumPy in it."
                )
            self.facts_of.setdefault(what, facts).require_same(facts)
        self.facts_of[what] = facts

    def run(self, what: Pass, values: Changing, state: Sequence[tf.Tensor], batch: Nest, place: Any, total: Any) -> Ran:
        """Run the model's step on a shard, with these values of its variables."""
        rows = tf.cast(count_examples(batch), tf.float32)
        all_rows = tf.cast(total, tf.float32)
        share = Share(0, self.own.replicas, rows, all_rows, 1.0, lambda: place)
        scale = values.scale[0] if values.scale and what == "train" else None
        # Keras's own step scales its loss: here to its part of the whole batch's, whose gradients are then those of
        # Keras on one device. Another's is a mean over the rows, and as many times larger as there are shards.
        is_part = self._scales and self._shards > 1 and what == "train"
        if scale is not None:
            scale /= self.options.accumulate if is_part else self._shards
        if is_part:
            scale = share.fraction if scale is None else scale * share.fraction
        given = Values(values.weights, state, self.totals.zeros)
        try:
            ran = self.own.run(what, given, self.options.data(batch), share, scale=scale, is_part=is_part)
        except NotAFunction as why:
            raise self._refused(what, why) from why
        if scale is not None and not ran.scope.is_scaled:
            raise StepError(
                f"The train_step of {type(self._model).__name__} takes the gradient of a loss that it did not scale. "
                "Write loss = self.optimizer.scale_loss(loss) before, as Keras's own train_step does."
            )
        if ran.scope.asks and self.own.replicas > 1 and not (self.communicates[what] or ambient.draws):
            raise StepError(
                "A mean over what a mask or weights leave was taken, which earlier batches did not need. Let all "
                "batches have masks and weights, or none."
            )
        if self._shards > 1 and "state" not in self.options.unchecked and not tf.executing_eagerly():
            self.state.require_no_rows(state, ran.state, batch)
        return ran

    def _refused(self, what: str, why: NotAFunction) -> StepError:
        name = type(self._model).__name__
        if self.options.runs_keras:
            return StepError(
                f"The train_step of {name} makes one update, and so is run as a function of values; this {what}_step "
                f"cannot be: {why}. Let it write and log for this data what it does for the training's."
            )
        if isinstance(why.__cause__, StepError):
            return why.__cause__
        return StepError(
            f"The {what}_step of {self._model.name!r} ({name}) cannot be computed on replicas: {why}. A metric's state "
            "must be a sum over the rows, and a layer must not assign its trained weights, nor anything that is not "
            "the model's. Under one_device, mirrored and multi_worker a model on which compile was called trains as "
            "Keras has it, without options: Step.from_compiled(model) in a Loop."
        )

    def shard_sums(self, what: Pass, values: Changing, batch: Nest, place: tf.Tensor, total: tf.Tensor) -> ShardSums:
        """Return what a shard adds; traced by `sums`."""

        def sums() -> ShardSums:
            state = self.state.seeded(values.state, place)
            ran = self.run(what, values, state, batch, place, total)
            if (
                ran.scope.asks
                and what == "train"
                and self.options.accumulate > 1
                and not (ran.scope.separates or ambient.draws)
            ):
                raise StepError(
                    f"With accumulate={self.options.accumulate}, a mean over what a mask or weights leave needs a "
                    "graph. Call strategy.run(step.compute, ...) and step.update in one tf.function."
                )
            factor, divisor = self._factor(ran, values)
            totals, terms = self.totals.of(ran, divisor), ran.scope.terms
            rest = ran.gradients if ran.scope.rest is None else ran.scope.rest
            gradients = [self._sent(rest, factor, by_rows=not terms)]
            for term in terms:
                # What counts in the whole batch, for the rows that the rest is multiplied by.
                of_term = term.divisor.portion / ran.scope.share.rows
                of_term = of_term if factor is None else factor * of_term
                gradients.append(self._sent(term.gradients, of_term, by_rows=False))
            state = self.state.sums(state, ran.state, totals[EXAMPLES])
            return ShardSums(gradients, [term.divisor.own for term in terms], state, totals)

        always = self.communicates[what] or not self.devices.branches
        of_shard: ShardSums = unless_empty(batch, sums, always=always)
        return of_shard

    def _factor(self, ran: Ran, values: Changing) -> tuple[tf.Tensor | None, tf.Tensor]:
        """Return what a shard's gradient is multiplied by, None for 1, and its part of what divides the sum of all."""
        share, is_part = ran.scope.share, ran.scope.is_part
        factor = None if self._shards == 1 else share.rows
        divisor = share.rows
        if is_part:
            # Several batches make one update, each by its number of rows.
            factor, divisor = None, share.fraction
            if self.options.accumulate > 1:
                factor, divisor = share.total, share.rows
        if not values.scale:
            return factor, divisor
        unscale = (self.options.accumulate if is_part else self._shards) / values.scale[0]
        return unscale if factor is None else factor * unscale, divisor

    def _sent(
        self, gradients: Sequence[Any], factor: tf.Tensor | None, *, by_rows: bool
    ) -> list[tf.Tensor | SparseGradient | None]:
        """Return the gradients times a factor as they are sent: None, dense, or of tables perhaps `by_rows`."""

        def times(gradient: tf.Tensor) -> tf.Tensor:
            return gradient if factor is None else gradient * tf.cast(factor, gradient.dtype)

        def sent(weight: int, gradient: Any) -> tf.Tensor | SparseGradient | None:
            if gradient is None:
                return None
            if weight in self.tables:
                if by_rows and isinstance(gradient, tf.IndexedSlices) and gradient.values.shape[0] is not None:
                    rows = times(tf.convert_to_tensor(gradient.values))
                    return SparseGradient(tf.cast(gradient.indices, tf.int64), rows)
                if self.optimizer.lazy:
                    raise needs_rows(f"the gradient of {self.weights[weight].path!r} is not by rows")
            return times(dense(gradient, self.shapes[weight]))

        return [sent(weight, gradient) for weight, gradient in enumerate(gradients)]

    def new_values(self, sums: Sums, flat: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor | None], tf.Tensor]:
        """Return the new value of each variable (None where it stays) and the totals, from the reduced sums."""
        rate = [] if self.clock.rate is None else [self.clock.rate]
        with tf.device(HOST):
            step = [tf.cast(self.clock.now().count, tf.int32)] if self.options.transforms else []
        old = self.variables.regroup(flat)
        new, totals, left = self._new_values(step, sums, old.values, rate)
        if isinstance(self._new_values, TraceOnce):
            require_only_read(self._new_values.variables, self.variables.flat)
        self.optimizer.write(old, rate, *left)
        return new, totals

    def _pure_new_values(
        self, step: Sequence[tf.Tensor], sums: Sums, old: Changing, rate: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor | None], tf.Tensor, Nest]:
        """Return new values and totals, and what is left to write: the gradients of tables, and whether they count.

        First the mean gradient, then the transforms of it, then the optimizer, then averages of what that comes to. In
        all of them small weights are joined, as the optimizer joins them.
        """
        totals, joined = sums["totals"], self.optimizer.joined(self.facts, self.devices.stages)
        summed, rows = self.facts.summed(sums["gradients"], self.tables)
        divisors = [None if self._shards == 1 else one for one in [totals[DIVISOR], *sums["divisors"]]]
        means = self.facts.means(joined, summed, divisors)
        gradients, transforms = self._transforms(means, old.transforms, step[0] if step else None, joined)
        weights, slots = self.optimizer.new_values(joined, old, gradients, rows, rate[0] if rate else None)
        state = self.state.new_values(self.facts.changes, sums["state"], old.state, totals[EXAMPLES])
        iterations = old.slots[self.optimizer.iterations]
        averages = self.averages.new_values(joined, old, weights, state, iterations) if self.averages else []
        left = [weights[i] for i in self.tables]
        weights = [None if i in self.tables else value for i, value in enumerate(weights)]
        new = [*weights, *state, *slots, *averages, *transforms]
        if not old.scale:
            return new, totals, (left, [])
        finite = all_finite(summed)
        new = only_if(finite, new, old._replace(scale=[]).flat)
        return [*new, *self.options.loss_scale.new_values(finite, old.scale)], totals, (left, [finite])


def dense(gradient: tf.Tensor | tf.IndexedSlices, shape: Sequence[int]) -> tf.Tensor:
    """Return a dense gradient of static shape: some optimizers treat sparse ones differently."""
    return tf.ensure_shape(tf.convert_to_tensor(gradient), shape)
