"""Step: what one training step computes on each replica, and the update that follows from the reduced sums."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import Batch, KerasModel, KerasOptimizer, Logs, Nest, PerOutput, Spec, Sums, Variable
from mirrorkit.arguments import checks_arguments
from mirrorkit.errors import StepError
from mirrorkit.strategy import class_name, has_copies, local_replica
from mirrorkit.train.ambient import ambient
from mirrorkit.train.keras_model.building import build, is_built
from mirrorkit.train.keras_model.layer_state import overrides
from mirrorkit.train.keras_model.models import shown
from mirrorkit.train.keras_model.outputs import as_computed
from mirrorkit.train.reduce.transforms import Transform
from mirrorkit.train.replica_code.own_step import OwnStep
from mirrorkit.train.replica_code.pure_step import NotAFunction, gather_of
from mirrorkit.train.replica_code.replaced import note_own_apply
from mirrorkit.train.replica_code.step_function import build_as_it_trains
from mirrorkit.train.requirements.data import check_tensors, require_same_rows
from mirrorkit.train.requirements.model import check_model, check_optimizer, check_overrides, overrides_training
from mirrorkit.train.step import variants
from mirrorkit.train.step.global_batch import OwnRows
from mirrorkit.train.step.keras_compile import (
    PARTS,
    CompiledModel,
    compiled_config,
    compiled_parts,
    require_compiled,
    without_scale,
)
from mirrorkit.train.step.keras_step import KerasStep
from mirrorkit.train.step.loss_scale import LossScale
from mirrorkit.train.step.measured import Measured
from mirrorkit.train.step.options import Options
from mirrorkit.train.step.own_loss import LossModel, prediction
from mirrorkit.train.step.sharded_slots import WholeSlot
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.train.totals.losses import warn_on_logits_mismatch

_log = logging.getLogger("mirrorkit")


class Step:
    """A supervised training step for any Keras 3 model, loss, metrics and optimizer, the same for 1 and N replicas.

    ```python
    step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"], clip_norm=1.0)
    report = mk.train.Loop(strategy, step).fit(train)
    ```

    The loss is the mean over the examples of the *global* batch plus `model.losses` once, whatever the number of
    replicas and however unequal their shares. Clipping, loss scale and averages act after the reduction.

    Args:
        model: a Keras model, created in the strategy's scope; one that is not built is built by a `Loop`, from the
            first data. It is compiled with this optimizer, loss and metrics, for callbacks and saved files, unless it
            already is.
        optimizer: a Keras optimizer, created in the strategy's scope; None, the default, evaluates and predicts only.
        loss: a Keras loss, its name, or a function `(y_true, y_pred) -> values [batch]`; for several outputs one for
            all of them, a dict by output name, a list, or a nest like theirs; None if layers add all (`add_loss`).
        metrics: Keras metrics or their names; for several outputs a dict, a list of lists or a nest. A metric whose
            state does not add up is refused by name.
        weighted_metrics: the same; these see the sample weights.
        loss_weights: for several outputs, the number that multiplies each loss.
        clip_norm: largest global norm of the reduced gradient (Pascanu et al. 2013, arXiv:1211.5063).
        clip_value: largest absolute value of a number in the reduced gradient; not together with `clip_norm`.
        transforms: objects that change the reduced, clipped gradient before the optimizer gets it, in this order; see
            `mk.train.Transform`.
        accumulate: global batches for one update, which equals that of one batch as large as all of them.
        loss_scale: "dynamic", a fixed number or a `mk.train.LossScale`; mixed_float16 needs one. A step whose reduced
            gradient is not finite is skipped and counted.
        ema: decay, such as 0.999, of an exponential moving average of the weights and of floating-point layer state
            (BatchNormalization's statistics), except in frozen layers; see `averaged`.
        unchecked: names of what may differ between a batch and its parts: a metric's or loss's log name, "add_loss",
            "rows", "state" (docs/differences.md). `fit` checks the first batch.
        jit_compile: compile a replica's forward and backward pass with XLA; on a single replica with `mk.data.resident`
            whole calls: data, model and update become one program. XLA checks no values. "auto": on one GPU, if XLA can
            compile it with the same results (docs/speed.md#xla). Convolutions on CPUs become many times slower.
        shard_optimizer: let each of N replicas keep and update 1/N of the optimizer's slots (ZeRO-1, Rajbhandari et al.
            2020, arXiv:1910.02054), for the same weights and checkpoints; under mirrored and multi_worker. Each update
            gathers the new weights from all replicas. The optimizer must be Keras's SGD, Adam, AdamW, Nadam, Adamax,
            Adagrad, Adadelta, RMSprop or Lion, and not built yet. On one replica nothing changes.
        sparse_embeddings: whether large Embedding tables are updated in place by the rows that batches look up, with
            the same results: "auto", on CPUs; True, on GPUs too; False, never (docs/large-tables.md). "lazy": rows of
            any Embedding, and their slots, change only when looked up, as in TensorFlow Addons' LazyAdam; results
            differ from Keras's.

    Raises:
        StepError: the parts do not fit each other, or cannot mean the same on several replicas.
    """

    def __init__(
        self,
        model: KerasModel,
        optimizer: KerasOptimizer | None = None,
        *,
        loss: PerOutput = None,
        metrics: PerOutput = None,
        weighted_metrics: PerOutput = None,
        loss_weights: PerOutput = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        transforms: Sequence[Transform] = (),
        accumulate: int = 1,
        loss_scale: str | float | LossScale | None = None,
        ema: float | None = None,
        unchecked: Sequence[str] = (),
        jit_compile: bool | str = "auto",
        shard_optimizer: bool = False,
        sparse_embeddings: bool | str = "auto",
    ) -> None:
        if not isinstance(model, LossModel):
            check_overrides(model)
            warn_on_logits_mismatch(model, loss)
        self._begin(
            model,
            optimizer,
            Options(
                {"loss": loss, "loss_weights": loss_weights},
                {"metrics": metrics, "weighted_metrics": weighted_metrics},
                clip_norm=clip_norm,
                clip_value=clip_value,
                transforms=transforms,
                accumulate=accumulate,
                loss_scale=loss_scale,
                ema=ema,
                unchecked=unchecked,
                jit_compile=jit_compile,
                shard_optimizer=shard_optimizer,
                sparse_embeddings=sparse_embeddings,
                trains=optimizer is not None,
            ),
        )

    def _begin(self, model: KerasModel, optimizer: KerasOptimizer | None, options: Options) -> None:
        if optimizer is not None:
            note_own_apply(optimizer)
            if not options.runs_keras:
                check_optimizer(optimizer)
        variants.require_compatible(options, optimizer)
        self.model = self._trained = model
        self.optimizer, self._options = optimizer, options
        self._built: Supervised | KerasStep | None = None
        # Of each graph, by replica and part: the ids of the totals that `compute` returned since the last `update`.
        self._computed: weakref.WeakKeyDictionary[tf.Graph, dict[Any, list[int]]] = weakref.WeakKeyDictionary()

    @classmethod
    def from_compiled(cls, model: KerasModel, **options: Any) -> Step:
        """Take optimizer, loss and metrics from a model on which `compile` was called in the strategy's scope.

        ```python
        step = mk.train.Step.from_compiled(model, clip_norm=1.0)
        ```

        If the model overrides `train_step`, `test_step`, `compute_loss`, `compute_metrics` or `get_metrics_result` a
        `Loop` runs these as they are (docs/porting.md). Each replica runs them on its rows of the batch. What they
        compute over rows must be a mean over rows; on several replicas the first batch is checked for this. A
        `train_step` that makes one update, and logs what its metrics say, trains under every strategy and with every
        option. Another, such as a GAN's, trains under one_device, mirrored and multi_worker, with no options but
        `clip_norm`, `clip_value` and `transforms`.

        Args:
            model: a compiled Keras model.
            **options: arguments of `Step`, such as `clip_norm`. With such overrides `jit_compile` is False by default,
                and of `unchecked` there are "rows" and "state".

        Raises:
            StepError: the model is not compiled.
        """
        require_compiled(model)
        of_functions = {*options} - {"unchecked", "clip_norm", "clip_value", "transforms"}
        own = {"compiled": compiled_config(model), "asked": sorted(of_functions)}
        if overrides_training(model):
            private.check(model=model)
            step = cls.__new__(cls)
            own |= {"runs_keras": True, "as_compiled": True, "jit_compile": False}
            step._begin(model, model.optimizer, Options({}, {}, **own | options))
            return step
        step = cls(model, **{**compiled_parts(model), **options})
        is_as_compiled = not {"optimizer", *PARTS} & set(options)
        step._options = dataclasses.replace(step._options, as_compiled=is_as_compiled, **own)
        return step

    @classmethod
    @checks_arguments(StepError)
    def from_loss(
        cls,
        models: Nest,
        optimizer: KerasOptimizer | None,
        loss_fn: Callable[..., Any],
        *,
        frozen: Nest = (),
        predict: Callable[[Batch], Nest] | None = None,
        whole_batch: bool = False,
        **options: Any,
    ) -> Step:
        """Train by one function of a batch: a VAE, a siamese net, distillation.

        ```python
        def loss_fn(batch, training):
            images, labels = batch
            logits = student(images, training=training)
            soft = tf.reduce_mean((logits - teacher(images, training=False)) ** 2, axis=-1)
            hard = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            return {"loss": hard + soft, "soft": soft}  # each [rows]

        step = mk.train.Step.from_loss([student, teacher], optimizer, loss_fn)
        ```

        The loss is the mean of the values over the examples of the global batch, plus what layers add (regularizers,
        `add_loss`), once; `loss_fn` does not add that itself. The value of an example must depend on that example
        alone, unless `whole_batch=True`.

        Args:
            models: what `loss_fn` uses: a Keras model or layer, or a list or dict of models, layers and
                `SeedGenerator`s, all created in the strategy's scope. Their trainable weights are trained; a teacher
                has `trainable = False`.
            optimizer: a Keras optimizer for all of them, created in the strategy's scope; None for no training.
            loss_fn: `loss_fn(batch)` or `loss_fn(batch, training)`. It returns the loss of each example, [rows], or a
                dict with "loss" and further values [rows], whose means are logged by their names, in validation too. A
                batch is what the data yields: any nest of tensors with the rows as first dimension; `(x,)` for
                `mk.data.arrays(x)` without labels. A layer called without `training`, also a teacher's Dropout, takes
                it from the step.
            frozen: models whose weights another step trains: for one half of a GAN, the other net.
            predict: a function from a batch to outputs [rows, ...], for `Loop.predict`. By default the first model is
                called on `x` of a batch `x`, `(x, y)` or `(x, y, sample_weight)`.
            whole_batch: say that the values of an example may depend on all examples of the global batch, as in
                contrastive learning. `loss_fn` sees its replica's rows, gets those of the others from
                `mk.train.all_gather`, and returns values for its own rows. Not with `accumulate`.
            **options: arguments of `Step` from `clip_norm` on.

        Raises:
            StepError: the parts do not fit each other, or cannot mean the same on several replicas.
        """
        wrong = sorted({*PARTS} & set(options))
        if wrong:
            raise StepError(
                f"Step.from_loss was given {', '.join(wrong)}, which need targets and outputs. Let loss_fn return a "
                'dict: {"loss": values, "name of a metric": values}, each with one value per example.'
            )
        trained = LossModel(models, loss_fn, frozen)
        step = cls(trained, optimizer, loss=None, **options)
        step.model = shown(trained)
        own = prediction(trained, predict)
        step._options = dataclasses.replace(step._options, of_values=True, predict=own, whole_batch=whole_batch)
        variants.require_compatible(step._options, optimizer)
        return step

    @property
    def accumulate(self) -> int:
        """How many global batches make one update."""
        return self._options.accumulate

    @property
    def variables(self) -> list[Variable]:
        """All variables that a step may change: weights, layer state, optimizer slots, averages, loss scale."""
        if self._built is not None:
            return self._built.variables
        of_model = [*self._trained.trainable_variables, *self._trained.non_trainable_variables]
        return [*of_model, *([] if self.optimizer is None else self.optimizer.variables)]

    @property
    def saved_variables(self) -> list[Variable | WholeSlot]:
        """The variables in checkpoints: `variables`, with whole slots in place of sharded ones."""
        return list(self.variables) if self._built is None else self._built.saved_variables

    @property
    def strategy(self) -> tf.distribute.Strategy | None:
        """The strategy for which it is built; None before."""
        return None if self._built is None else self._built.strategy

    def build(self, strategy: tf.distribute.Strategy) -> None:
        """Create what is missing (slots, averages, loss scale) in the strategy's scope; once.

        Raises:
            StepError: the model is not built, was created outside of the scope, or belongs to another strategy.
        """
        self.for_loop(strategy)

    def for_loop(
        self, strategy: tf.distribute.Strategy, element_spec: Spec = None, shards: int = 1
    ) -> Supervised | KerasStep:
        """Build the step, and return it as `mk.train.Loop` runs it; for mirrorkit's own use.

        With the `element_spec` of the data it first builds a model that is not built. With `shards` it expects each
        global batch in that many parts, as `mk.testing` gives them.
        """
        only_for = getattr(self._built, "only_for", None)
        if self._built is None or (element_spec is not None and only_for not in (None, element_spec)):
            options = dataclasses.replace(self._options, accumulate=self._options.accumulate * shards)
            self._built = build_step(strategy, self._trained, self.optimizer, options, self.model, element_spec)
        if self._built.strategy is not strategy:
            raise StepError("This step was built for another strategy. Create another model, optimizer and step.")
        return self._built

    @property
    def runs_keras(self) -> bool:
        """Whether it runs the model's own `train_step`."""
        return self._options.runs_keras

    def supervised(self, strategy: tf.distribute.Strategy, shards: int = 1) -> Supervised:
        """Return the same as `for_loop`, for a step that computes a loss and its gradient; for mirrorkit's own use."""
        step = self.for_loop(strategy, shards=shards)
        if isinstance(step, Supervised):
            return step
        raise StepError(
            f"{type(step.model).__name__} overrides what Keras's training calls, and such a model trains in a "
            "mk.train.Loop only. For a training loop of your own use Step.from_loss(model, optimizer, loss_fn)."
        )

    @tf.autograph.experimental.do_not_convert
    def compute(self, batch: Batch, part: int | tf.Tensor = 0) -> Sums:
        """Compute this replica's sums over its share of the global batch; call it through `strategy.run`.

        Args:
            batch: `(x, y)` or `(x, y, sample_weight)`; an empty share is not run and adds nothing.
            part: which of the update's global batches this is, from 0 on; each draws random numbers of its own.

        Returns:
            A nest of float tensors: summed gradients, layer state weighted by the number of examples, totals. Nests of
            several batches can be added up before `update`, of a step with `accumulate`.
        """
        step = self._require_built()
        step.require("train")
        step.prepare(batch)  # which finds out whether replicas communicate
        replica, number = local_replica(step.strategy), tf.get_static_value(part)
        number = None if number is None else int(number)
        computed = self._computed.setdefault(tf.compat.v1.get_default_graph(), {}).setdefault((replica, number), [])
        sums = step.sums(OwnRows(batch), part, 0 if number is None else len(computed))
        computed.append(id(sums["totals"]))
        return sums

    @tf.autograph.experimental.do_not_convert
    def update(self, strategy: tf.distribute.Strategy, sums: Sums) -> Logs:
        """Reduce what `compute` returned on all replicas and write the new values; returns the step's logs.

        Raises:
            StepError: `sums` come from more batches than `accumulate`.
        """
        step = self.supervised(strategy)
        computed = self._computed.pop(tf.compat.v1.get_default_graph(), {})
        of_first: list[int] = []  # all replicas call it equally often
        for (replica, _), ids in computed.items():
            of_first += ids if replica == 0 else []
        totals = strategy.experimental_local_results(sums["totals"])[0]
        if len(of_first) > self.accumulate and id(totals) not in of_first:  # of several, that were added up
            raise StepError(
                f"The sums are of {len(of_first)} batches, but this step makes an update of {self.accumulate}, so they "
                f"do not add up to the gradient of all. Make it with Step(..., accumulate={len(of_first)}), or call "
                "step.update for each batch."
            )
        return step.logs(step.update(sums))

    @tf.autograph.experimental.do_not_convert
    def test(self, batch: Batch, part: int | tf.Tensor = 0) -> tf.Tensor:
        """Return this replica's totals over its share, without training; call it through `strategy.run`.

        `part` is the number of the global batch in the data: each draws random numbers of its own.
        """
        step = self._require_built()
        step.prepare(batch, "test")
        return step.test(OwnRows(batch), part)

    @tf.autograph.experimental.do_not_convert
    def predict(self, batch: Batch, part: int | tf.Tensor = 0) -> Nest:
        """Return the model's outputs for this replica's share; call it through `strategy.run`."""
        return self._require_built().predict(OwnRows(batch), part)

    def logs(self, totals: tf.Tensor) -> Logs:
        """Turn totals of one step, or totals added up over many, into Keras's logs: the loss, then each metric."""
        return self._require_built().logs(totals)

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Make the averages the model's weights within the block: evaluate, predict, save and export there.

        ```python
        step = mk.train.Step(model, optimizer, loss=loss, ema=0.999)
        loop = mk.train.Loop(strategy, step)
        loop.fit(train)
        with step.averaged():
            loop.evaluate(test)
        ```

        Weights and floating-point layer state are swapped with their averages until the end of the block; do not train
        within it. Before the first update the averages are the weights. `fit(validation_averaged=True)` uses this.

        Raises:
            StepError: the step has no averages, is not built yet, or is already within such a block.
        """
        return self._require_built().averaged()

    @property
    def is_averaged(self) -> bool:
        """Whether the weights are currently the averages."""
        averages = getattr(self._built, "averages", None)
        return bool(averages and averages.are_in_place)

    @property
    def skipped_steps(self) -> int:
        """How many updates the loss scale has skipped because the gradient was not finite; 0 without a loss scale."""
        return int(self._scale[2])

    @property
    def current_loss_scale(self) -> float:
        """The current factor on the loss; 1 without a loss scale."""
        return float(self._scale[0])

    @property
    def _scale(self) -> list[Any]:
        return [variable.value.numpy() for variable in getattr(self._built, "scale", [])] or [1, 0, 0]

    def _require_built(self) -> Supervised:
        if self._built is None:
            raise StepError("This step is not built yet. Call step.build(strategy), or make a Loop with it.")
        return self.supervised(self._built.strategy)


def build_step(
    strategy: tf.distribute.Strategy,
    model: KerasModel,
    optimizer: KerasOptimizer | None,
    options: Options,
    shown: KerasModel,
    element_spec: Spec = None,
) -> Supervised | KerasStep:
    """Return the step that computes; `shown` is the model that callbacks see, `element_spec` that of the data."""
    if element_spec is None and options.runs_keras:
        raise StepError(
            f"How the train_step of {type(model).__name__} trains is known when it has seen data, so it trains in a "
            "Loop only. Call loop.warm_up(data) before loop.restore; `fit` with Checkpoints restores by itself. For a "
            "training loop of your own use Step.from_loss(model, optimizer, loss_fn)."
        )
    if options.runs_keras:
        build_as_it_trains(model, element_spec, strategy)
    else:
        if element_spec is not None and not is_built(model):
            batch = options.unpack(element_spec)
            check_tensors(tuple(batch))
            require_same_rows(batch.x if batch.y is None else batch.present)
            build(model, batch, strategy)
        is_frozen = options.as_compiled and not model.trainable_variables  # which Keras evaluates
        check_model(model, scaled=options.loss_scale is not None, trains=options.trains and not is_frozen)
    ambient.policy[:] = [keras.config.dtype_policy()]
    trained = _trained(strategy, model, optimizer, options)
    measured = Measured(trained, model, strategy, options)
    shards = strategy.num_replicas_in_sync * options.accumulate
    own = OwnStep(
        trained,
        strategy.num_replicas_in_sync,
        None if options.whole_batch else gather_of(shards),
        measured,
        by_user=options.runs_keras,
        separates=options.accumulate > 1,
    )
    only_for: Spec = () if options.as_compiled else None  # not yet decided
    if element_spec is not None and options.as_compiled:
        only_for = element_spec
        try:
            parts = options.unpack(element_spec)
            data = options.data((parts if options.runs_keras else as_computed(trained, parts)).present)
            found = own.found("train", data)
            if overrides(trained, "test_step"):
                own.found("test", data)
        except NotAFunction as why:
            if options.runs_keras or not why.of_data:
                return _with_variables(strategy, model, options, element_spec, why)
        except StepError:  # of data to predict for, perhaps, that has no targets; else it comes again
            if options.runs_keras:
                raise
        else:
            only_for = None
            optimizer = found.optimizer if options.runs_keras else optimizer
    if options.runs_keras:
        model.built = True  # as Keras's `fit` leaves it
        _log.info(
            "The train_step of %s runs as a function of values, with one update at its end.", type(model).__name__
        )
        optimizer, scale = without_scale(optimizer)
        options = options if options.loss_scale else dataclasses.replace(options, loss_scale=scale)
        check_optimizer(optimizer)
        check_model(model, scaled=options.loss_scale is not None)
    step = Supervised(strategy, model, optimizer, options, own=own, measured=measured, shown=shown)
    step.only_for = None if options.asked else only_for
    if isinstance(model, LossModel):  # now, when all are built
        _log.info("Step.from_loss trains %s.", ", ".join(model.trained_parts))
    shown.built = True  # Keras saves no weights of a model whose parts alone were called
    return step


def _trained(
    strategy: tf.distribute.Strategy, model: KerasModel, optimizer: KerasOptimizer | None, options: Options
) -> KerasModel:
    """Return the model whose `train_step` is run: compiled with what the step was given."""
    if options.as_compiled:
        return model
    with strategy.scope():
        if isinstance(model, LossModel):
            model.compile(optimizer, jit_compile=False, auto_scale_loss=False)
            return model
        return CompiledModel(model, optimizer, {**options.losses, **options.metrics}, trains=options.trains)


def _with_variables(
    strategy: tf.distribute.Strategy, model: KerasModel, options: Options, element_spec: Spec, why: NotAFunction
) -> KerasStep:
    """Return the step that runs the model's `train_step` on each replica, with variables of the replica's own."""
    name = type(model).__name__
    _log.info("The train_step of %s runs on each replica with variables of its own: %s.", name, why)
    if not has_copies(strategy):
        raise StepError(
            f"{class_name(strategy)} has one copy of a variable for all replicas, so the train_step of {name} "
            f"would have to make one update, at its end: {why}. Use mirrored or multi_worker, or "
            "Step.from_loss(model, optimizer, loss_fn)."
        ) from None
    if options.asked:
        raise StepError(
            f"Step.from_compiled was given {', '.join(options.asked)} for {name}, whose train_step would have to make "
            f"one update, at its end: {why}. Write the option into the train_step."
        ) from None
    return KerasStep(strategy, model, options, element_spec if why.of_data else None)
