"""How every model of the zoo begins: with the rescaling of pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorkit._keras import keras

if TYPE_CHECKING:
    from keras import KerasTensor


def pixels(
    input_shape: tuple[int, ...], *, scale: float = 1 / 255, offset: float = 0.0
) -> tuple[KerasTensor, KerasTensor]:
    """Make the model's input, of pixels from 0 to 255, and the same rescaled to `pixel * scale + offset`."""
    inputs = keras.Input(input_shape)
    return inputs, keras.layers.Rescaling(scale, offset)(inputs)
