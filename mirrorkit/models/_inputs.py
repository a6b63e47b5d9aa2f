"""How every model of the zoo begins: with the rescaling of pixels."""

from __future__ import annotations

from mirrorkit._keras import keras
from mirrorkit._types import KerasTensor


def pixels(
    input_shape: tuple[int, ...], *, scale: float = 1 / 255, offset: float = 0.0
) -> tuple[KerasTensor, KerasTensor]:
    """Make the model's input, of pixels from 0 to 255, and the same rescaled to `pixel * scale + offset`."""
    inputs = keras.Input(input_shape)
    return inputs, keras.layers.Rescaling(scale, offset)(inputs)
