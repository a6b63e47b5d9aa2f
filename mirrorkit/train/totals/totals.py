"""What a step sums up besides gradients and layer state, in one vector: examples, the loss, and the states of metrics.

Keras's metrics begin at zero on each replica and for each batch, so totals of shards and of steps add up; logs follow
from the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Logs
from mirrorkit.train.keras_model.calling import graph_of_now
from mirrorkit.train.replica_code.pure_step import PureScope, Ran, metric_variables
from mirrorkit.train.replica_code.step_function import flat_logs

# Layout of the totals, a flat float32 vector: these three, then the metrics' states. LOSS is not finite where any part
# of the loss is not; DIVISOR divides the gradient.
EXAMPLES, LOSS, DIVISOR, FIXED = 0, 1, 2, 3

_MODES = {"up": "max", "down": "min"}


class Totals:
    """What the totals of a step hold; the metrics of its model are built.

    Attributes:
        size: the number of values in the totals.
    """

    def __init__(self, model: KerasModel) -> None:
        self._model = model
        self._variables = metric_variables(model)
        self._sizes = [int(np.prod(variable.shape)) for variable in self._variables]
        self.size = FIXED + sum(self._sizes)

    @property
    def described(self) -> list[str]:
        """Each state in words, by which others are told apart."""
        return [f"{variable.path} {tuple(variable.shape)}" for variable in self._variables]

    @property
    def names(self) -> list[str]:
        """Of the logs."""
        return list(self._model.get_metrics_result())

    @property
    def modes(self) -> Mapping[str, str]:
        """For each log name "max" or "min", whichever is better, where Keras knows it."""
        known: dict[str, str] = {}
        for metric in self._model.metrics:
            of_logs = [(metric.name, metric)]
            if metric.name == "compile_metrics" and isinstance(result := metric.result(), Mapping):
                of_logs = list(zip(result, metric.metrics, strict=False))  # which Keras keeps in one
            for name, one in of_logs:
                # private to Keras, whose own callbacks read it; a test watches val_accuracy without a mode
                mode = _MODES.get(str(getattr(one, "_direction", None)))
                if type(one) is keras.metrics.Mean and name.endswith("loss"):
                    mode = "min"
                if mode is not None:
                    known[name] = mode
        return known

    @property
    def zeros(self) -> list[tf.Tensor]:
        """What the metrics begin with."""
        return [tf.zeros(variable.shape, variable.dtype) for variable in self._variables]

    def of(self, ran: Ran, divisor: tf.Tensor) -> tf.Tensor:
        """Return the totals of one replica's rows, with its part of what divides the gradient."""
        rows = ran.scope.share.rows
        logs = {name: tf.cast(value, tf.float32) for name, value in ran.logs.items()}
        loss = logs["loss"] if "loss" in logs else _standing_for_loss(ran.scope, logs.values())
        states = [tf.reshape(tf.cast(value, tf.float32), [-1]) for value in ran.metrics]
        return tf.ensure_shape(tf.concat([tf.stack([rows, rows * loss, divisor]), *states], 0), [self.size])

    def logs(self, totals: tf.Tensor) -> Logs:
        """Return what Keras takes from the metrics."""
        parts = tf.split(totals[FIXED:], self._sizes)
        pairs = zip(self._variables, parts, strict=True)
        states = [(v, tf.cast(tf.reshape(part, v.shape), v.dtype)) for v, part in pairs]
        with keras.StatelessScope(state_mapping=states):
            return flat_logs(self._model.get_metrics_result())


def _standing_for_loss(scope: PureScope, logs: Iterable[tf.Tensor]) -> tf.Tensor:
    """Return the sum of logs; finite where what is minimized is, if known: a metric may be 0 / 0 in a batch."""
    # With a loss scale, that may be infinite for a step.
    minimized = [] if scope.minimized is None or scope.scale is not None else tf.nest.flatten(scope.minimized)
    minimized = [one for one in minimized if getattr(one, "graph", None) is graph_of_now()]  # not of a loop's body
    values = [tf.reduce_sum(value) for value in logs]
    if minimized:
        values = [tf.where(tf.math.is_finite(value), value, 0.0) for value in values]
        values += [0.0 * tf.reduce_sum(tf.cast(one, tf.float32)) for one in minimized]
    return tf.add_n([*values, tf.zeros([])])


def metric_names(model: KerasModel) -> list[str]:
    """Return the names of a model's metrics in order, also of those that Keras keeps in one."""
    names: list[str] = []
    for metric in model.metrics:
        is_several = metric.name == "compile_metrics"
        names += [one.name for one in metric.metrics] if is_several else [metric.name]
    return names
