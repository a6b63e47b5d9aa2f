"""A small residual network for CIFAR, shaped for the shortest training time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorkit._keras import keras
from mirrorkit.models._inputs import image_input
from mirrorkit.models.registry import register

if TYPE_CHECKING:
    from keras import KerasTensor, Model


def _conv_norm_relu(x: KerasTensor, filters: int, *, pool: bool = False) -> KerasTensor:
    layers = keras.layers
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    if pool:  # before the normalisation, which then has a quarter of the work
        x = layers.MaxPooling2D()(x)
    x = layers.BatchNormalization(momentum=0.9)(x)
    return layers.ReLU()(x)


@register("speed_net")
def speed_net(*, input_shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 10, width: int = 32) -> Model:
    """A small residual network for CIFAR that trains fast: the stride-2 stem leaves a quarter of the pixels.

    Parameters: 159,872
    FLOPs per image: 31,459,200
    Accuracy on CIFAR-10: not run here.
    Paper: Coleman et al. 2019, "Analysis of DAWNBench", arXiv:1806.01427.

    Args:
        input_shape: (height, width, channels), at least 8 x 8 pixels.
        num_classes: the number of logits.
        width: the filters of the stem; the stages have 1, 2 and 3 times as many.
    """
    layers = keras.layers
    inputs, x = image_input("speed_net", input_shape, smallest=8, scale=1 / 64, offset=-2.0)
    x = layers.Conv2D(width, 4, 2, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization(momentum=0.9)(x)
    x = layers.ReLU()(x)
    x = layers.Add()([x, _conv_norm_relu(x, width)])
    x = _conv_norm_relu(x, 2 * width, pool=True)
    x = layers.Add()([x, _conv_norm_relu(_conv_norm_relu(x, 2 * width), 2 * width)])
    x = _conv_norm_relu(x, 3 * width, pool=True)
    x = layers.GlobalMaxPooling2D()(x)
    logits = layers.Dense(num_classes, use_bias=False)(x)
    return keras.Model(inputs, layers.Rescaling(1 / 8, name="logits")(logits), name="speed_net")
