"""A small residual network for CIFAR, shaped for a short training time on few cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorkit._keras import keras
from mirrorkit.errors import ModelError
from mirrorkit.models._inputs import image_input
from mirrorkit.models.registry import register

if TYPE_CHECKING:
    from keras import KerasTensor, Model


def _conv(x: KerasTensor, filters: int, *, pool: bool = False) -> KerasTensor:
    layers = keras.layers
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    if pool:  # before the normalisation, which then has a quarter of the pixels
        x = layers.MaxPooling2D()(x)
    x = layers.BatchNormalization(momentum=0.9)(x)  # Keras's 0.99 lags behind in a few hundred steps
    return layers.ReLU()(x)


def _residual(x: KerasTensor, convolutions: int) -> KerasTensor:
    y = x
    for _ in range(convolutions):
        y = _conv(y, x.shape[-1])
    return keras.layers.Add()([x, y])


@register("speed_net")
def speed_net(*, input_shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 10, width: int = 32) -> Model:
    """A residual network with nine 3x3 convolutions, for a fair accuracy on CIFAR-10 within ten epochs.

    A narrow convolution at full size, then three stages of `width`, 2 `width` and 2 `width` filters. Each begins
    with a convolution and 2x2 max pooling and continues with convolutions beside the identity, so that little work is
    done at the full image size. Logits are the maximum over the last pixels through one dense layer, divided by 8:
    the softmax starts out even and stays trainable at high learning rates.

    Parameters: 190,864
    FLOPs per image: 44,532,992
    Accuracy on CIFAR-10: 85.26 % of the test images (JPEG-recompressed, quality about 75) after 10 epochs over 4 CPU
    replicas, one run, by `python examples/cifar10_mirrored.py --devices cpu:4 --batch-size 128`.
    Paper: in the spirit of the short-training nets of DAWNBench (Coleman et al. 2018,
    arXiv:1806.01427) and of Jordan 2024, arXiv:2404.00498.

    Args:
        input_shape: (height, width, channels), at least 8 x 8 pixels.
        num_classes: the number of logits.
        width: the filters of the first stage; even, at least 2.

    Raises:
        ModelError: `width` is odd or below 2.
    """
    if width < 2 or width % 2:
        raise ModelError(f"Model 'speed_net' needs a width that is an even number, such as 32; found {width}.")
    inputs, x = image_input("speed_net", input_shape, smallest=8, scale=1 / 64, offset=-2.0)
    x = _conv(x, width // 2)
    for filters, convolutions in ((width, 2), (2 * width, 2), (2 * width, 1)):
        x = _residual(_conv(x, filters, pool=True), convolutions)
    x = keras.layers.GlobalMaxPooling2D()(x)
    x = keras.layers.Dense(num_classes, use_bias=False)(x)
    return keras.Model(inputs, keras.layers.Rescaling(1 / 8, name="logits")(x), name="speed_net")
