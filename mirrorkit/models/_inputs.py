"""How every image model of the zoo begins: a check of the shape, then the rescaling of pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorkit._keras import keras
from mirrorkit.errors import ModelError

if TYPE_CHECKING:
    from keras import KerasTensor


def image_input(
    model: str, input_shape: tuple[int, ...], *, smallest: int, scale: float = 1 / 255, offset: float = 0.0
) -> tuple[KerasTensor, KerasTensor]:
    """Make the model's input, and the same rescaled to `pixel * scale + offset`.

    Args:
        model: the model's name, for the error.
        input_shape: (height, width, channels).
        smallest: the least height and width from which the model's downsampling leaves a pixel.
        scale: factor for pixels of 0..255.
        offset: added after the scaling.

    Raises:
        ModelError: `input_shape` is not (height, width, channels) or is too small.
    """
    if len(input_shape) != 3:
        raise ModelError(
            f"Model {model!r} works on images: input_shape is (height, width, channels), but {input_shape} was given."
        )
    if min(input_shape[:2]) < smallest:
        raise ModelError(
            f"Model {model!r} needs images of at least {smallest} x {smallest} pixels; input_shape is {input_shape}. "
            "Resize the images, or use 'mlp' or 'linear', which take any shape."
        )
    inputs = keras.Input(input_shape)
    return inputs, keras.layers.Rescaling(scale, offset)(inputs)
