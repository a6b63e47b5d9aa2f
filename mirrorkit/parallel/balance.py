"""Propose a layout: cut a model into stages that need about the same memory."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, KerasVariable
from mirrorkit.errors import StepError
from mirrorkit.parallel.keras_internals import without_values


def balanced_rules(
    make_model: Callable[[], KerasModel], devices: int, *, batch_size: int, slots: int = 2
) -> dict[str, int]:
    """Return the rules of a `Layout` that cuts a functional or sequential model into `devices` stages.

    ```python
    rules = mk.parallel.balanced_rules(make_model, 2, batch_size=64)
    layout = mk.parallel.Layout(rules, devices="gpu:2")
    ```

    The layers keep their order, so activations cross from one device to the next once. The cut makes the largest stage
    as small as possible, in bytes. A layer counts with its trainable weights, their gradient and optimizer slots, its
    other variables, and its outputs for a batch. Memory within a layer (attention's products, a block that is one
    layer) is not counted.

    Args:
        make_model: builds the model; none of its variables is allocated here. Its layers need unique names that stay
            the same when it is built again.
        devices: the number of devices.
        batch_size: examples of one replica in a step.
        slots: values that the optimizer keeps for each weight: 0 for SGD, 1 with momentum, 2 for Adam.

    Raises:
        StepError: a model that is not a graph of layers, has fewer layers with weights than devices, or names that
            change.
    """
    parts, again = _parts(make_model), _parts(make_model)
    if changed := [a.layer for a, b in zip(parts, again, strict=False) if a.scopes != b.scopes]:
        raise StepError(f"The layer {changed[0]!r} has different names when the model is built again. Name the layers.")
    scopes = [scope for part in parts for scope in part.scopes]
    if twice := sorted({scope for scope in scopes if scopes.count(scope) > 1}):
        raise StepError(f"Variables of several layers begin with {', '.join(map(repr, twice))}. Name the layers apart.")
    if not 1 <= devices <= len(parts):
        raise StepError(f"{devices} devices were asked for, but {len(parts)} layers have weights.")
    cuts = cut([part.size(batch_size, slots) for part in parts], devices)
    stages = [parts[start:end] for start, end in zip([0, *cuts], [*cuts, len(parts)], strict=True)]
    patterns = ["|".join(scope for part in stage for scope in part.scopes) for stage in stages]
    return {f"^({pattern})/": number for number, pattern in enumerate(patterns)}


class _Part(NamedTuple):
    """A layer with weights or other numbers of its own, and the layers without any that come after it."""

    layer: str
    scopes: tuple[str, ...]  # patterns of how its variables' paths begin: its name, or those of the layers in it
    weights: int  # numbers that are trained
    others: int
    outputs: int  # numbers for an example

    def size(self, batch_size: int, slots: int) -> int:
        return self.weights * (2 + slots) + self.others + self.outputs * batch_size


def _parts(make_model: Callable[[], KerasModel]) -> list[_Part]:
    with without_values():
        model = make_model()
    parts: list[_Part] = []
    try:
        for layer in model.layers:
            outputs = sum(math.prod(n or 1 for n in output.shape[1:]) for output in keras.tree.flatten(layer.output))
            weights, others = _numbers(layer.trainable_variables), _numbers(layer.non_trainable_variables)
            if weights + others:
                scopes = dict.fromkeys(_scope(model, variable) for variable in layer.variables if _counts(variable))
                parts.append(_Part(layer.name, tuple(scopes), weights, others, outputs))
            elif parts:
                parts[-1] = parts[-1]._replace(outputs=parts[-1].outputs + outputs)
    except (AttributeError, ValueError) as error:  # a layer that is called in a model's own `call` knows no outputs
        raise StepError(
            f"balanced_rules takes a functional or sequential Keras model with an Input, found {model!r}. Write the "
            "rules of a subclassed model by hand."
        ) from error
    return parts


def _scope(model: KerasModel, variable: KerasVariable) -> str:
    """Return the pattern of the path's first part; in a sequential model, which comes first itself, of the second."""
    first, *rest = variable.path.split("/")
    if isinstance(model, keras.Sequential) and first == model.name and len(rest) > 1:
        return f"[^/]+/{re.escape(rest[0])}"  # the name of a model changes when it is built again
    return re.escape(first)


def _numbers(variables: Sequence[KerasVariable]) -> int:
    return sum(math.prod(variable.shape) for variable in variables if _counts(variable))


def _counts(variable: KerasVariable) -> bool:
    """Return whether it is no integer, such as a seed, which a layout does not place."""
    return "int" not in variable.dtype


def cut(sizes: Sequence[int], parts: int) -> list[int]:
    """Return where to cut a row of numbers so that the largest sum of a part is smallest."""

    @functools.cache
    def smallest(end: int, parts: int) -> tuple[int, tuple[int, ...]]:
        if parts == 1:
            return sum(sizes[:end]), ()
        before = ((cut, *smallest(cut, parts - 1)) for cut in range(parts - 1, end))
        return min((max(largest, sum(sizes[cut:end])), (*cuts, cut)) for cut, largest, cuts in before)

    return list(smallest(len(sizes), parts)[1])
