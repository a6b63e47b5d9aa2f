"""A Keras model's own `train_step` and `test_step`, run as they are on each replica's share of a batch."""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import (
    Batch,
    ConcreteFunction,
    KerasModel,
    KerasOptimizer,
    KerasVariable,
    Logs,
    Nest,
    Spec,
    Variable,
)
from mirrorkit.errors import StepError
from mirrorkit.optim import trainable_variables
from mirrorkit.strategy import first_replica, local_replica, require_same
from mirrorkit.train.ambient import ambient
from mirrorkit.train.keras_model.attributes import changed_attributes, written_attributes
from mirrorkit.train.keras_model.calling import running
from mirrorkit.train.keras_model.layer_state import layers_of
from mirrorkit.train.keras_model.outputs import count_examples
from mirrorkit.train.reduce.tracing import TraceOnce, numbers_by_row
from mirrorkit.train.reduce.transforms import Transforms
from mirrorkit.train.replica_code.pure_step import Share, gather_of, metric_variables
from mirrorkit.train.replica_code.replaced import note_own_apply, require_repeatable
from mirrorkit.train.replica_code.scope import ReplicaScope
from mirrorkit.train.replica_code.step_function import as_keras, flat_logs, named_logs, require, step_of
from mirrorkit.train.replica_code.written import (
    plain_variables,
    read_variables,
    require_not_read_again,
    written_variables,
)
from mirrorkit.train.requirements.data import check_tensors, require_same_rows
from mirrorkit.train.requirements.model import (
    check_layers,
    check_same_trainable,
    check_switches,
    check_variables,
    trainable_of,
)
from mirrorkit.train.requirements.settings import settings_of_variables
from mirrorkit.train.step.clock import Clock
from mirrorkit.train.step.global_batch import GlobalBatch
from mirrorkit.train.step.keras_compile import compiled_config, require_same_compile
from mirrorkit.train.step.loop_step import LoopStep, Need, Pass
from mirrorkit.train.step.options import Options
from mirrorkit.variables import copies, own_copy


class KerasStep(LoopStep):
    """The `LoopStep` of a model that says itself how it trains.

    Its logs are what the model's step returned for the last batch, in which Keras's metrics hold the whole epoch so
    far; they lie in a variable. Its totals are the number of examples and the sum of all logs.

    With `only_for` it was chosen since data like these, which may be for a prediction, do not train: another step may
    do for others.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: KerasModel,
        options: Options,
        only_for: Spec,
    ) -> None:
        check_layers(model)
        check_variables(strategy, model.variables)
        require_same(
            strategy, "step", {"class of the model": type(model).__name__} | settings_of_variables(model.variables)
        )
        self.strategy, self.model, self.options, self.only_for = strategy, model, options, only_for
        self.clock = Clock()  # it counts by a variable of its own
        self.checked: dict[str, object] = {}
        self.numbers: dict[str, int] = {}  # that the tensors of a pass hold for each row
        self._compiled, self._trainable = compiled_config(model), trainable_of(model)
        self._updated: list[Variable] = []
        self._plain: list[tf.Variable] = []  # those of TensorFlow that it writes
        self._only_read: list[tf.Variable] = []
        self._updates: dict[tuple[int, ...], TraceOnce] = {}
        self._transforms: dict[int, Transforms] = {}  # by the id of the optimizer
        self._names: dict[Pass, list[str]] = {}  # of the logs
        self._logs: dict[Pass, Variable] = {}  # of the last batch
        with strategy.scope():
            self._steps = keras.Variable(0, dtype="int64", trainable=False, name="steps_of_train_step")
            seed = zlib.crc32(repr(random.getstate()).encode()) % 2**31
            self._seed = keras.Variable(seed, dtype="int64", trainable=False, name="seed_of_train_step")

    @property
    def variables(self) -> list[Variable]:
        """The model's, its metrics' and its optimizers', and what the step counts."""
        found = [
            *self.model.variables,
            *(variable for layer in layers_of(self.model) for variable in layer.metrics_variables),
            *metric_variables(self.model),
            *self._updated,
            *self._plain,
            *(self._steps, self._seed, *self._logs.values()),
        ]
        return list({id(variable): variable for variable in found}.values())

    @property
    def only_read(self) -> Sequence[Variable]:
        """See `LoopStep`."""
        return self._only_read

    @property
    def saved_variables(self) -> list[Variable]:
        """What checkpoints hold of it: all but the logs of the last evaluation."""
        if "train" not in self._names:
            raise StepError(
                f"Which optimizers the train_step of {type(self.model).__name__} uses is known when it has seen data: "
                "call loop.warm_up(data) before loop.restore. `fit` with Checkpoints restores by itself."
            )
        return [variable for variable in self.variables if variable is not self._logs.get("test")]

    def require(self, what: Need) -> None:
        """Refuse what the model does not define."""
        require(self.model, what)

    def prepare(self, element_spec: Spec, what: Pass = "train") -> None:
        """Trace the model's step once: which optimizers it uses, what it logs; build what Keras's `fit` builds."""
        require_same_compile(self.model, self._compiled)
        check_same_trainable(self._trainable)
        if self.strategy.num_replicas_in_sync > 1:
            check_tensors(element_spec)
        require_same_rows(element_spec)
        if what in self._names:
            return
        before = written_attributes(self.model)
        found: dict[int, tuple[KerasOptimizer, list[KerasVariable]]] = {}  # in order of use
        with self.strategy.scope():
            names, traced = self._traced(what, element_spec, optimizers=found)
            for optimizer, weights in found.values():
                note_own_apply(optimizer)
                try:
                    check_switches(optimizer)
                except StepError as error:
                    raise StepError(
                        f"{error} Beside a train_step of the model's own there are no such options: leave the switch "
                        'out; in place of float16 use keras.config.set_dtype_policy("mixed_bfloat16").'
                    ) from error
                check_variables(self.strategy, optimizer.variables)
                if not optimizer.built:
                    optimizer.build(weights)
                transforms = Transforms(self.options.chain, trainable_variables(optimizer))
                self._transforms[id(optimizer)] = transforms
                self._updated += [*weights, *optimizer.variables, *transforms.variables]
            self._logs[what] = keras.Variable([0.0] * len(names), trainable=False, name=f"logs_of_{what}")
        if changed := changed_attributes(self.model, before):
            raise StepError(
                f"{what}_step of {type(self.model).__name__} changes the Python attributes {changed}, which a compiled "
                "step sees once. Keep what changes in a keras.Variable of the model, made with add_weight."
            )
        require_repeatable(traced.graph)
        self.numbers[what] = numbers_by_row(traced.graph, tf.nest.flatten(element_spec)[0].shape[0])
        written = written_variables(traced, self.variables, plain_variables(self.model))
        if self.strategy.num_replicas_in_sync > 1:
            require_not_read_again(traced, [*self._plain, *written], len(tf.nest.flatten(element_spec)))
        self._plain += written
        if what == "train":
            # An update writes all that belongs to an optimizer, but for a learning rate that is a number.
            rates = {id(optimizer.learning_rate) for optimizer, _ in found.values()}
            self._only_read = read_variables(traced, [one for one in self._updated if id(one) not in rates])
        check_variables(self.strategy, self.variables)
        self._names[what] = names
        self._trainable = trainable_of(self.model)  # its step may set it itself, the same in each trace

    @property
    def updated(self) -> set[int]:
        """The ids of variables that optimizers write, and of those that the step counts with."""
        return {id(v) for v in [*self._updated, self._steps, self._seed, *self._logs.values()]}

    def totals_size(self, what: Pass = "train") -> int:
        """Return the number of values in the totals."""
        return 2

    def describe_totals(self) -> list[str]:
        """Return what the totals add up."""
        return [f"the log {name!r} of {type(self.model).__name__}" for name in self._names["train"]]

    @property
    def of_epoch(self) -> Sequence[Variable]:
        """See `LoopStep`."""
        return metric_variables(self.model)

    def begin(self, what: Pass) -> None:
        """Empty the metrics, as Keras does before an epoch and an evaluation."""
        with self.strategy.scope():
            self.model.reset_metrics()

    def train(self, batches: Sequence[GlobalBatch], first_part: int | tf.Tensor = 0) -> tf.Tensor:
        """Run the model's `train_step`; see `LoopStep`."""
        (batch,) = batches

        def on_replica() -> tf.Tensor:
            totals, _ = self.run("train", *self._share("train", batch))
            return tf.stack([tf.cast(batch.examples(), tf.float32), totals])

        return first_replica(self.strategy, self.strategy.run(on_replica))

    def test(self, batch: GlobalBatch) -> tf.Tensor:
        """Run the model's `test_step`; see `LoopStep`."""
        total, _ = self.run("test", *self._share("test", batch))
        replicas = self.strategy.num_replicas_in_sync
        return tf.stack([tf.cast(batch.examples(), tf.float32), total]) / replicas

    def run(self, what: Pass, rows: Batch, share: Share) -> tuple[tf.Tensor, ReplicaScope]:
        """Run a step of the model on this replica's rows; return the sum of all logs, and what the scope saw."""
        own = local_replica(self.strategy)
        step = step_of(self.model, what)
        with self._scope(share) as scope:
            returned = named_logs(step(as_keras(rows)), step)
            # What Keras's `fit` puts into the history: the metrics, where these have the names of the logs.
            metrics = flat_logs(self.model.get_metrics_result())
            reported = metrics if metrics.keys() == returned.keys() else returned
            logs = [_vector(reported), tf.reduce_sum(_vector(returned))]
            logged, total = scope.end(logs) if scope.may_differ(logs) else logs
        own_copy(self._logs[what], own).assign(logged)
        if what == "train":
            own_copy(self._steps, own).assign_add(1)
        return total + tf.reduce_sum(logged), scope

    def predict(self, batch: GlobalBatch) -> Nest:
        """Run the model's `predict_step` on this replica's rows."""
        _, share = self._share("test", batch)
        own = batch.rows()
        with self._scope(share):
            return self.model.predict_step(as_keras(own))

    def logs(self, totals: tf.Tensor, what: Pass = "train") -> Logs:
        """Return what the model's step returned for the last batch."""
        if what not in self._names:
            return {}
        return dict(zip(self._names[what], copies(self._logs[what])[0].numpy(), strict=True))

    @contextlib.contextmanager
    def _scope(self, share: Share, **more: Any) -> Iterator[ReplicaScope]:
        """Within it code of the model runs on this replica's share; afterwards all copies of what it wrote are equal.

        Its seeds are variables, which a GPU would have to send to the host.
        """
        by_user = self.options.runs_keras
        scope = ReplicaScope(share, self.variables, self._plain, self._updates, self._transforms, by_user=by_user)
        more |= {"totals": share.totals(), "gather": gather_of(share.replicas), "seeds_on_host": False}
        if share.replicas > 1 and ambient.draws is None:  # on one, the numbers drawn are Keras's
            more["numbers"] = lambda: [share.draw_numbers()[-1]]
        with running(self.model, scope, scope=scope, **more):
            yield scope
            scope.end()

    def _traced(self, what: Pass, element_spec: Spec, **more: Any) -> tuple[list[str], ConcreteFunction]:
        """Trace the model's step on the first replica, as if it were alone; return the names of its logs too."""
        step, names = step_of(self.model, what), set[str]()

        def on_replica(batch: Batch) -> tf.Tensor:
            if local_replica(self.strategy):  # all are alike
                return tf.constant(0)
            share = Share(local_replica(self.strategy), 1, 1.0, 1.0, 1.0, lambda: tf.zeros([1], tf.int64))
            with self._scope(share, **more):
                logs = named_logs(step(as_keras(batch)), step)
            names.update(logs)
            return tf.constant(0)

        traced = tf.function(lambda batch: self.strategy.run(on_replica, args=(batch,)), autograph=False)
        function = traced.get_concrete_function(element_spec)
        return sorted(names), function

    def _share(self, what: Pass, batch: GlobalBatch) -> tuple[Batch, Share]:
        """Return the rows that this replica computes, and how they count; no replica is without rows."""
        context = tf.distribute.get_replica_context()
        replicas, number = context.num_replicas_in_sync, tf.identity(context.replica_id_in_sync_group)
        rows, is_all = batch.rows_or_all()
        once = 1.0 if is_all is False else tf.where(is_all & (number > 0), 0.0, 1.0)
        own, total = (tf.cast(count, tf.float32) for count in (count_examples(rows), batch.examples()))
        local = local_replica(self.strategy)
        steps, seed = own_copy(self._steps, local), own_copy(self._seed, local)

        def place() -> tf.Tensor:
            of_test = list(self.clock.outside("test", 0).apart) if what == "test" else []
            return tf.stack([tf.identity(seed), tf.identity(steps), *of_test, tf.cast(number, tf.int64)])

        size, sizes = map(tf.get_static_value, (own, total))
        differs = (rows, number) if size is None or size * replicas == sizes else None  # else constants may, too
        return rows, Share(local, replicas, own, total, once, place, differs=differs)


def _vector(logs: Mapping[str, tf.Tensor]) -> tf.Tensor:
    if wrong := [name for name, value in logs.items() if value.shape.rank != 0]:
        raise StepError(f"The model's step logs {wrong}, which are not scalars. Return their means.")
    values = [tf.cast(logs[name], tf.float32) for name in sorted(logs)]
    return tf.stack(values) if values else tf.zeros([0])
