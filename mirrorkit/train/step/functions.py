"""The arithmetic of a step: pure functions of tensors, traced once and the same on every replica.

`train_sums` and `test_totals` give what one shard adds; `new_values` what follows from the sums over all shards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.optim import functional_apply
from mirrorkit.optim.packed import Packed
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.reduce.tracing import TraceOnce, outside_replica
from mirrorkit.train.step.averages import Averages
from mirrorkit.train.step.calling import call_model
from mirrorkit.train.step.clock import Clock
from mirrorkit.train.step.global_batch import GlobalBatch, unless_empty
from mirrorkit.train.step.layer_state import LayerState
from mirrorkit.train.step.loss_scale import LossScale, all_finite, only_if
from mirrorkit.train.step.losses import Losses, LossSum
from mirrorkit.train.step.metrics import Metrics
from mirrorkit.train.step.outputs import Batch, count_examples, match, output_names, per_output, unpack_batch
from mirrorkit.train.step.split_check import About, compare_parts
from mirrorkit.train.step.synchronized import Copies, never_empty
from mirrorkit.variables import unchanged

# Layout of the totals, a flat float32 vector: these three, then numerator and denominator of each output's loss, then
# the metrics' states. LOSS is all that is minimized, added up: not finite where any part of it is not. ADDED is what
# layers add to the loss (regularisers, add_loss), times the examples.
EXAMPLES, LOSS, ADDED, FIXED = 0, 1, 2, 3


class Changing(NamedTuple):
    """What an update changes, in groups: variables, or their values."""

    weights: list[Any]
    slots: list[Any]
    state: list[Any]
    averages: list[Any]
    scale: list[Any]

    def regroup(self, flat: Sequence[Any]) -> Changing:
        """Put a flat list of as many things into the same groups."""
        rest = iter(flat)
        return Changing(*[[next(rest) for _ in group] for group in self])

    @property
    def flat(self) -> list[Any]:
        """All groups in one list."""
        return [thing for group in self for thing in group]


class Clip(NamedTuple):
    """Bounds for the mean gradient, after the reduction; at most one of them is set."""

    norm: float | None  # of all gradients together
    value: float | None  # of each number

    def __call__(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return the gradients within the bounds."""
        if self.norm is not None:
            return tf.clip_by_global_norm(gradients, self.norm)[0]
        if self.value is not None:
            return [tf.clip_by_value(gradient, -self.value, self.value) for gradient in gradients]
        return gradients


class Term(NamedTuple):
    """A part of what is minimized: a sum over examples, divided by one of the totals of the whole batch."""

    numerator: tf.Tensor
    divisor: int  # index into the totals


class Functions:
    """The functions of one step.

    Args:
        model: a built Keras model.
        optimizer: a built Keras optimizer.
        state: the model's layer state.
        variables: all that the step changes.
        clip: bounds for the mean gradient.
        averages: averages of the weights, or None.
        loss_scale: how the loss is scaled, or None.
        clock: knows the learning rate of a step.
        shards: into how many shards one update's examples are cut (replicas times accumulated batches).
        jit_compile: compile what a replica computes with XLA.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        state: LayerState,
        variables: Changing,
        clip: Clip,
        averages: Averages | None,
        loss_scale: LossScale | None,
        clock: Clock,
        shards: int,
        jit_compile: bool,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._iterations = next(i for i, v in enumerate(variables.slots) if v is optimizer.iterations)
        self._state = state
        self._variables = variables
        self._clip = clip
        self._averages = averages
        self._loss_scale = loss_scale
        self._clock = clock
        self._shards = shards
        if state.synchronized:  # it talks to the other replicas, so it must be traced on each of them
            self.train_sums: Callable[..., Any] = self._train_sums
        else:
            self.train_sums = TraceOnce(self._train_sums, jit_compile=jit_compile)
        self.test_totals = TraceOnce(self._test_totals, jit_compile=jit_compile)
        self._apply = TraceOnce(self._pure_apply)
        self._names: list[str | None] = []  # of the model's outputs
        self._has_gradient: list[list[bool]] = []  # for each term and weight; known once the model was traced
        self._divisors: list[int] = []  # of the terms

    def resolve(self, batch: Batch, losses: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        """Find out, once, which loss and metrics belong to which output.

        Args:
            batch: tensors or specs.
            losses: arguments of `Losses`.
            metrics: arguments of `Metrics`.
        """
        if not self._names:
            outside_replica(lambda: self._resolve(batch, losses, metrics))
        self._losses.require_targets(per_output(self._names, batch.y, "targets"))

    def _resolve(self, batch: Batch, losses: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        def symbolic(spec: Any) -> Any:
            return keras.KerasTensor((None, *spec.shape[1:]), dtype=spec.dtype.name)

        y_pred = self._model.compute_output_spec(tf.nest.map_structure(symbolic, batch.x))
        names = output_names(self._model, y_pred)
        outputs = match(names, batch.y, y_pred, None)
        self._losses = Losses(outputs=outputs, **losses)
        self._metrics = Metrics(outputs=outputs, **metrics)
        self._names = names

    def check_batch(
        self, values: Changing, batch: Any, replicas: int, unchecked: Sequence[str], *, training: bool
    ) -> None:
        """Refuse a step that means something else on several shards of a batch; see `split_check`."""
        known = {*self._losses.own_names, *self._metrics.names, "loss", "add_loss", "rows", "state"}
        if unknown := sorted(set(unchecked) - known):
            raise StepError(f"unchecked={unknown} names nothing that is checked; {', '.join(sorted(known))} are.")
        about = About(self._model, self._losses, self._metrics, self._names, training)
        shards = (self._shards, replicas)
        with unchanged([]):  # a layer may draw from Python's or NumPy's generator
            outside_replica(
                lambda: compare_parts(about, values.weights, values.state, unpack_batch(batch), shards, unchecked)
            )

    def rows(self, batch: GlobalBatch) -> tuple[Any, Copies | None]:
        """Return the rows that this replica computes, and how their sums count (None for fully)."""
        return never_empty(batch) if self._state.synchronized else (batch.rows(), None)

    @property
    def totals_size(self) -> int:
        """Number of values in the totals."""
        return FIXED + 2 * len(self._losses.members) + self._metrics.size

    @property
    def modes(self) -> dict[str, str]:
        """For each log name "max" or "min", whichever is better, where it is known."""
        return {**dict.fromkeys(["loss", *self._losses.own_names], "min"), **self._metrics.modes}

    def logs(self, totals: tf.Tensor) -> dict[str, tf.Tensor]:
        """Turn totals into Keras's logs."""
        own = []
        for index in range(FIXED, FIXED + 2 * len(self._losses.members), 2):
            own.append(totals[index] / tf.maximum(totals[index + 1], 1e-12))
        parts = [weight * value for weight, value in zip(self._losses.weights, own, strict=True)]
        loss = tf.add_n([*parts, totals[ADDED] / tf.maximum(totals[EXAMPLES], 1e-12)])
        logs = {"loss": loss, **dict(zip(self._losses.own_names, own, strict=False))}  # no names for a single output
        return {**logs, **self._metrics.results(totals[FIXED + 2 * len(own) :])}

    def _train_sums(self, values: Changing, batch: Any, place: tf.Tensor) -> Any:
        """Return what a shard adds; of `values` only weights, state and scale are there, `place` is for the seeds."""
        weights = values.weights

        def sums() -> Any:
            own_state = self._state.seeded(values.state, place)
            with tf.GradientTape(persistent=True) as tape:  # one gradient for each term
                tape.watch(weights)
                terms, totals, new_state = self._forward(weights, own_state, batch, training=True)
                scaled = [self._scaled(term, totals, values.scale) for term in terms]
            gradients = [tape.gradient(objective, weights) for objective, _ in scaled]
            self._has_gradient = [[gradient is not None for gradient in of_term] for of_term in gradients]
            self._divisors = [term.divisor for term in terms]
            if not any(map(any, self._has_gradient)):
                raise StepError(
                    "The loss does not depend on any trainable weight of the model. Look at loss and model."
                )
            return {
                "gradients": [
                    unscale(_dense(gradient, weight))
                    for of_term, (_, unscale) in zip(gradients, scaled, strict=True)
                    for gradient, weight in zip(of_term, weights, strict=True)
                    if gradient is not None
                ],
                "state": self._state.sums(own_state, new_state, totals[EXAMPLES]),
                "totals": totals,
            }

        def nothing() -> Any:
            return {
                "gradients": [
                    tf.zeros_like(weight)
                    for of_term in self._has_gradient
                    for weight, has in zip(weights, of_term, strict=True)
                    if has
                ],
                "state": self._state.no_sums(),
                "totals": tf.zeros([self.totals_size]),
            }

        return sums() if self._state.synchronized else unless_empty(batch, sums, nothing)

    def _test_totals(self, values: Changing, batch: Any) -> tf.Tensor:
        return unless_empty(
            batch,
            lambda: self._forward(values.weights, values.state, batch, training=False)[1],
            lambda: tf.zeros([self.totals_size]),
        )

    def objective(self, weights: Any, state: Any, batch: Any, place: tf.Tensor) -> tf.Tensor:
        """Return what a shard's step minimizes; outside of the training, with these values of weights and state."""
        terms, *_ = self._forward(weights, self._state.seeded(state, place), batch, training=True)
        return tf.add_n([term.numerator for term in terms])

    def _forward(
        self, weights: Any, state: Any, batch: Any, *, training: bool
    ) -> tuple[list[Term], tf.Tensor, list[tf.Tensor]]:
        """Return what to minimize, the totals, and the layer state after the pass."""
        batch = unpack_batch(batch)
        y_pred, new_state, added = call_model(self._model, weights, state, batch.x, training=training)
        outputs = match(self._names, batch.y, y_pred, batch.weight)
        examples = tf.cast(count_examples(batch), tf.float32)
        losses = self._losses.sums(outputs)
        # What layers add counts once for the whole batch, so each shard carries its part.
        extra = examples * tf.add_n([_scalar(value) for value in added]) if added else None
        terms = self._terms(losses, extra)
        own = [
            number for numerator, divisor in losses for number in (numerator, examples if divisor is None else divisor)
        ]
        head = [examples, tf.add_n([term.numerator for term in terms]), tf.zeros([]) if extra is None else extra]
        return terms, tf.concat([tf.stack([*head, *own]), *self._metrics.sums(outputs)], 0), new_state

    def _terms(self, losses: Sequence[LossSum], extra: tf.Tensor | None) -> list[Term]:
        """Gather what is divided by the number of examples; the loss under a mask is a term of its own."""
        weights = self._losses.weights
        weighted = [s.numerator if w == 1 else w * s.numerator for w, s in zip(weights, losses, strict=True)]
        pairs = list(zip(weighted, losses, strict=True))
        by_examples = [part for part, loss in pairs if loss.denominator is None] + ([] if extra is None else [extra])
        terms = [Term(tf.add_n(by_examples), EXAMPLES)] if by_examples else []
        masked = [(part, i) for i, (part, loss) in enumerate(pairs) if loss.denominator is not None]
        return terms + [Term(part, FIXED + 2 * i + 1) for part, i in masked]

    def _scaled(
        self, term: Term, totals: tf.Tensor, scale: list[tf.Tensor]
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        """Return a term as float16 is to see it, and what makes its gradient that of the term again."""
        if self._loss_scale is None:
            return term.numerator, lambda gradient: gradient
        # Scaled is the mean over the whole batch, as in Keras: a sum would overflow earlier. Its size is not known yet,
        # but near the share's times the shards. Synchronized layers mix the replicas' gradients: one number for all.
        share = totals[term.divisor]
        if self._state.synchronized:
            share = all_reduce(share) / tf.distribute.get_replica_context().num_replicas_in_sync
        count = share * self._shards
        unscale = count / scale[0]
        return tf.math.divide_no_nan(term.numerator * scale[0], count), lambda g: g * tf.cast(unscale, g.dtype)

    def new_values(self, sums: Any, flat: list[tf.Tensor]) -> tuple[list[tf.Tensor | None], tf.Tensor]:
        """Return the new value of each variable (None where it stays) and the totals, from the reduced sums."""
        old = self._variables.regroup(flat)
        totals, gradients = sums["totals"], sums["gradients"]
        divisors = [totals[index] for index in self._divisors]
        rate = [] if self._clock.rate is None else [self._clock.rate]
        weights, slots, averages = self._apply(old.weights, old.slots, old.averages, gradients, divisors, rate)
        state = self._state.new_values(sums["state"], old.state, totals[EXAMPLES])
        new = [*weights, *slots, *state, *averages]
        if self._loss_scale is None:
            return new, totals
        finite = all_finite(gradients)
        new = only_if(finite, new, old._replace(scale=[]).flat)
        return [*new, *self._loss_scale.new_values(finite, old.scale)], totals

    def _pure_apply(self, weights: Any, slots: Any, averages: Any, gradients: Any, divisors: Any, rate: Any) -> Any:
        # It makes variables, which no trace may.
        packed = outside_replica(lambda: Packed(self._optimizer, self._has_gradient))
        iterations = slots[self._iterations]
        weights, slots = packed.join(weights), packed.join_slots(slots)
        gradients = self._mean_gradients(packed, gradients, divisors)
        clipped = iter(self._clip([gradient for gradient in gradients if gradient is not None]))
        gradients = [None if gradient is None else next(clipped) for gradient in gradients]
        known_rate = rate[0] if rate else None
        new_weights, new_slots = functional_apply(packed.optimizer, weights, slots, gradients, rate=known_rate)
        if self._averages is not None:
            averages = packed.split(self._averages.new_values(packed.join(averages), new_weights, iterations))
        return packed.split(_unlike(weights, new_weights)), packed.split_slots(_unlike(slots, new_slots)), averages

    def _mean_gradients(
        self, packed: Packed, flat: Sequence[tf.Tensor], divisors: Sequence[tf.Tensor]
    ) -> list[tf.Tensor | None]:
        """Divide the gradient of each term and add them up: one for each joined weight, None where it has none."""
        sums = iter(flat)
        means: list[tf.Tensor | None] = []
        for divisor, of_term in zip(divisors, self._has_gradient, strict=True):
            joined = packed.join([next(sums) if has else None for has in of_term])
            means = means or [None] * len(joined)
            for i, gradient in enumerate(joined):
                if gradient is not None:
                    mean = tf.math.divide_no_nan(gradient, tf.cast(divisor, gradient.dtype))
                    before = means[i]
                    means[i] = mean if before is None else before + mean
        return means


def _unlike(old: Sequence[tf.Tensor], new: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
    """Return `new` with None where the optimizer left the value as it was: a learning rate need not be written."""
    return [None if after is before else after for before, after in zip(old, new, strict=True)]


def _scalar(value: tf.Tensor) -> tf.Tensor:
    return tf.cast(value if value.shape.rank == 0 else tf.reduce_sum(value), tf.float32)  # a sum, as Keras's fit does


def _dense(gradient: Any, weight: tf.Tensor) -> tf.Tensor:
    # Some optimizers treat sparse gradients differently, and some gradients have lost their static shape.
    return tf.ensure_shape(tf.convert_to_tensor(gradient), weight.shape)
