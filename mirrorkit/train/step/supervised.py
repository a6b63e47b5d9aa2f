"""A built `Step`: model, loss, metrics and optimizer under one strategy, as `Loop` runs them."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Mapping, Sequence

import tensorflow as tf

from mirrorkit._types import Batch, KerasModel, KerasOptimizer, Logs, Nest, Spec, Sums, Variable
from mirrorkit.errors import StepError
from mirrorkit.strategy import is_tpu, local_replica, require_same
from mirrorkit.train.ambient import ambient
from mirrorkit.train.keras_model.calling import predict_with, value_scope
from mirrorkit.train.keras_model.layer_state import overrides
from mirrorkit.train.keras_model.outputs import UnpackedBatch, as_computed, count_examples, unpack_batch
from mirrorkit.train.reduce.update import Update
from mirrorkit.train.replica_code.own_step import OwnStep
from mirrorkit.train.replica_code.step_function import require
from mirrorkit.train.requirements.data import check_batched, check_tensors, require_same_rows
from mirrorkit.train.requirements.model import (
    check_predicts_as_keras,
    check_still_trainable,
    check_variables,
    require_tpu_precision,
    trainable_of,
)
from mirrorkit.train.requirements.settings import settings_of
from mirrorkit.train.step import variants
from mirrorkit.train.step.assigned import run_and_combine, write_means
from mirrorkit.train.step.facts import Changing
from mirrorkit.train.step.functions import Functions
from mirrorkit.train.step.global_batch import GlobalBatch, largest_share, share_of, unless_empty
from mirrorkit.train.step.keras_compile import compile_model, compiled_config, require_same_compile, stand_in
from mirrorkit.train.step.loop_step import LoopStep, Need, Pass, no_averages
from mirrorkit.train.step.measured import Measured
from mirrorkit.train.step.options import Options
from mirrorkit.train.step.sharded_slots import WholeSlot
from mirrorkit.train.totals.totals import EXAMPLES, LOSS, Totals
from mirrorkit.variables import own_copy, read


class Supervised(LoopStep):
    """The `LoopStep` of a `Step`; making one creates what is missing (slots, averages, loss scale) in the scope.

    Attributes:
        functions: the arithmetic.
        only_for: see `KerasStep`.
        jit_compile: whether XLA compiles what a replica computes, or whole calls; "auto" where it is tried.
        is_whole: whether the loss is over the whole batch, so that a share has none by itself.
        is_synchronized: whether a layer talks to the other replicas.
        on_first: of a placed model, what lets a function compute on the devices of the first replica; else None.
        update: reduces what `sums` returned on each replica, writes the new values, and returns the totals.
    """

    loss_index = LOSS
    only_for: Spec = None

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: KerasModel,
        optimizer: KerasOptimizer | None,
        options: Options,
        *,
        own: OwnStep,
        measured: Measured,
        shown: KerasModel,
    ) -> None:
        require_same_compile(model, options.compiled)
        options = variants.for_strategy(options, strategy, model)
        if is_tpu(strategy):
            require_tpu_precision(model)
        optimizer = optimizer or stand_in(strategy, model)
        check_variables(strategy, [*model.trainable_variables, *model.non_trainable_variables, *optimizer.variables])
        require_same(strategy, "step", settings_of(model, optimizer, options))
        self.functions = functions = Functions(strategy, optimizer, options, own)
        if options.trains and not options.runs_keras:
            with strategy.scope():
                compile_model(shown, optimizer, loss=options.losses["loss"], **options.metrics)
        self._trainable = trainable_of(model)
        self._compiled = None if options.compiled is None else compiled_config(model)
        self.strategy, self.trained, self.own, self.measured = strategy, model, own, measured
        self.model, self.optimizer = shown, optimizer  # what callbacks see
        self.options, self.accumulate, self.jit_compile = options, options.accumulate, options.jit_compile
        self.checked: dict[str, object] = {}  # before which kind of pass a batch was checked
        self.averages, self.clock, devices = functions.averages, functions.clock, functions.devices
        self.shards = strategy.num_replicas_in_sync * options.accumulate  # into how many an update's examples are cut
        self.is_whole, self.is_synchronized = options.whole_batch, functions.state.synchronized
        self.on_first = devices.on_first
        # A layer that is synchronized may communicate in predict too.
        self._always_predicts = self.is_whole or self.is_synchronized or not devices.branches
        # Traced where it has to be: to compute where the values are.
        self._outputs_with = devices.trace(self._pure_outputs, alone=devices.stages is not None)
        self._in_place = functions.optimizer.in_place(functions.weights)
        self.update = Update(
            strategy,
            self.variables,
            functions.new_values,
            last_wins=self.scale[:2],  # the scale and its counter
            in_place=self._in_place,
            reduce=devices.reducing(lambda: functions.facts),
        )

    @property
    def variables(self) -> list[Variable]:
        """Weights, layer state, optimizer slots, averages, states of transforms, loss scale."""
        return self.functions.variables.flat

    @property
    def scale(self) -> list[Variable]:
        """The loss scale, good steps and skipped steps; [] without one."""
        return self.functions.variables.scale

    @property
    def saved_variables(self) -> list[Variable | WholeSlot]:
        """The same with whole slots, as they are without sharding."""
        return self.functions.variables._replace(
            slots=self.functions.optimizer.saved(self.functions.variables.slots)
        ).flat

    @property
    def kept(self) -> list[Variable]:
        """The layer state that no update computes, such as a mask, and its averages; after the first step."""
        state = self.functions.variables.state
        return [*(state[place] for place in self.functions.kept), *self._kept]

    @property
    def _kept(self) -> list[Variable]:
        """The averages of it; none before a step was traced."""
        averages = self.averages.of_state if self.averages else {}
        return [averages[place] for place in self.functions.kept if place in averages]

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Let the weights be their averages within the block; see `Step.averaged`."""
        if self.averages is None:
            raise no_averages("This step")
        if self.averages.are_in_place:
            raise StepError("The model's weights are the averages already. Leave the outer `with step.averaged():`.")
        no_update = int(self.optimizer.iterations.value.numpy()) == 0  # so the averages are the weights
        return contextlib.nullcontext() if no_update else self.averages.exchanged(self._kept)

    def as_trained(self) -> contextlib.AbstractContextManager[None]:
        """Let the weights, which are their averages, be those of the training within the block."""
        assert self.averages is not None
        return self.averages.exchanged(self._kept)

    def require(self, what: Need) -> None:
        """Refuse what only a step with targets can do."""
        self.options.require(what)
        if self.options.runs_keras:
            require(self.own.model, what)

    def prepare(self, element_spec: Spec, what: Pass = "train") -> None:
        """Check batches like `element_spec` (tensors or specs); the first time, resolve losses and metrics for them."""
        require_same_compile(self.trained, self._compiled)
        check_still_trainable(self.trained, self.functions.variables.weights, self._trainable)
        self.clock.require_same_schedule()
        batch = self.unpack(element_spec)
        check_tensors(tuple(batch))
        if not self.options.runs_keras:
            check_batched(self.trained, batch.x)
        require_same_rows(element_spec)
        self.functions.resolve(batch, what)

    def unpack(self, batch: Batch) -> UnpackedBatch:
        """Take a batch apart into what the model is called on, targets and weights."""
        parts = self.options.unpack(batch)
        return parts if self.options.runs_keras else as_computed(self.trained, parts)

    @property
    def totals(self) -> Totals:
        """What the totals hold; after `prepare`."""
        return self.functions.totals

    def totals_size(self, what: Pass = "train") -> int:
        """Return the number of values in the totals, the same for both passes."""
        return self.totals.size

    def describe_totals(self) -> list[str]:
        """Return in words which losses and metrics they add up."""
        losses = [f"{name} ({function})" for name, function in self.measured.functions.items()]
        return [*losses, *self.totals.described]

    @property
    def only_read(self) -> Sequence[Variable]:
        """See `LoopStep`."""
        return self.functions.only_read

    @property
    def modes(self) -> Mapping[str, str]:
        """For each log name "max" or "min", where Keras knows it."""
        return self.totals.modes

    def sums(self, batch: GlobalBatch, part: int | tf.Tensor = 0, use: int = 0, *, largest: int | None = None) -> Sums:
        """Compute this replica's sums over its rows of a batch, as `Step.compute`; in replica context.

        With the size of the `largest` share of a replica they cannot be added up.
        """
        now = self.clock.now()
        return self._sums("train", batch, self.values(now.seeds), now.place(part, use), largest)

    def _sums(
        self, what: Pass, batch: GlobalBatch, values: Changing, place: tf.Tensor, largest: int | None = None
    ) -> Sums:
        communicates = self.functions.communicates[what]
        rows, is_all = share_of(batch, communicates=communicates, branches=self.functions.devices.branches)
        self.prepare(rows, what)
        parts = self.unpack(rows).present
        return self.functions.sums(what, values, parts, place, batch.examples(), is_all, largest)

    def train(self, batches: Sequence[GlobalBatch], first_part: int | tf.Tensor = 0) -> tf.Tensor:
        """Make one update; see `LoopStep`."""

        def sums() -> Sums:  # in one graph, without variables of a worker's own: any worker can run it
            largest = largest_share(batches[0]) if self.functions.tables and len(batches) == 1 else None
            found = self.sums(batches[0], first_part, largest=largest)
            for i, batch in enumerate(batches[1:], start=1):
                with tf.control_dependencies(tf.nest.flatten(found)):  # their gradients are never all in memory
                    more = self.sums(batch, first_part + i)
                found = self.functions.devices.added(found, more, self.functions.facts)
            return found

        return self.update.after(sums)()

    def test(self, batch: GlobalBatch, part: int | tf.Tensor = 0) -> tf.Tensor:
        """Return the totals of this replica's rows; see `LoopStep`."""
        now = self.clock.outside("test", part) if self.clock.draws else self.clock.now()
        values = self.values(now.seeds)
        sums = self._sums("test", batch, values, now.place())
        if sums["state"]:
            changes = self.functions.facts_of["test"].changes
            changed = list(itertools.compress(self.functions.variables.state, changes))
            if not self.functions.devices.has_copies:
                raise self._assigned_outside([variable.path for variable in changed])
            # As Keras does: the model's variables get what the pass assigned.
            own = [own_copy(variable, local_replica(self.strategy)) for variable in changed]
            write_means(own, itertools.compress(values.state, changes), sums["state"], sums["totals"][EXAMPLES])
        return sums["totals"]

    def _assigned_outside(self, paths: Sequence[str]) -> StepError:
        return StepError(
            f"A layer assigns its state {', '.join(paths)} while it does not train, which "
            f"{self.functions.devices.description} does not write. Assign it only where `training` is true, or "
            "evaluate and predict under another strategy."
        )

    def predict(self, batch: GlobalBatch, part: int | tf.Tensor = 0) -> Nest:
        """Return the model's outputs for this replica's rows; see `LoopStep`."""
        rows = batch.rows()
        now = functools.partial(self.clock.outside, "predict", part)
        if self.functions.devices.has_copies:
            with ambient.set(numbers=lambda: tf.unstack(now().place())):
                return run_and_combine(
                    self.strategy,
                    self.functions.variables.state,
                    rows,
                    self.outputs,
                    tables=self._in_place,
                    always=self._always_predicts,
                    model=self.trained,
                )
        values = self.values()
        if self.clock.draws:
            values = values._replace(state=self.functions.state.seeded(values.state, now().place()))
        outputs = functools.partial(self._outputs_with, values, rows)
        return unless_empty(rows, outputs, always=self._always_predicts, rows_of_none=True)

    def outputs(self, rows: Nest) -> Nest:
        """Return the outputs for rows, computed with the variables as they are."""
        is_own = self.options.as_compiled and overrides(self.model, "predict_step")
        if self.options.runs_keras or is_own:
            return self.own.predict(rows)
        if self.options.predict is not None:
            return self.options.predict(rows)
        check_predicts_as_keras(self.model)
        return predict_with(self.model, unpack_batch(rows).x)

    def _pure_outputs(self, values: Changing, rows: Nest) -> Nest:
        with value_scope(self.trained, values.weights, values.state) as scope:
            outputs = self.outputs(rows)
        if lost := scope.assigned_but(self.functions.state.seeds):
            raise self._assigned_outside(lost)
        return outputs

    def objective(self, weights: list[tf.Tensor], state: list[tf.Tensor], rows: Batch, shard: int) -> tf.Tensor:
        """Return what a training step on a shard minimizes, computed eagerly with these values; for `mk.checks`."""
        self.prepare(rows)
        place = tf.stack([self.clock.read().count, tf.constant(shard, tf.int64)])
        parts, values = self.unpack(rows).present, self.values()._replace(weights=weights, state=state)
        values = values._replace(scale=[tf.ones_like(one) for one in values.scale])
        seeded = self.functions.state.seeded(state, place)
        return self.functions.run("train", values, seeded, parts, place, count_examples(parts)).scope.minimized

    def logs(self, totals: tf.Tensor, what: Pass = "train") -> Logs:
        """Turn totals into Keras's logs: the loss, then each metric."""
        return self.totals.logs(totals)

    def values(self, seeds: dict[int, tf.Tensor] | None = None) -> Changing:
        """Read what the computation depends on.

        On a replica the `seeds` are given, by the ids of their variables, and tables stay variables.
        """
        tables = [] if seeds is None else self._in_place
        known = (seeds or {}) | {id(v): own_copy(v, local_replica(self.strategy)) for v in tables}
        groups = self.functions.variables._replace(slots=[], averages=[], transforms=[])
        return Changing(*[[known[id(v)] if id(v) in known else read(v) for v in group] for group in groups])
