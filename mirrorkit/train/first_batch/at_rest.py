"""How a model runs while a batch is compared with its parts: in float32, and without what is known to mix rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, Nest
from mirrorkit.train.keras_model.keras_operations import statistics_at_rest
from mirrorkit.train.keras_model.layer_state import layers_of, training_argument


@contextlib.contextmanager
def in_float32(model: KerasModel) -> Iterator[None]:
    """Let layers of mixed precision compute in float32 within the block: in 16 bits rounding hides differences."""
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            policy = layer.dtype_policy
            is_mixed = layer.compute_dtype in ("float16", "bfloat16") and layer.variable_dtype == "float32"
            if is_mixed and policy.quantization_mode is None:
                stack.callback(setattr, layer, "dtype_policy", policy)
                layer.dtype_policy = "float32"
        yield


@contextlib.contextmanager
def at_rest(model: KerasModel) -> Iterator[None]:
    """Call Keras's layers that are documented to mix rows in training as outside of it."""
    layers = layers_of(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(statistics_at_rest([x for x in layers if isinstance(x, keras.layers.BatchNormalization)]))
        for layer in layers:
            if not isinstance(layer, (keras.layers.MixUp, keras.layers.CutMix)):
                continue
            call, in_rest = layer.call, training_argument(layer, False)

            def call_at_rest(*args: Any, call: Any = call, in_rest: Any = in_rest, **options: Any) -> Nest:
                return call(*args, **options | in_rest)

            vars(layer)["call"] = call_at_rest  # not by assignment, which Keras would track
            stack.callback(vars(layer).pop, "call")
        yield
