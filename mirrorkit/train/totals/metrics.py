"""Keras metrics as sums: a metric whose state adds up means the same on 1 and on N replicas.

A replica updates an empty state with its share of the batch; the states travel in the step's one reduction and are
added up over replicas and steps. No metric variable is written, so nothing is lost or counted twice.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasMetric, Metric, Nest, PerOutput
from mirrorkit.errors import StepError
from mirrorkit.train.keras_model.calling import read
from mirrorkit.train.keras_model.keras_operations import without_waits
from mirrorkit.train.keras_model.outputs import Output, kind_of_target, own_value, per_output
from mirrorkit.train.requirements.same_rows import ANY_ROWS, told
from mirrorkit.train.totals.shapes import Shape, cure, not_stretched, shapes_of_targets, shown, stretched


class Metrics:
    """The metrics of a model's outputs, resolved once these are known: tensors or anything with `shape` and `dtype`.

    `metrics` and `weighted_metrics`, which see the sample weights, are what Keras's `compile` takes: names and
    `keras.metrics.Metric` objects in a list; for several outputs a list of lists in their order or a dict by name.
    """

    def __init__(
        self,
        metrics: PerOutput,
        weighted_metrics: PerOutput,
        outputs: Sequence[Output],
        unchecked: Sequence[str] = (),
    ) -> None:
        self._members: list[tuple[int, bool, str, KerasMetric]] = []  # output index, weighted, log name, metric
        names = [output.name for output in outputs]
        for given, weighted in ((metrics, False), (weighted_metrics, True)):
            for index, members in enumerate(_by_output(given, names)):
                if outputs[index].y is None and not all(isinstance(member, MeanOfOutput) for member in members):
                    raise StepError(
                        f"There are metrics but no target for output {names[index] or 'of the model'}. Let the data "
                        "yield (x, y), with a target for every output that has metrics."
                    )
                for member in members:
                    metric, name = _resolve(member, outputs[index])
                    name = self._log_name(names[index], name, weighted)
                    _require_additive(metric, outputs[index])
                    if outputs[index].y is not None and name not in unchecked:
                        _require_pairs(name, metric, outputs[index])
                    self._members.append((index, weighted, name, metric))

    def _log_name(self, output: str | None, name: str, weighted: bool) -> str:
        """Choose a name that is not taken yet, as Keras does."""
        taken = {other for _, _, other, _ in self._members}
        prefix = "" if output is None else f"{output}_"
        if weighted and prefix + name in taken:
            name = f"weighted_{name}"
        name = prefix + name
        return next(n for n in (name, *(f"{name}_{i}" for i in range(1, 1000))) if n not in taken)

    @property
    def members(self) -> Sequence[tuple[int, bool, str, KerasMetric]]:
        """The index of the output, whether weights count, the log name, and the metric, in order."""
        return self._members

    @property
    def names(self) -> list[str]:
        """Log names, in order."""
        return [name for _, _, name, _ in self._members]

    @property
    def modes(self) -> dict[str, str]:
        """For each log name "max" or "min", whichever is better, where Keras knows it."""
        known = {"up": "max", "down": "min"}
        # private to Keras, whose own callbacks read it; a test watches val_accuracy without a mode
        directions = {name: getattr(metric, "_direction", None) for _, _, name, metric in self._members}
        return {name: known[found] for name, found in directions.items() if found in known}

    @property
    def size(self) -> int:
        """Number of float32 values in the states of all metrics together."""
        return sum(int(np.prod(v.shape)) for *_, metric in self._members for v in metric.variables)

    @property
    def outputs(self) -> list[int]:
        """Index of the output of each metric, in the order of `names`."""
        return [index for index, *_ in self._members]

    def state(self, number: int, output: Output) -> list[tf.Tensor]:
        """Return what one shard adds to the state of a metric (its place in `names`), given its output."""
        _, weighted, _, metric = self._members[number]
        return _update(metric, _empty(metric), output.y, output.y_pred, output.weight if weighted else None)

    def sums(self, outputs: Sequence[Output]) -> list[tf.Tensor]:
        """Return the states that the outputs of one shard add, as flat float32 tensors."""
        states = [self.state(number, outputs[index]) for number, index in enumerate(self.outputs)]
        return [tf.reshape(tf.cast(value, tf.float32), [-1]) for state in states for value in state]

    def results(self, sums: tf.Tensor) -> dict[str, tf.Tensor]:
        """Turn added-up states (one flat tensor, in the order of `sums`) into results by name.

        Of a metric whose result is a dict, its names are those of the logs, as in Keras.
        """
        results: dict[str, tf.Tensor] = {}
        position = 0
        for _, _, name, metric in self._members:
            state = []
            for variable in metric.variables:
                size = int(np.prod(variable.shape))
                part = tf.reshape(sums[position : position + size], variable.shape)
                state.append(tf.cast(part, variable.dtype))
                position += size
            with keras.StatelessScope(state_mapping=list(zip(metric.variables, state, strict=True))) as scope:
                before = [scope.get_current_value(variable) for variable in metric.variables]
                result = read(metric.result())  # which may be a variable itself
                after = [scope.get_current_value(variable) for variable in metric.variables]
            if any(new is not old for new, old in zip(after, before, strict=True)):
                raise StepError(
                    f"The result() of metric {name!r} ({type(metric).__name__}) assigns its variables. Keras's fit "
                    "calls it after every batch, a step only when it makes logs. Let result() compute from the state, "
                    "and update_state change it."
                )
            for key, value in _by_name(name, result):
                if key in results:
                    raise taken(key)
                results[key] = value
        return results


class MeanOfOutput(keras.metrics.MeanMetricWrapper):  # type: ignore[name-defined, misc]
    """The mean over the examples of an output that is itself the value of each."""

    def __init__(self, name: str) -> None:
        super().__init__(own_value, name=name)


def _by_name(name: str, result: Nest) -> Iterator[tuple[str, Nest]]:
    """Yield the logs of one metric: one by its name, or those in the dict that its result is."""
    if not isinstance(result, Mapping):
        yield name, result
        return
    for key, value in result.items():
        yield from _by_name(str(key), value)


def taken(name: str) -> StepError:
    """Return the error that a log would hide another."""
    return StepError(
        f"Two logs have the name {name!r}, and one would hide the other: a loss or metric of that name, and a metric "
        "or the dict that its result() returns. Rename one: name= of the metric, or the key in the dict."
    )


def _by_output(given: PerOutput, names: Sequence[str | None]) -> list[list[Metric]]:
    if not given:
        return [[] for _ in names]
    if len(names) == 1 and not isinstance(given, dict):
        given = [keras.tree.flatten(given)]  # as Keras does
    return [
        list(members) if isinstance(members, (list, tuple)) else [] if members is None else [members]
        for members in per_output(names, given, "metrics")
    ]


def _resolve(member: Metric, output: Output) -> tuple[KerasMetric, str]:
    if isinstance(member, str) and member.lower() in ("accuracy", "acc"):
        return _accuracy(output)(name=member), member
    try:
        metric = keras.metrics.get(member)
    except ValueError as error:
        raise StepError(f"Keras knows no metric {member!r}: {error}") from error
    name = member if isinstance(member, str) else getattr(metric, "name", None) or _log_name(metric)
    if not isinstance(metric, keras.metrics.Metric):
        metric = keras.metrics.MeanMetricWrapper(metric, name=name)
    return metric, name


def _log_name(function: Callable[..., Any]) -> str:
    """Return the name that Keras gives to the log of a metric function: `MeanError` is "mean_error"."""
    name = re.sub(r"\W+", "", getattr(function, "__name__", type(function).__name__))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)).lower()


def _accuracy(output: Output) -> type[KerasMetric]:
    """Choose the accuracy that Keras's "accuracy" means for these shapes."""
    accuracies: dict[str, type[KerasMetric]] = {
        "binary": keras.metrics.BinaryAccuracy,
        "sparse_categorical": keras.metrics.SparseCategoricalAccuracy,
        "categorical": keras.metrics.CategoricalAccuracy,
    }
    return accuracies[kind_of_target(output)]


def _empty(metric: KerasMetric) -> list[tf.Tensor]:
    return [tf.zeros(variable.shape, variable.dtype) for variable in metric.variables]


def _update(
    metric: KerasMetric, state: list[tf.Tensor], y: tf.Tensor, y_pred: tf.Tensor, weight: tf.Tensor | None
) -> list[tf.Tensor]:
    with without_waits(of_metric=metric):
        updated: list[tf.Tensor] = metric.stateless_update_state(state, y, y_pred, sample_weight=weight)
    return updated


def _require_additive(metric: KerasMetric, output: Output) -> None:
    """Refuse a metric by name unless updating two shards in turn gives the sum of their states."""
    rows = next(_unusual_rows(output))
    first, second = (_shard(np.random.default_rng(seed), output, rows) for seed in (0, 1))
    try:
        metric.update_state(*first)  # some metrics create their state from the first batch's shapes
    except Exception as error:  # whatever a user's metric may raise
        raise _failure(metric, output, error, rows) from error
    metric.reset_state()
    one, two = (_update(metric, _empty(metric), *part, None) for part in (first, second))
    both = _update(metric, one, *second, None)
    fresh = all(not np.any(variable.numpy()) for variable in metric.variables)
    close = functools.partial(np.allclose, rtol=1e-5, atol=1e-5, equal_nan=True)  # these targets may give NaN
    adds_up = all(close(c, a + b) for a, b, c in zip(one, two, both, strict=True))
    if not (fresh and adds_up):
        raise StepError(
            f"The state of metric {metric.name!r} ({type(metric).__name__}) does not add up: updating it with two "
            "shards in turn is not the sum of both, or reset_state does not empty it, so shares and batches cannot be "
            "combined. Compute it from loop.predict; or on one device, give the model a train_step that returns "
            "super().train_step(data)."
        )


def _unusual_rows(output: Output) -> Iterator[int]:
    """Yield numbers of rows that no other dimension has, from 4 on: shapes that do not fit are not to fit by chance."""
    taken = [size for part in output[1:3] if part is not None for size in part.shape[1:]]
    return (rows for rows in itertools.count(4) if rows not in taken)


def _shard(
    rng: np.random.Generator, output: Output, rows: int, *, y: Shape | None = None, targets: int | None = None
) -> tuple[tf.Tensor | None, tf.Tensor]:
    """Return random targets and outputs of an output's shapes; targets may have another shape `y` or number."""
    y_pred = rng.uniform(0.05, 0.95, [rows, *(size or 3 for size in output.y_pred.shape[1:])])
    if output.y is None:
        return None, tf.constant(y_pred, tf.float32)
    shape = list(output.y.shape) if y is None else y
    numbers = rng.integers(0, 2, [targets or rows, *(size or 3 for size in shape[1:])])
    return tf.cast(tf.constant(numbers), output.y.dtype), tf.constant(y_pred, tf.float32)


def _failure(metric: KerasMetric, output: Output, error: Exception, rows: int) -> StepError:
    """Return the error that a metric cannot be computed, with what targets it takes where it takes others."""
    title, given = f"The metric {metric.name!r} ({type(metric).__name__})", ""
    if output.y is not None:
        y, y_pred = list(output.y.shape), list(output.y_pred.shape)
        given = f"targets {shown(y)} and outputs {shown(y_pred)}, "
        for targets in shapes_of_targets(y, y_pred):
            if _takes(metric, _shard(np.random.default_rng(0), output, rows, y=targets)):
                return StepError(
                    f"{title} does not take targets {shown(y)} for outputs {shown(y_pred)}. {cure(targets, y, y_pred)}"
                )
    return StepError(f"{title} could not be computed for {given}{rows} rows: {told(error)} {ANY_ROWS}")


def _require_pairs(name: str, metric: KerasMetric, output: Output) -> None:
    """Refuse a metric that takes more targets than outputs only because TensorFlow stretches their shapes."""
    y, y_pred = list(output.y.shape), list(output.y_pred.shape)
    fitting = not_stretched(y, y_pred)
    if fitting is None:
        return
    _, rows, targets = itertools.islice(_unusual_rows(output), 3)
    given, matched = (_shard(np.random.default_rng(0), output, rows, y=y, targets=targets) for y in (y, fitting))
    if _takes(metric, given) and not _takes(metric, matched):
        raise StepError(
            f"The metric {name!r} {stretched(y, y_pred)} If you know that it is right, write Step(..., "
            f"unchecked=({name!r},))."
        )


def _takes(metric: KerasMetric, shard: tuple[tf.Tensor | None, tf.Tensor]) -> bool:
    try:
        metric.update_state(*shard)
    except Exception:  # whatever a user's metric may raise
        return False
    finally:
        metric.reset_state()
    return True
