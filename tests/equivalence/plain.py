"""What a case must come to, in plain TensorFlow and Keras on one device: no Step, no Loop, no strategy.

Each global batch is cut into shards. A shard's sums are computed one after the other from the same state, added up, and
Keras's own optimizer is applied to the mean gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from cases import EPOCHS, Case
from cells import Outcome, policy

from mirrorkit._keras import keras

FIRST_SCALE = 2.0**15  # of a dynamic loss scale, as in keras.optimizers.LossScaleOptimizer


def train(case: Case, shards: int, *, reordered: bool = False) -> Outcome:
    """Train twenty steps on one device.

    Args:
        case: what to train.
        shards: into how many parts each batch is cut.
        reordered: the same sums in another order: the examples of each batch permuted where that changes nothing else,
            and else the shards added up from the last to the first, divided before instead of after.
    """
    with policy(case.policy):
        return _Training(case, shards, reordered).outcome()


class _Training:
    def __init__(self, case: Case, shards: int, reordered: bool) -> None:
        keras.utils.set_random_seed(0)
        self.case, self.shards, self.reordered = case, shards, reordered
        self.model, self.optimizer = case.net(), case.optimizer()
        self.weights, self.state = self.model.trainable_variables, self.model.non_trainable_variables
        self.optimizer.build(self.weights)
        losses = case.loss()
        self.losses = {
            n: _unreduced(loss) for n, loss in (losses if isinstance(losses, dict) else {"": losses}).items()
        }
        metrics = case.metrics()
        self.metrics = [
            (name, metric, False)
            for name, members in (metrics if isinstance(metrics, dict) else {"": metrics}).items()
            for metric in members
        ]
        self.metrics += [("", make(), True) for make in case.options.get("weighted_metrics", ())]
        self.averages: list[np.ndarray] | None = None
        self.transformed: dict[int, Any] = {}  # the states of transforms
        self.scaled = "loss_scale" in case.options
        self.scale = FIRST_SCALE if self.scaled else 1.0
        self.skipped = 0
        self.compute = tf.function(self._sums, reduce_retracing=True)

    def outcome(self) -> Outcome:
        logs: dict[str, list[Any]] = {}
        for epoch in range(EPOCHS):
            for name, value in self._epoch(epoch).items():
                logs.setdefault(name, []).append(value)
        own = {"weights": self.weights, "state": self.state, "slots": self.optimizer.variables}
        values = {f"{kind}/{i}": v.numpy() for kind, variables in own.items() for i, v in enumerate(variables)}
        if self.averages is not None:
            values |= {f"ema/{i}": value for i, value in enumerate(self.averages)}
        if self.scaled:
            values |= {"loss scale": np.float64(self.scale), "skipped": np.int64(self.skipped)}
        return values | {f"logs/{name}": np.asarray(value) for name, value in logs.items()}

    def _epoch(self, epoch: int) -> dict[str, float]:
        batches = [tuple(tf.nest.map_structure(np.asarray, part) for part in b) for b in self._dataset(epoch)]
        together = self.case.options.get("accumulate", 1)
        totals: dict[str, float] = {}
        for first in range(0, len(batches), together):
            parts = [part for batch in batches[first : first + together] for part in self._cut(batch)]
            sums = self._update(parts)
            # As in Keras, the loss of one output is a mean of the batches' means.
            means = {name: value / sums["examples"] for name, value in sums.items() if name.endswith("_loss")}
            for name, value in {**sums, **means, "updates": 1}.items():
                totals[name] = totals.get(name, 0.0) + value
        counts = {name: totals["updates" if name.endswith("_loss") else "examples"] for name in totals}
        logs = {name: value / counts[name] for name, value in totals.items() if name not in ("examples", "updates")}
        for output, metric, _ in self.metrics:
            logs["_".join(filter(None, (output, metric.name)))] = float(metric.result())
            metric.reset_state()
        return logs

    def _dataset(self, epoch: int) -> Iterator[Any]:
        rng = np.random.default_rng(epoch)
        for batch in self.case.data().dataset(epoch=epoch):
            if self.case.class_weight:
                weight = [self.case.class_weight.get(int(label), 1.0) for label in batch[1]]
                batch = (*batch, np.float32(weight))
            if self.reordered and not self.case.per_shard:
                places = rng.permutation(len(tf.nest.flatten(batch)[0]))
                batch = tf.nest.map_structure(lambda part, places=places: np.asarray(part)[places], batch)
            yield batch

    def _cut(self, batch: Any) -> Iterator[Any]:
        share = -(-len(tf.nest.flatten(batch)[0]) // self.shards)
        for i in range(self.shards):
            yield tf.nest.map_structure(lambda part, i=i: part[i * share : (i + 1) * share], batch)

    def _update(self, parts: Sequence[Any]) -> dict[str, float]:
        before = [variable.numpy() for variable in self.state]
        turn = int(self.optimizer.iterations.numpy()) + self.skipped
        counts, gradients, states, sums = [], [], [], []
        for number, part in enumerate(parts):
            count = len(tf.nest.flatten(part)[0])
            if not count:
                continue
            own = [_fold(v, value, turn, number) for v, value in zip(self.state, before, strict=True)]
            _write(self.state, own)
            # As in Keras, 16 bits see a part of the mean over the whole batch, times the scale.
            first = number - number % self.shards
            divisor = sum(len(tf.nest.flatten(one)[0]) for one in parts[first : first + self.shards])
            divisor *= self.case.options.get("accumulate", 1) if self.scaled else 1
            scale = np.float32(self.scale) / np.float32(divisor)
            found = self.compute(tf.nest.map_structure(tf.constant, part), tf.constant(scale))
            counts.append(count)
            gradients.append([np.float32(g) / scale for g in found["gradients"]])
            ends = zip(own, self.state, strict=True)
            states.append([v.numpy() - (0 if v.dtype.startswith("float") else value) for value, v in ends])
            sums.append({name: float(value) for name, value in found["sums"].items()})
            self._update_metrics(part, found["outputs"])
        mean = [self._mean(values, np.float32(sum(counts))) for values in zip(*gradients, strict=True)]
        if all(np.isfinite(g).all() for g in mean):
            self._apply(mean)
            after = [
                sum(n * value for n, value in zip(counts, values, strict=True)) / sum(counts)
                + (0 if v.dtype.startswith("float") else old)
                for v, old, values in zip(self.state, before, zip(*states, strict=True), strict=True)
            ]
            seeds = ["seed" in v.path for v in self.state]
            _write(self.state, [old if s else new for old, new, s in zip(before, after, seeds, strict=True)])
        else:
            self.scale /= 2
            self.skipped += 1
            _write(self.state, before)
        return {name: sum(one[name] for one in sums) for name in sums[0]} | {"examples": sum(counts)}

    def _sums(self, part: Any, scale: tf.Tensor) -> dict[str, Any]:
        x, y, *weight = part
        with tf.GradientTape() as tape:
            outputs = self.model(x, training=True)
            named = outputs if isinstance(outputs, dict) else {"": outputs}
            targets = y if isinstance(y, dict) else {"": y}
            own = {}
            for name, loss in self.losses.items():
                values = loss(targets[name], named[name])
                own[name] = tf.reduce_sum(values * weight[0] if weight else values)
            factors = self.case.options.get("loss_weights", {})
            total = tf.add_n([factors.get(name, 1.0) * value for name, value in own.items()])
            if self.model.losses:
                total += tf.cast(tf.shape(tf.nest.flatten(x)[0])[0], tf.float32) * tf.add_n(self.model.losses)
            scaled = total * scale
        gradients = tape.gradient(scaled, [v.value for v in self.weights])
        several = {f"{name}_loss": value for name, value in own.items() if name}
        return {
            "gradients": [tf.convert_to_tensor(g) for g in gradients],
            "sums": {"loss": total, **several},
            "outputs": outputs,
        }

    def _update_metrics(self, part: Any, outputs: Any) -> None:
        _, y, *weight = part
        for output, metric, weighted in self.metrics:
            pair = (y[output], outputs[output]) if output else (y, outputs)
            metric.update_state(*pair, sample_weight=weight[0] if weighted else None)

    def _mean(self, values: Sequence[np.ndarray], count: np.float32) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # an overflow is part of the case
            if self.reordered and self.case.per_shard:
                return sum((value / count for value in reversed(values[:-1])), values[-1] / count)
            return sum(values[1:], values[0]) / count

    def _apply(self, gradients: list[Any]) -> None:
        options = self.case.options
        if "clip_value" in options:
            gradients = [np.clip(g, -options["clip_value"], options["clip_value"]) for g in gradients]
        if "clip_norm" in options:
            gradients, _ = tf.clip_by_global_norm(gradients, options["clip_norm"])
        for i, transform in enumerate(options.get("transforms", [])):
            state = self.transformed.get(i) or transform.init(self.weights)
            gradients, self.transformed[i] = transform.update(list(map(tf.constant, gradients)), state, None)
        self.optimizer.apply([tf.constant(g) for g in gradients], self.weights)
        if "ema" in options:
            new = [v.numpy() for v in self.weights]
            keep = np.float32(options["ema"])
            old = new if self.averages is None else self.averages  # the first average is the first result, as in Keras
            self.averages = [keep * a + (1 - keep) * b for a, b in zip(old, new, strict=True)]


def _unreduced(loss: Any) -> Any:
    return type(loss).from_config({**loss.get_config(), "reduction": None})


def _fold(variable: Any, value: np.ndarray, turn: int, number: int) -> np.ndarray:
    """A seed made that of one step and shard; everything else as it is."""
    if "seed" not in variable.path:
        return value
    for part in (turn, number, 0):
        value = tf.random.experimental.stateless_fold_in(tf.constant(value), tf.constant(part, tf.int64))
    return np.asarray(value)


def _write(variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(np.asarray(value).astype(variable.dtype))
