"""Step: what one training step computes on each replica, and the update that follows from the reduced sums.

```python
step = mk.train.Step(model, optimizer, loss="mse", metrics=["mae"])
step.build(strategy)
sums = strategy.run(step.compute, args=(batch,))  # per replica: gradient, layer state, metric sums, example count
logs = step.update(strategy, sums)                # one reduction, then the same update on every replica
```
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mirrorkit.errors import StepError
from mirrorkit.strategy import is_tpu
from mirrorkit.train.reduce.packing import BUCKET_MIB
from mirrorkit.train.reduce.update import Update
from mirrorkit.train.step import requirements
from mirrorkit.train.step.accumulation import RunningSums
from mirrorkit.train.step.averages import Averages
from mirrorkit.train.step.calling import predict_with
from mirrorkit.train.step.clock import Clock
from mirrorkit.train.step.compiled import compile_model, compiled_parts
from mirrorkit.train.step.functions import LOSS, Changing, Clip, Functions
from mirrorkit.train.step.layer_state import LayerState
from mirrorkit.train.step.loss_scale import LossScale
from mirrorkit.train.step.losses import warn_on_logits_mismatch
from mirrorkit.train.step.outputs import unpack_batch
from mirrorkit.train.step.share import Share, own_share
from mirrorkit.train.step.static_shapes import require_tpu_precision
from mirrorkit.variables import native


class Step:
    """A supervised training step for any Keras 3 model, loss, metrics and optimizer, the same for 1 and N replicas.

    The loss is the mean over the examples of the *global* batch plus `model.losses` once, whatever the number of
    replicas and however unequal their shares. Clipping, loss scale and averages act after the reduction.

    Args:
        model: a built Keras model, created in the strategy's scope. It is compiled with this optimizer, loss and
            metrics, for callbacks and saved files, unless it already is.
        optimizer: a Keras optimizer, created in the strategy's scope.
        loss: a Keras loss, its name, or a function `(y_true, y_pred) -> values [batch]`; for several outputs a dict by
            output name or a list.
        metrics: Keras metrics or their names; for several outputs a dict or a list of lists. Any metric whose state
            adds up; another is refused by name.
        weighted_metrics: the same; these see the sample weights.
        loss_weights: for several outputs, the number that multiplies each loss.
        clip_norm: largest global norm of the reduced gradient (Pascanu et al. 2013, arXiv:1211.5063).
        clip_value: largest size of a single number in the reduced gradient; not together with `clip_norm`.
        accumulate: global batches for one update, which is then that of one batch so many times as large.
        loss_scale: "dynamic", a fixed number or a `mk.train.LossScale`; mixed_float16 needs one. A step whose reduced
            gradient is not finite is skipped and counted.
        ema: decay of an exponential moving average of the weights, such as 0.999; see `averaged`.
        unchecked: names of what may differ between a batch and its parts: a metric's or loss's log name, "add_loss",
            "rows", "state" (docs/differences.md). On several replicas `fit` checks the first batch.
        bucket_mib: size of the messages in which sums travel between replicas, in MiB (see `mk.train.all_reduce`).
        jit_compile: compile the replica's computation with XLA; slower for convolutions on CPU.

    Raises:
        StepError: the parts do not fit each other, or cannot mean the same on several replicas.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        loss: Any,
        metrics: Any = None,
        weighted_metrics: Any = None,
        loss_weights: Any = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        loss_scale: str | float | LossScale | None = None,
        ema: float | None = None,
        unchecked: Sequence[str] = (),
        bucket_mib: float = BUCKET_MIB,
        jit_compile: bool = False,
    ) -> None:
        requirements.check_overrides(model)
        requirements.check_optimizer(optimizer)
        requirements.check_options(clip_norm, clip_value, accumulate=accumulate, ema=ema, bucket_mib=bucket_mib)
        warn_on_logits_mismatch(model, loss)
        self.model = model
        self.optimizer = optimizer
        self.accumulate = int(accumulate)
        self.clip_norm = clip_norm
        self._clip = Clip(clip_norm, clip_value)
        self._loss_scale = LossScale.of(loss_scale)
        self._ema = ema
        self._given = {"loss": loss, "loss_weights": loss_weights}
        self._given_metrics = {"metrics": metrics, "weighted_metrics": weighted_metrics}
        self._unchecked = [unchecked] if isinstance(unchecked, str) else list(unchecked)
        self._checked: set[str] = set()  # before which kind of step a batch was checked
        self._bucket_mib = bucket_mib
        self._jit_compile = jit_compile
        self._strategy: tf.distribute.Strategy | None = None
        self._averages: Averages | None = None
        self._scale: list[Any] = []  # variables: the scale, good steps, skipped steps

    loss_index = LOSS

    @classmethod
    def from_compiled(cls, model: Any, **options: Any) -> Step:
        """Take optimizer, loss and metrics from a model on which `compile` was called in the strategy's scope.

        Args:
            model: a compiled Keras model.
            **options: further arguments of `Step`, such as `clip_norm`.

        Raises:
            StepError: the model is not compiled, or a custom loss is not registered with Keras.
        """
        requirements.check_overrides(model)  # first: such a model may need no loss
        return cls(model, **{**compiled_parts(model), **options})

    @property
    def variables(self) -> list[Any]:
        """All variables that a step may change: weights, layer state, optimizer slots, averages, loss scale."""
        averages = [] if self._averages is None else self._averages.variables
        of_model = [*self.model.trainable_variables, *self.model.non_trainable_variables]
        return [*of_model, *self.optimizer.variables, *averages, *self._scale]

    def build(self, strategy: tf.distribute.Strategy) -> None:
        """Create what is missing (slots, averages, loss scale) in the strategy's scope; once.

        Raises:
            StepError: the model is not built, was created outside of the scope, or belongs to another strategy.
        """
        if self._strategy is not None:
            if self._strategy is not strategy:
                raise StepError("This step was built for another strategy. Create another model, optimizer and step.")
            return
        requirements.check_model(self.model, scaled=self._loss_scale is not None)
        if is_tpu(strategy):
            require_tpu_precision(self.model)
        requirements.check_variables(strategy, self.variables)
        weights = list(self.model.trainable_variables)
        with strategy.scope():
            self.optimizer.build(weights)
            requirements.check_built_for(self.optimizer, self.model)
            compile_model(self.model, self.optimizer, loss=self._given["loss"], **self._given_metrics)
            if self._ema is not None:
                self._averages = Averages(self._ema, weights)
            if self._loss_scale is not None:
                self._scale = self._loss_scale.create()
        state = LayerState(self.model)
        self.clock = Clock(self.optimizer, self._scale[2] if self._scale else None, state.seeds)
        averages = [] if self._averages is None else self._averages.variables
        self._changing = Changing(weights, list(self.optimizer.variables), state.variables, averages, self._scale)
        self._functions = Functions(
            self.model,
            self.optimizer,
            state=state,
            variables=self._changing,
            clip=self._clip,
            averages=self._averages,
            loss_scale=self._loss_scale,
            clock=self.clock,
            shards=strategy.num_replicas_in_sync * self.accumulate,
            jit_compile=self._jit_compile,
        )
        self._update = Update(
            strategy,
            self._changing.flat,
            self._functions.new_values,
            bucket_mib=self._bucket_mib,
            last_wins=self._scale[:2],  # the scale and its counter
        )
        self._running, self._strategy = RunningSums(strategy), strategy

    def prepare(self, element_spec: Any) -> None:
        """Check batches like `element_spec` (tensors or specs); the first time, resolve losses and metrics for them."""
        requirements.check_still_trainable(self.model, self._changing.weights)
        self.clock.require_same_schedule()
        batch = unpack_batch(element_spec)
        requirements.check_tensors(tuple(batch))
        requirements.check_batched(self.model, batch.x)
        requirements.check_rows(batch)
        self._functions.resolve(batch, self._given, self._given_metrics)

    def first_batch_check(self, what: str = "train") -> Callable[[Any], None] | None:
        """Return what checks a global batch before the first step to "train" or "test"; None without need."""
        shards = self._require_built().num_replicas_in_sync * (self.accumulate if what == "train" else 1)
        return None if shards == 1 or self._checked & {what, "train"} else functools.partial(self._check_batch, what)

    def _check_batch(self, what: str, batch: Any) -> None:
        self.prepare(batch)
        replicas = self._require_built().num_replicas_in_sync
        self._functions.check_batch(self._values(), batch, replicas, self._unchecked, training=what == "train")
        self._checked.add(what)

    @property
    def totals_size(self) -> int:
        """Number of values in a step's totals; known after `prepare`."""
        return self._functions.totals_size

    @property
    def modes(self) -> dict[str, str]:
        """For each log name "max" or "min", whichever is better, where Keras knows it; known after `prepare`."""
        return self._functions.modes

    @tf.autograph.experimental.do_not_convert
    def compute(self, batch: Any, part: int | tf.Tensor = 0, share: Share | None = None) -> Any:
        """Compute this replica's sums over its share of the global batch; call it through `strategy.run`.

        Args:
            batch: `(x, y)` or `(x, y, sample_weight)`; an empty share is not run and adds nothing.
            part: which of the update's global batches this is, from 0 on; each draws random numbers of its own.
            share: takes this replica's share out of `batch`, a global batch; None where `batch` is that share.

        Returns:
            A nest of float tensors: summed gradients, layer state weighted by the number of examples, totals. Nests of
            several batches can be added up before `update`.
        """
        self._require_built()
        rows, copies = self._functions.rows(batch, share)
        self.prepare(rows)
        now = self.clock.now()
        sums = self._functions.train_sums(self._values(now.seeds), unpack_batch(rows).present, now.place(part))
        return sums if copies is None else copies.weigh(sums)

    @tf.autograph.experimental.do_not_convert
    def update(self, strategy: tf.distribute.Strategy, sums: Any) -> dict[str, tf.Tensor]:
        """Reduce what `compute` returned on all replicas and write the new values; returns the step's logs."""
        self.build(strategy)
        return self.logs(self._update(sums))

    def train(self, batch: Any, share: Share = own_share) -> tf.Tensor:
        """Compute and update in one `strategy.run`, and return the totals (see `logs`); in cross-replica context.

        Args:
            batch: what `share` takes; a whole global batch by default.
            share: called on each replica; returns its share of the global batch.
        """
        return self._update.after(functools.partial(self.compute, share=share))(batch)

    def train_parts(self, batches: Sequence[Any], first_part: int | tf.Tensor = 0) -> tf.Tensor:
        """Make one update of several global batches in one `strategy.run`, and return the totals; cross-replica.

        Unlike `add` and `finish` it holds everything in one graph and no sums in variables, so any worker can run it.

        Args:
            batches: one for each part.
            first_part: number of the first part; each draws random numbers of its own.
        """

        def sums(*batches: Any) -> Any:
            parts = [self.compute(batch, first_part + i, own_share) for i, batch in enumerate(batches)]
            return parts[0] if len(parts) == 1 else tf.nest.map_structure(lambda *values: tf.add_n(values), *parts)

        return self._update.after(sums)(*batches)

    def add(self, batch: Any, part: int | tf.Tensor, share: Share = own_share) -> None:
        """Compute the sums of one of an update's global batches and add them to the others'; `finish` comes last.

        Args:
            batch: as in `train`.
            part: 0 for the first batch of an update (it begins the sums anew), then 1, 2, ...; a tensor will do.
            share: as in `train`.
        """

        def add(batch: Any) -> None:
            self._running.add(self.compute(batch, part, share), part)

        self._require_built().run(add, args=(batch,))

    def finish(self) -> tf.Tensor:
        """Update from what `add` has added up; returns the totals of all its batches."""
        return self._update.after(self._running.read)()

    @tf.autograph.experimental.do_not_convert
    def test(self, batch: Any) -> tf.Tensor:
        """Return this replica's totals of its share without training; call it through `strategy.run`."""
        self.prepare(batch)
        return self._functions.test_totals(self._values(), unpack_batch(batch).present)

    @tf.autograph.experimental.do_not_convert
    def predict(self, batch: Any) -> Any:
        """Return the model's outputs for this replica's share; call it through `strategy.run`."""
        requirements.check_predicts_as_keras(self.model)
        return predict_with(self.model, unpack_batch(batch).x)

    def logs(self, totals: tf.Tensor) -> dict[str, tf.Tensor]:
        """Turn totals of one step, or totals added up over many, into Keras's logs: the loss, then each metric."""
        return self._functions.logs(totals)

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Let the model's weights be the averages within the block: evaluate, predict, save and export there.

        ```python
        step = mk.train.Step(model, optimizer, loss="mse", ema=0.999)
        ...
        with step.averaged():
            loop.evaluate(test)
            model.save("averaged.keras")
        ```

        Weights and averages change places, and back at the end of the block; do not train within it. Before the first
        update the averages are the weights themselves.

        Raises:
            StepError: the step has no averages, is not built yet, or is within such a block already.
        """
        if self._ema is None:
            raise StepError("This step keeps no averages of the weights. Give it a decay: Step(..., ema=0.999).")
        strategy = self._require_built()
        if self._averages is None or int(self.optimizer.iterations.value.numpy()) == 0:
            return contextlib.nullcontext()
        return self._averages.in_place(strategy)

    @property
    def is_averaged(self) -> bool:
        """Whether the weights are the averages at present."""
        return self._averages is not None and self._averages.are_in_place

    @property
    def accumulators(self) -> list[list[tf.Variable]]:
        """With `accumulate` the variables that add up an update's batches, of each replica of this worker."""
        return self._running.variables

    @property
    def skipped_steps(self) -> int:
        """How many updates the loss scale has skipped because the gradient was not finite; 0 without a loss scale."""
        return int(self._scale[2].value.numpy()) if self._scale else 0

    @property
    def current_loss_scale(self) -> float:
        """The factor on the loss at present; 1 without a loss scale."""
        return float(self._scale[0].value.numpy()) if self._scale else 1.0

    def _require_built(self) -> tf.distribute.Strategy:
        if self._strategy is None:
            raise StepError("This step is not built yet. Call step.build(strategy), or make a Loop with it.")
        return self._strategy

    def _values(self, known: Mapping[int, tf.Tensor] | None = None) -> Changing:
        """Read what the computation on a replica depends on, where it is not known by the id of its variable."""
        known, groups = known or {}, self._changing._replace(slots=[], averages=[])
        return Changing(
            *[[known[id(v)] if id(v) in known else tf.convert_to_tensor(native(v)) for v in group] for group in groups]
        )
