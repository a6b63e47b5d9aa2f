"""What a step was made of, as names and values that can be compared between workers."""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, KerasOptimizer, Variable
from mirrorkit.train.keras_model.layer_state import layers_of
from mirrorkit.variables import given, path

# Not compared: names, which depend on what else a process has made, and seeds, of which the chief's are everybody's.
_OWN = ("name", "seed")
_LONGEST = 200  # characters; the code of the shortest lambda has more


def settings_of(model: KerasModel, optimizer: KerasOptimizer, options: Any) -> dict[str, Any]:
    """Return what decides what a step computes, as far as objects tell it; `options` is a dataclass."""
    found = settings_of_variables([*model.trainable_variables, *model.non_trainable_variables])
    for number, layer in enumerate(layers_of(model)):
        if not isinstance(layer, keras.Model):  # its layers follow
            name = _without_numbers(layer.name)
            found |= _flat(f"of layer {name!r} ({number})", {"class": type(layer).__name__, **_config(layer)})
    found |= _flat("of the optimizer", {"class": type(optimizer).__name__, **_config(optimizer)})
    # By now every worker holds the chief's values, so the configuration does not show what this worker's script gave.
    for variable in optimizer.variables:
        if isinstance(given(variable), float):
            found[f"{variable.name} of the optimizer"] = float(f"{given(variable):.7g}")  # of a float32
    asked = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    asked |= {"predict": options.predict is not None, "unchecked": None, "compiled": None}
    return found | _flat("of the step", plain(asked))


def settings_of_variables(variables: Sequence[Variable]) -> dict[str, Any]:
    """Return of each variable what it is like, by its place and its name without numbers."""
    return {
        f"variable {number} ({_without_numbers(path(variable))})": " ".join(
            [tf.as_dtype(variable.dtype).name, str(tuple(variable.shape)), "" if variable.trainable else "not trained"]
        ).strip()
        for number, variable in enumerate(variables)
    }


def _without_numbers(name: str) -> str:
    """Return a name without what Keras adds where a process has made another before."""
    return re.sub(r"_[0-9]+(?=/|:|$)", "", name)


def _config(of: Any) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a lambda should not be saved
            config = plain(of.get_config())
    except Exception:  # whatever a user's class may raise; many tell none
        return {}
    return config if isinstance(config, dict) else {}


def plain(value: Any) -> Any:
    """Return a value as JSON can say it; of what it cannot, the kind."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        # A path may be another on each machine, and so may the code of a lambda, which holds the path of its file.
        return "a path" if os.path.isabs(value) else value if len(value) <= _LONGEST else "a long text"
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items() if key not in _OWN}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Its seed, that of a transform perhaps, must be the same.
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if hasattr(value, "get_config"):
        return {"class": type(value).__name__, **_config(value)}
    return getattr(value, "__name__", type(value).__name__)


def _flat(of: str, value: Any) -> dict[str, Any]:
    """Name each leaf of a nest: "metrics/0/threshold of the step"."""
    return {f"{'/'.join(map(str, path))} {of}": leaf for path, leaf in keras.tree.flatten_with_path(value)}
