"""Find where the first NaN or infinite number of a training step comes from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import Variable
from mirrorkit.data import without_none
from mirrorkit.errors import StepError
from mirrorkit.recording import RecordedCall, recorded
from mirrorkit.train import Step, UnpackedBatch, shards, training_argument, unpack_batch
from mirrorkit.variables import distinct, path, unchanged

Range = tuple[float, float]


@dataclass(frozen=True)
class NonFinite:
    """The first number that is not finite.

    ```python
    bad = images[:64].astype("float32")
    bad[3] = np.nan
    found = mk.checks.find_non_finite(model, (bad, labels[:64]))
    print(found.what, found.nan, found.size)  # input 784 50176
    ```

    Attributes:
        what: "variable", "input", "target", "sample weight", "output" (of a layer), "loss", "gradient" or "sum" (of a
            custom step).
        where: the layer, the variable or the part of the batch.
        nan: how many numbers are NaN.
        infinite: how many are infinite.
        size: how many numbers there are.
        range: the smallest and the largest finite number; None if there are none.
        input_range: for an output, the range of the layer's input.
        shard: the replica whose rows these are; with `accumulate`, counted on through the batches of an update. None
            for variables.
    """

    what: str
    where: str
    nan: int
    infinite: int
    size: int
    range: Range | None
    input_range: Range | None = None
    shard: int | None = None

    def __str__(self) -> str:
        """Describe it in one sentence."""
        text = f"{self.what} {self.where}: {self.nan} NaN and {self.infinite} infinite of {self.size} numbers"
        text += "" if self.range is None else f", the others between {self.range[0]:.4g} and {self.range[1]:.4g}"
        if self.input_range is not None:
            text += f"; its input is between {self.input_range[0]:.4g} and {self.input_range[1]:.4g}"
        return text if self.shard is None else f"{text} (shard {self.shard} of the batch)"


def find_non_finite(of: Any, batch: Any) -> NonFinite | None:
    """Compute one step on a batch, without training, and find the first number in it that is not finite.

    ```python
    found = mk.checks.find_non_finite(step, batch)
    print(found)  # output of layer 'log' (Lambda): 3 NaN and 0 infinite of 96 numbers, ...
    ```

    It checks, in this order: the variables, including optimizer slots; the batch; each layer's output; the loss; then,
    in the backward pass, the gradient that each layer passes back and the gradient of its weights. Everything is
    computed eagerly, in training mode, and nothing is changed. A layer that runs in its own `tf.function` is not seen;
    only the layer that contains it is.

    Args:
        of: a built step, a loop, or a Keras model; without a compiled loss or without targets, only a model's forward
            pass is checked.
        batch: a global batch: `x`, `(x, y)` or `(x, y, sample_weight)`. Each replica of a step takes its rows of it.

    Raises:
        StepError: `of` is neither a step, a loop nor a model.
    """
    step = of if isinstance(of, keras.Model) else getattr(of, "step", of)
    batch = tf.nest.map_structure(tf.convert_to_tensor, without_none(batch))
    strategy = getattr(step, "strategy", None)
    if isinstance(step, Step) and strategy is None:
        raise StepError(
            "find_non_finite needs a step that is built. Call step.build(strategy) first, or let a Loop fit, evaluate "
            "or warm up, which builds the model too."
        )
    return find_in_shards(step, [batch] if strategy is None else shards(batch, strategy.num_replicas_in_sync))


def find_in_shards(
    step: Any, shards: Iterable[Any], *, first: int = 0, variables: Sequence[Variable] | None = None
) -> NonFinite | None:
    """Do the same with a batch that is already split into shards; the first has the number `first`.

    Of the `variables` it looks at those that are given, if they are.
    """
    slots = step.optimizer.variables if isinstance(step, keras.Model) and step.compiled else []
    for variable in [*getattr(step, "variables", []), *slots] if variables is None else variables:
        for found in _look("variable", repr(path(variable)), distinct(variable)):
            return found
    # Of a `Step`, unless its model has a train_step of its own.
    supervised = step.supervised(step.strategy) if isinstance(step, Step) and not step.runs_keras else None
    if supervised and supervised.is_whole:
        shards = [tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *shards)]  # none is alone
    for number, shard in enumerate(shards, start=first):
        if supervised:
            batch = supervised.unpack(shard)
        else:
            batch = UnpackedBatch(shard) if isinstance(step, Step) else unpack_batch(shard)
        if tf.nest.flatten(batch.x)[0].shape[0] == 0:
            continue
        for found in itertools.chain(_in_batch(batch), _in_computation(step, supervised, shard, batch, number)):
            return replace(found, shard=number)
    return None


def _in_batch(batch: UnpackedBatch) -> Iterator[NonFinite]:
    for what, nest in zip(("input", "target", "sample weight"), batch, strict=True):
        yield from _in_nest(what, nest, whole="of the batch")


def _in_nest(what: str, nest: Any, *, whole: str = "") -> Iterator[NonFinite]:
    for key, value in keras.tree.flatten_with_path(nest):
        yield from _look(what, "/".join(map(str, key)) or whole, [value])


def _in_computation(step: Any, supervised: Any, rows: Any, batch: UnpackedBatch, shard: int) -> Iterator[NonFinite]:
    if supervised:
        yield from _forth_and_back(step.model, lambda w, s: supervised.objective(w, s, rows, shard))
    elif isinstance(step, keras.Model):
        yield from _forth_and_back(step, lambda w, s: _objective_of_model(step, w, s, batch))
    elif hasattr(step, "compute"):
        yield from _in_own_step(step, batch)
    elif not (hasattr(step, "train") or isinstance(step, Step)):  # of these only variables and batch can be looked at
        raise StepError(f"find_non_finite takes a step, a loop or a Keras model, found {type(step).__name__}.")


def _objective_of_model(model: Any, weights: Any, state: Any, batch: UnpackedBatch) -> tf.Tensor | None:
    y_pred, _ = model.stateless_call(weights, state, batch.x, **training_argument(model, True))
    if not model.compiled or batch.y is None:
        return None
    with unchanged(model.metrics_variables):  # Keras's losses of several outputs
        return model.compute_loss(x=batch.x, y=batch.y, y_pred=y_pred, sample_weight=batch.weight)


def _in_own_step(step: Any, batch: UnpackedBatch) -> Iterator[NonFinite]:
    with unchanged(getattr(step, "variables", [])), recorded() as calls:
        sums = step.compute(tuple(part for part in batch if part is not None))
    yield from _in_outputs(calls)
    yield from _in_nest("sum", sums)


def _forth_and_back(model: Any, objective_of: Callable[[Any, Any], tf.Tensor | None]) -> Iterator[NonFinite]:
    variables = list(model.trainable_variables)
    weights = [tf.convert_to_tensor(variable) for variable in variables]
    state = [tf.convert_to_tensor(variable) for variable in model.non_trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        with recorded() as calls:
            objective = objective_of(weights, state)
    yield from _in_outputs(calls)
    if objective is None:
        return
    yield from _look("loss", "of the step", [objective])
    gradients = tape.gradient(objective, [weights, [call.outputs for call in calls]])
    yield from _in_gradients(calls, gradients[1], dict(zip(map(id, variables), gradients[0], strict=True)), variables)


def _in_outputs(calls: Sequence[RecordedCall]) -> Iterator[NonFinite]:
    for call in calls:
        yield from _look("output", f"of layer {call.name}", call.outputs, given=call.inputs)


def _in_gradients(
    calls: Sequence[RecordedCall], outputs: Any, weights: dict[int, Any], variables: Any
) -> Iterator[NonFinite]:
    """Check from the last layer to the first: the layer behind the first gradient that is not finite produced it."""
    owners: dict[int, RecordedCall] = {}
    for call in calls:  # inner layers come first
        for variable in getattr(call.layer, "trainable_variables", ()):
            owners.setdefault(id(variable), call)
    for call, gradients in zip(reversed(calls), reversed(outputs), strict=True):
        for found in _look("gradient", "", gradients):
            behind = next((c.name for c in calls if any(x is y for x in c.inputs for y in call.outputs)), None)
            maker = "what follows it" if behind is None else f"layer {behind}"
            yield replace(found, where=f"that {maker} passes back to layer {call.name}")
        for variable in (v for v in variables if owners.get(id(v)) is call):
            where = f"of {variable.path!r}, a weight of layer {call.name}"
            yield from _look("gradient", where, [weights[id(variable)]])
    for variable in variables:  # of layers whose calls were not recorded
        yield from _look("gradient", f"of {variable.path!r}", [weights[id(variable)]])


def _look(what: str, where: str, tensors: Sequence[Any], *, given: Sequence[Any] = ()) -> Iterator[NonFinite]:
    """Yield the numbers of these tensors if one of them is not finite."""
    numbers = _numbers(tensors)
    nan, infinite = int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())
    if nan or infinite:
        yield NonFinite(what, where, nan, infinite, numbers.size, _range(numbers), _range(_numbers(given)))


def _numbers(tensors: Sequence[Any]) -> np.ndarray:
    dense = [tf.convert_to_tensor(t) for t in tensors if t is not None]
    floats = [t.numpy().astype("float64").ravel() for t in dense if t.dtype.is_floating]
    return np.concatenate([np.empty(0), *floats])


def _range(numbers: np.ndarray) -> Range | None:
    finite = numbers[np.isfinite(numbers)]
    return (float(finite.min()), float(finite.max())) if finite.size else None
