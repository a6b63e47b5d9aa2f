"""Propose a layout: cut a model into stages that need about the same memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from mirrorkit._keras import keras
from mirrorkit._types import KerasLayer, KerasModel
from mirrorkit.errors import StepError

_FLOAT = 4  # bytes


def balanced_rules(
    make_model: Callable[[], KerasModel], devices: int, *, batch_size: int, slots: int = 2
) -> dict[str, int]:
    """Return the rules of a `Layout` that cuts a functional or sequential model into `devices` stages.

    ```python
    rules = mk.parallel.balanced_rules(make_model, 2, batch_size=64)
    layout = mk.parallel.Layout(rules, devices="gpu:2")
    ```

    The layers stay in their order, so that activations cross from one device to the next once. Of all cuts this is the
    one whose largest stage is smallest, in bytes: of a layer's trainable weights once for the weights, once for the
    gradient and once for each of the optimizer's slots; of its other variables once; of its outputs for a batch. What a
    layer holds within (attention's products, a block that is one layer) is not known.

    Args:
        make_model: builds the model; none of its variables is allocated here. Its layers need names of their own, which
            are the same when it is built again.
        devices: how many.
        batch_size: examples of one replica in a step.
        slots: numbers that the optimizer keeps for each weight: 0 for SGD, 1 with momentum, 2 for Adam.

    Raises:
        StepError: a model that is not a graph of layers, has fewer layers with weights than devices, or names that
            change.
    """
    first, again = _layers(make_model), _layers(make_model)
    names = [name for name, _ in first]
    if names != [name for name, _ in again]:
        other = next(a for (a, _), (b, _) in zip(first, again, strict=False) if a != b)
        raise StepError(f"The layer {other!r} has another name when the model is built again. Name the layers.")
    weighing = [(name, size(batch_size, slots)) for name, size in first]
    if not 1 <= devices <= len(weighing):
        raise StepError(f"{devices} devices were asked for, and {len(weighing)} layers have weights.")
    cuts = _cut([size for _, size in weighing], devices)
    stages = [names[start:end] for start, end in zip([0, *cuts], [*cuts, len(names)], strict=True)]
    return {f"^({'|'.join(map(re.escape, stage))})/": number for number, stage in enumerate(stages)}


def _layers(make_model: Callable[[], KerasModel]) -> list[tuple[str, Callable[[int, int], int]]]:
    """Return name and size of each layer that has variables; what has none counts with the one before it."""
    with keras.StatelessScope(initialize_variables=False):
        model = make_model()
    if not isinstance(model, (keras.Sequential, keras.Model)) or not hasattr(model, "_nodes"):
        raise StepError(f"balanced_rules takes a functional or sequential Keras model, found {model!r}.")
    return [(layer.name, _size(layer)) for layer in model.layers if layer.variables]


def _size(layer: KerasLayer) -> Callable[[int, int], int]:
    weights = sum(math.prod(variable.shape) for variable in layer.trainable_variables) * _FLOAT
    others = sum(math.prod(variable.shape) for variable in layer.non_trainable_variables) * _FLOAT
    outputs = keras.tree.flatten(layer.output)
    per_example = sum(math.prod(size or 1 for size in output.shape[1:]) for output in outputs) * _FLOAT
    return lambda batch_size, slots: weights * (2 + slots) + others + per_example * batch_size


def _cut(sizes: Sequence[int], parts: int) -> list[int]:
    """Return where to cut a row of numbers so that the largest sum of a part is smallest."""
    best: dict[tuple[int, int], tuple[int, list[int]]] = {}

    def smallest(end: int, parts: int) -> tuple[int, list[int]]:
        if parts == 1:
            return sum(sizes[:end]), []
        if (end, parts) not in best:
            options = []
            for cut in range(parts - 1, end):
                largest, cuts = smallest(cut, parts - 1)
                options.append((max(largest, sum(sizes[cut:end])), [*cuts, cut]))
            best[end, parts] = min(options)
        return best[end, parts]

    return smallest(len(sizes), parts)[1]
