"""What a step sums up besides gradients and layer state: examples, losses and the states of the metrics, in one vector.

Totals of shards and of steps add up; logs follow from the sum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasMetric, KerasModel, Logs, Loss, Nest, PerOutput
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.building import outputs_of
from mirrorkit.train.keras_model.outputs import (
    Output,
    UnpackedBatch,
    in_order,
    match,
    output_names,
    own_value,
    per_output,
)
from mirrorkit.train.totals.losses import Losses, loss_name
from mirrorkit.train.totals.metrics import MeanOfOutput, Metrics, taken
from mirrorkit.train.totals.shapes import loss_faults

# Layout of the totals, a flat float32 vector: these three, then numerator and denominator of each output's loss, then
# the metrics' states. LOSS is all that is minimized, added up: not finite where any part of it is not. ADDED is what
# layers add to the loss (regularisers, add_loss), times the examples.
EXAMPLES, LOSS, ADDED, FIXED = 0, 1, 2, 3


_WHAT = {  # the words of messages for the arguments of Losses and Metrics
    "loss": "losses",
    "loss_weights": "loss weights",
    "metrics": "metrics",
    "weighted_metrics": "weighted metrics",
}


class Term(NamedTuple):
    """A part of what is minimized: a sum over examples, divided by one of the totals of the whole batch."""

    numerator: tf.Tensor
    divisor: int  # index into the totals


@dataclass(frozen=True)
class Totals:
    """Which loss and metrics belong to which output of the model, and so what the totals hold."""

    names: Nest  # of the outputs, as `output_names` gives them
    losses: Losses
    metrics: Metrics
    trains: bool = True  # there is something to minimize
    values: Sequence[str] = ()  # names of the outputs, where each is itself the value of each example
    _seen: set[str] = field(default_factory=set)  # shapes and dtypes of the data that was checked

    @classmethod
    def resolve(
        cls,
        model: KerasModel,
        batch: UnpackedBatch,
        losses: Mapping[str, PerOutput],
        metrics: Mapping[str, PerOutput],
        unchecked: Sequence[str] = (),
        *,
        trains: bool = True,
    ) -> Totals:
        """Work them out for a model and its data, from the arguments of `Losses` and `Metrics`.

        Refuses losses and metrics that cannot take the shapes of the data, except for those whose log name is in
        `unchecked`. Where it does not train, there may be no loss.
        """
        y_pred = _symbolic_outputs(model, batch.x)
        names = output_names(model, y_pred)
        outputs = match(names, batch.y, y_pred, None)
        losses, metrics = (
            {name: in_order(names, parts, _WHAT[name]) for name, parts in given.items()} for given in (losses, metrics)
        )
        resolved = Losses(outputs=outputs, **losses)
        _require_shapes(model, batch, names, resolved, unchecked, y_pred)
        made = cls(names, resolved, Metrics(outputs=outputs, unchecked=unchecked, **metrics), trains)
        made._seen.add(_kind(batch))
        return made

    def has_seen(self, batch: UnpackedBatch) -> bool:
        """Return whether the shapes and dtypes of this data, but for the rows, were checked."""
        return bool(self.values) or _kind(batch) in self._seen

    def checked(self, model: KerasModel, batch: UnpackedBatch, unchecked: Sequence[str] = ()) -> Totals:
        """Refuse losses that cannot take the shapes of other data; see `resolve`."""
        y_pred = _symbolic_outputs(model, batch.x)
        _require_shapes(model, batch, self.names, self.losses, unchecked, y_pred)
        self._seen.add(_kind(batch))
        return self

    @classmethod
    def of_values(cls, names: Sequence[str]) -> Totals:
        """Work them out for a model whose outputs are values [rows]: "loss", and what else is logged as a mean."""
        no_names = [None] * len(names)  # what is logged has the name itself
        outputs = [Output(None, None, tf.TensorSpec([None]), None) for _ in names]
        losses = Losses([own_value if name == "loss" else None for name in names], None, outputs)
        means = [[] if name == "loss" else [MeanOfOutput(name)] for name in names]
        return cls(no_names, losses, Metrics(means if len(names) > 1 else None, None, outputs), values=names)

    def require_targets(self, batch: UnpackedBatch) -> None:
        """Refuse data without a target for an output that has a loss."""
        self.losses.require_targets(per_output(self.names, batch.y, "targets"))

    @property
    def size(self) -> int:
        """Number of values in the totals."""
        return FIXED + 2 * len(self.losses.members) + self.metrics.size

    def described(self) -> list[str]:
        """Return each loss and metric in words, by which others are told apart."""
        losses = zip(self.losses.members, self.losses.weights, strict=True)
        return [
            *(f"the loss {_described(loss)} of output {index}, times {weight}" for (index, loss), weight in losses),
            *(
                f"the {'weighted ' * weighted}metric {name!r} {_described(metric)} of output {index}"
                for index, weighted, name, metric in self.metrics.members
            ),
        ]

    @property
    def modes(self) -> dict[str, str]:
        """For each log name "max" or "min", whichever is better, where it is known."""
        return {**dict.fromkeys([*self._loss_names, *self.losses.own_names], "min"), **self.metrics.modes}

    @property
    def _loss_names(self) -> list[str]:
        return ["loss"] if self.trains or self.losses.members else []

    def of(
        self, outputs: Sequence[Output], examples: tf.Tensor, added: Sequence[tf.Tensor]
    ) -> tuple[list[Term], tf.Tensor]:
        """Return what to minimize, and the totals of one shard.

        What layers add to the loss counts once for the whole batch, so each shard carries its part.
        """
        losses = self.losses.sums(outputs)
        extra = examples * tf.add_n([_scalar(value) for value in added]) if added else None
        parts: dict[int, list[tf.Tensor]] = {}  # by what divides them: a loss under a mask is a term of its own
        for i, (loss, weight) in enumerate(zip(losses, self.losses.weights, strict=True)):
            divisor = EXAMPLES if loss.denominator is None else FIXED + 2 * i + 1
            parts.setdefault(divisor, []).append(loss.numerator if weight == 1 else weight * loss.numerator)
        if extra is not None:
            parts.setdefault(EXAMPLES, []).append(extra)
        if not parts and self.trains:
            raise StepError(
                "No output of the model has a loss, and no layer adds one (add_loss). Give Step a loss for at least "
                "one of the outputs, or compile the model with one."
            )
        terms = [Term(tf.add_n(parts[divisor]), divisor) for divisor in sorted(parts)]
        own = [
            number for numerator, divisor in losses for number in (numerator, examples if divisor is None else divisor)
        ]
        minimized = summed([term.numerator for term in terms])
        head = [examples, minimized, tf.zeros([]) if extra is None else extra]
        totals = tf.concat([tf.stack([*head, *own]), *self.metrics.sums(outputs)], 0)
        return terms, totals if totals.shape.is_fully_defined() else tf.ensure_shape(totals, [self.size])

    def logs(self, totals: tf.Tensor) -> Logs:
        """Turn totals into Keras's logs."""
        own = []
        for index in range(FIXED, FIXED + 2 * len(self.losses.members), 2):
            own.append(totals[index] / tf.maximum(totals[index + 1], 1e-12))
        parts = [weight * value for weight, value in zip(self.losses.weights, own, strict=True)]
        loss = tf.add_n([*parts, totals[ADDED] / tf.maximum(totals[EXAMPLES], 1e-12)])
        logs = dict.fromkeys(self._loss_names, loss)
        logs |= dict(zip(self.losses.own_names, own, strict=False))  # no names for a single output
        results = self.metrics.results(totals[FIXED + 2 * len(own) :])
        if both := logs.keys() & results.keys():
            raise taken(min(both))
        return {**logs, **results}


def summed(terms: Sequence[tf.Tensor]) -> tf.Tensor:
    """Add up what to minimize; without training there may be nothing."""
    return tf.add_n(terms) if terms else tf.zeros([])


def _kind(batch: UnpackedBatch) -> str:
    return str(tf.nest.map_structure(lambda one: None if one is None else (one.shape[1:], one.dtype), batch))


def _symbolic_outputs(model: KerasModel, x: Nest) -> Nest:
    def symbolic(spec: tf.TensorSpec) -> tf.TensorSpec:
        return keras.KerasTensor((None, *spec.shape[1:]), dtype=spec.dtype.name)

    return model.compute_output_spec(tf.nest.map_structure(symbolic, x))


def _require_shapes(
    model: KerasModel, batch: UnpackedBatch, names: Nest, losses: Losses, unchecked: Sequence[str], y_pred: Nest
) -> None:
    """Refuse losses that cannot take the shapes of targets, outputs and weights."""

    def faults(y_pred: Nest) -> dict[str, str]:
        return loss_faults(losses, match(names, batch.y, y_pred, batch.weight), unchecked)

    if faults(y_pred) and (found := faults(outputs_of(model, batch.x))):  # by its call, whatever the model says
        know = f"If you know that it is right, write Step(..., unchecked={tuple(found)!r})."
        raise StepError(" ".join([*found.values(), know]))


def _scalar(value: tf.Tensor) -> tf.Tensor:
    return tf.cast(value if value.shape.rank == 0 else tf.reduce_sum(value), tf.float32)  # a sum, as Keras's fit does


def _described(of: Loss | KerasMetric) -> str:
    """Return the name of a loss or metric, and what its configuration says in plain values."""
    if not hasattr(of, "get_config"):
        return loss_name(of)
    try:
        config = of.get_config()
    except Exception:  # whatever a user's class may raise
        config = {}
    told = [f"{key}={_plain(config[key])}" for key in sorted(config) if key not in ("name", "dtype")]
    return f"{type(of).__name__}({', '.join(told)})"


def _plain(value: Any) -> str:
    if isinstance(value, dict):  # a function, as Keras describes it; a lambda's code names its file
        value = value.get("config") if value.get("class_name") == "function" else "..."
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return type(value).__name__
