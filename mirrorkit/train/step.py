"""Step: what one training step computes on each replica, and the update that follows from the reduced sums.

```python
step = mk.train.Step(model, optimizer, loss="mse", metrics=["mae"])
step.build(strategy)
sums = strategy.run(step.compute, args=(batch,))  # per replica: gradient, layer state, metric sums, example count
logs = step.update(strategy, sums)                # one reduction, then the same update on every replica
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.optim import functional_apply
from mirrorkit.train.accumulation import RunningSums
from mirrorkit.train.layer_state import LayerState
from mirrorkit.train.losses import Losses, warn_on_logits_mismatch
from mirrorkit.train.metrics import Metrics
from mirrorkit.train.outputs import Batch, count_examples, match, output_names, per_output, unpack_batch
from mirrorkit.train.requirements import check_batched, check_built_for, check_model, check_optimizer, check_variables
from mirrorkit.train.share import own_share, require_examples, unless_empty
from mirrorkit.train.tracing import TraceOnce, outside_replica
from mirrorkit.train.update import Update, native

# Layout of the totals, a flat float32 vector: these three, then each output's own loss, then the metrics' states.
_EXAMPLES, _LOSS, _DENOMINATOR, _FIXED = 0, 1, 2, 3


class Step:
    """A supervised training step for any Keras 3 model, loss, metrics and optimizer, the same for 1 and N replicas.

    The loss is the mean over the examples of the *global* batch plus `model.losses` once, whatever the number of
    replicas and however unequal their shares; gradients are clipped after the reduction.

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
        accumulate: global batches for one update, which is then that of one batch so many times as large.
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
        accumulate: int = 1,
        jit_compile: bool = False,
    ) -> None:
        check_optimizer(optimizer)
        if clip_norm is not None and not clip_norm > 0:
            raise StepError(f"clip_norm must be a positive number, found {clip_norm!r}.")
        if not isinstance(accumulate, int) or accumulate < 1:
            raise StepError(f"accumulate must be a whole number from 1 on, found {accumulate!r}.")
        warn_on_logits_mismatch(model, loss)
        self.model = model
        self.optimizer = optimizer
        self.clip_norm = clip_norm
        self.accumulate = accumulate
        self._given = {"loss": loss, "loss_weights": loss_weights}
        self._given_metrics = {"metrics": metrics, "weighted_metrics": weighted_metrics}
        self._jit_compile = jit_compile
        self._strategy: tf.distribute.Strategy | None = None
        self._names: list[str | None] = []

    loss_index = _LOSS

    @classmethod
    def from_compiled(cls, model: Any, **options: Any) -> Step:
        """Take optimizer, loss and metrics from a model on which `compile` was called in the strategy's scope.

        Args:
            model: a compiled Keras model.
            **options: further arguments of `Step`, such as `clip_norm`.

        Raises:
            StepError: the model is not compiled, or a custom loss is not registered with Keras.
        """
        if not getattr(model, "compiled", False):
            raise StepError("The model is not compiled. Call model.compile(...) in the strategy's scope, or use Step.")
        config = model.get_compile_config()
        if config.get("loss") is None:
            raise StepError("The model is compiled without a loss. Call model.compile(optimizer, loss=...).")
        try:
            parts = {
                name: keras.saving.deserialize_keras_object(config[name])
                for name in ("loss", "metrics", "weighted_metrics", "loss_weights")
                if config.get(name) is not None
            }
        except (TypeError, ValueError) as error:
            raise StepError(
                "A custom loss or metric of the compiled model cannot be copied. Register it with "
                "keras.saving.register_keras_serializable, or call Step(model, model.optimizer, loss=...)."
            ) from error
        return cls(model, model.optimizer, **parts, **options)

    @property
    def variables(self) -> list[Any]:
        """All variables that a step may change: weights, layer state, optimizer slots."""
        return [*self.model.trainable_variables, *self.model.non_trainable_variables, *self.optimizer.variables]

    def build(self, strategy: tf.distribute.Strategy) -> None:
        """Create what is missing (optimizer slots) in the strategy's scope; does nothing the second time.

        Raises:
            StepError: the model is not built, was created outside of the scope, or belongs to another strategy.
        """
        if self._strategy is not None:
            if self._strategy is not strategy:
                raise StepError("This step was built for another strategy. Create model, optimizer and step anew.")
            return
        check_model(self.model)
        check_variables(strategy, self.variables)
        with strategy.scope():
            self.optimizer.build(self.model.trainable_variables)
            check_built_for(self.optimizer, self.model)
            self._compile_model()
        self._weights = list(self.model.trainable_variables)
        self._state = LayerState(self.model)
        self._slots = list(self.optimizer.variables)
        if self._state.synchronized:  # it talks to the other replicas, so it must be traced on each of them
            self._train_sums: Callable[..., Any] = self._pure_train_sums
        else:
            self._train_sums = TraceOnce(self._pure_train_sums, jit_compile=self._jit_compile)
        self._test_totals = TraceOnce(self._pure_test_totals, jit_compile=self._jit_compile)
        self._apply = TraceOnce(self._pure_apply)
        self._update = Update(strategy, [*self._weights, *self._slots, *self._state.variables], self._new_values)
        self._running = RunningSums(strategy)
        self._strategy = strategy

    def _compile_model(self) -> None:
        # Keras callbacks look for model.optimizer, and a saved model should know how it was trained.
        if not getattr(self.model, "compiled", False) or self.model.optimizer is not self.optimizer:
            loss, metrics = self._given["loss"], self._given_metrics["metrics"]
            self.model.compile(optimizer=self.optimizer, loss=loss, metrics=metrics, auto_scale_loss=False)

    def prepare(self, element_spec: Any) -> None:
        """Check batches like `element_spec` (tensors or specs); the first time, resolve losses and metrics for them."""
        if [id(v) for v in self._weights] != [id(v) for v in self.model.trainable_variables]:
            raise StepError(
                "The model's trainable variables are not those that this step was built for: `trainable` was changed "
                "since. Make a new optimizer and a new Step after changing it."
            )
        batch = unpack_batch(element_spec)
        check_batched(self.model, batch.x)
        if not self._names:
            outside_replica(lambda: self._resolve(batch))
        self._losses.require_targets(per_output(self._names, batch.y, "targets"))

    def _resolve(self, batch: Batch) -> None:
        def symbolic(spec: Any) -> Any:
            return keras.KerasTensor((None, *spec.shape[1:]), dtype=spec.dtype.name)

        y_pred = self.model.compute_output_spec(tf.nest.map_structure(symbolic, batch.x))
        names = output_names(self.model, y_pred)
        outputs = match(names, batch.y, y_pred, None)
        self._losses = Losses(outputs=outputs, **self._given)
        self._metrics = Metrics(outputs=outputs, **self._given_metrics)
        self._names = names

    @property
    def totals_size(self) -> int:
        """Number of values in a step's totals; known after `prepare`."""
        return _FIXED + len(self._losses.own_names) + self._metrics.size

    @tf.autograph.experimental.do_not_convert
    def compute(self, batch: Any, part: int | tf.Tensor = 0) -> Any:
        """Compute this replica's sums over its share of the global batch; call it through `strategy.run`.

        Args:
            batch: `(x, y)` or `(x, y, sample_weight)`; an empty share is not run and adds nothing.
            part: which of the update's global batches this is, from 0 on; each draws random numbers of its own.

        Returns:
            A nest of float tensors: summed gradients, layer state weighted by the number of examples, totals. Nests of
            several batches can be added up before `update`.
        """
        if self._strategy is None:
            raise StepError("This step is not built yet. Call step.build(strategy) before the first step.")
        self.prepare(batch)
        context = tf.distribute.get_replica_context()
        shard = context.replica_id_in_sync_group
        if tf.get_static_value(part) != 0:
            shard = shard + tf.cast(part, tf.int32) * context.num_replicas_in_sync
        weights, state = _values(self._weights), _values(self._state.variables)
        return self._train_sums(weights, state, _present(batch), tf.convert_to_tensor(shard))

    @tf.autograph.experimental.do_not_convert
    def update(self, strategy: tf.distribute.Strategy, sums: Any) -> dict[str, tf.Tensor]:
        """Reduce what `compute` returned on all replicas and write the new values; returns the step's logs."""
        self.build(strategy)
        return self.logs(self._update(sums))

    def train(self, batch: Any, share: Callable[[Any], Any] = own_share) -> tf.Tensor:
        """Compute and update in one `strategy.run`; call it in cross-replica context.

        Args:
            batch: what `share` takes; a whole global batch by default.
            share: called on each replica; returns its share of the global batch.

        Returns:
            The totals (see `logs`).
        """
        return self._update.after(lambda batch: self.compute(share(batch)))(batch)

    def add(self, batch: Any, part: int | tf.Tensor, share: Callable[[Any], Any] = own_share) -> None:
        """Compute the sums of one of an update's global batches and add them to the others'; `finish` comes last.

        Args:
            batch: as in `train`.
            part: 0 for the first batch of an update (it begins the sums anew), then 1, 2, ...; a tensor will do.
            share: as in `train`.
        """
        self._strategy.run(lambda batch: self._running.add(self.compute(share(batch), part), part), args=(batch,))

    def finish(self) -> tf.Tensor:
        """Update from what `add` has added up; returns the totals of all its batches."""
        return self._update.after(self._running.read)()

    @tf.autograph.experimental.do_not_convert
    def test(self, batch: Any) -> tf.Tensor:
        """Return this replica's totals of its share without training; call it through `strategy.run`."""
        self.prepare(batch)
        return self._test_totals(_values(self._weights), _values(self._state.variables), _present(batch))

    @tf.autograph.experimental.do_not_convert
    def predict(self, batch: Any) -> Any:
        """Return the model's outputs for this replica's share; call it through `strategy.run`."""
        return self.model(unpack_batch(batch).x, training=False)

    def logs(self, totals: tf.Tensor) -> dict[str, tf.Tensor]:
        """Turn totals of one step, or totals added up over many, into Keras's logs: the loss, then each metric."""
        denominator = tf.maximum(totals[_DENOMINATOR], 1e-12)
        logs = {"loss": totals[_LOSS] / denominator}
        own = self._losses.own_names
        for index, name in enumerate(own, start=_FIXED):
            logs[name] = totals[index] / denominator
        return {**logs, **self._metrics.results(totals[_FIXED + len(own) :])}

    # Below: pure functions of tensors.

    def _pure_train_sums(self, weights: Any, state: Any, batch: Any, shard: tf.Tensor) -> Any:
        def sums() -> Any:
            own_state = self._state.seeded(state, shard)
            with tf.GradientTape() as tape:
                tape.watch(weights)
                objective, totals, new_state = self._forward(weights, own_state, batch, training=True)
            gradients = tape.gradient(objective, weights)
            self._has_gradient = [gradient is not None for gradient in gradients]
            if not any(self._has_gradient):
                raise StepError(
                    "The loss does not depend on any trainable weight of the model. Look at loss and model."
                )
            return {
                "gradients": [_dense(g, w) for g, w in zip(gradients, weights, strict=True) if g is not None],
                "state": self._state.sums(own_state, new_state, totals[_EXAMPLES]),
                "totals": totals,
            }

        def nothing() -> Any:
            return {
                "gradients": [tf.zeros_like(w) for w, has in zip(weights, self._has_gradient, strict=True) if has],
                "state": self._state.no_sums(),
                "totals": tf.zeros([self.totals_size]),
            }

        if self._state.synchronized:
            return require_examples(batch, sums)
        return unless_empty(batch, sums, nothing)

    def _pure_test_totals(self, weights: Any, state: Any, batch: Any) -> tf.Tensor:
        return unless_empty(
            batch,
            lambda: self._forward(weights, state, batch, training=False)[1],
            lambda: tf.zeros([self.totals_size]),
        )

    def _forward(self, weights: Any, state: Any, batch: Any, *, training: bool) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """Return the objective (a sum over examples), the totals, and the layer state after the pass."""
        batch = unpack_batch(batch)
        y_pred, new_state, extra = self.model.stateless_call(
            weights, state, batch.x, training=training, return_losses=True
        )
        outputs = match(self._names, batch.y, y_pred, batch.weight)
        examples = tf.cast(count_examples(batch), tf.float32)
        loss, denominator, own = self._losses.sums(outputs, examples)
        if extra:  # regularisers and add_loss: once for the whole batch, so each shard carries its part
            loss += denominator * tf.add_n([tf.cast(value, tf.float32) for value in extra])
        head = tf.stack([examples, loss, denominator, *own])
        return loss, tf.concat([head, *self._metrics.sums(outputs)], 0), new_state

    def _pure_apply(self, weights: Any, slots: Any, gradients: Any, denominator: tf.Tensor) -> Any:
        gradients = [tf.math.divide_no_nan(g, tf.cast(denominator, g.dtype)) for g in gradients]
        if self.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.clip_norm)
        dense = iter(gradients)
        return functional_apply(
            self.optimizer, weights, slots, [next(dense) if has else None for has in self._has_gradient]
        )

    def _new_values(self, sums: Any, values: list[tf.Tensor]) -> tuple[list[tf.Tensor | None], tf.Tensor]:
        count, slots = len(self._weights), len(self._slots)
        weights, slot_values, state = values[:count], values[count : count + slots], values[count + slots :]
        totals = sums["totals"]
        new_weights, new_slots = self._apply(weights, slot_values, sums["gradients"], totals[_DENOMINATOR])
        return [*new_weights, *new_slots, *self._state.new_values(sums["state"], state, totals[_EXAMPLES])], totals


def _dense(gradient: Any, weight: tf.Tensor) -> tf.Tensor:
    # Some optimizers treat sparse gradients differently, and some gradients have lost their static shape.
    return tf.ensure_shape(tf.convert_to_tensor(gradient), weight.shape)


def _values(variables: list[Any]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(native(variable)) for variable in variables]


def _present(batch: Any) -> tuple[Any, ...]:
    return tuple(part for part in unpack_batch(batch) if part is not None)
