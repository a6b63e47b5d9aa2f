"""Residual networks for CIFAR: ResNet (He et al. 2015), Wide ResNet (Zagoruyko and Komodakis 2016), and a small one."""

from __future__ import annotations

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, KerasTensor
from mirrorkit.arguments import whole_number
from mirrorkit.errors import ModelError
from mirrorkit.models._inputs import pixels
from mirrorkit.models.registry import register, require_dropout


def _conv(x: KerasTensor, filters: int, *, size: int = 3, strides: int = 1) -> KerasTensor:
    return keras.layers.Conv2D(filters, size, strides, padding="same", use_bias=False, kernel_initializer="he_normal")(
        x
    )


def _norm_relu(x: KerasTensor) -> KerasTensor:
    return keras.layers.ReLU()(keras.layers.BatchNormalization()(x))


def _pool_and_classify(inputs: KerasTensor, x: KerasTensor, num_classes: int, name: str) -> KerasModel:
    x = keras.layers.GlobalAveragePooling2D()(x)
    logits = keras.layers.Dense(num_classes, kernel_initializer="he_normal", name="logits")(x)
    return keras.Model(inputs, logits, name=name)


def _block(x: KerasTensor, filters: int, strides: int) -> KerasTensor:
    """Two 3x3 convolutions beside the identity; option A where the shape changes: every second pixel, zero channels."""
    y = _norm_relu(_conv(x, filters, strides=strides))
    y = keras.layers.BatchNormalization()(_conv(y, filters))
    if strides != 1:
        x = keras.layers.MaxPooling2D(1, strides)(x)
    missing = filters - x.shape[-1]
    if missing:
        x = keras.ops.pad(x, [[0, 0], [0, 0], [0, 0], [missing // 2, missing - missing // 2]])
    return keras.layers.ReLU()(keras.layers.Add()([x, y]))


def _resnet(name: str, blocks: int, input_shape: tuple[int, ...], num_classes: int) -> KerasModel:
    """`blocks` residual blocks at each of 16, 32 and 64 filters: 6 `blocks` + 2 layers deep."""
    inputs, x = pixels(input_shape, scale=1 / 127.5, offset=-1.0)
    x = _norm_relu(_conv(x, 16))
    for filters in (16, 32, 64):
        for block in range(blocks):
            x = _block(x, filters, strides=2 if filters > 16 and block == 0 else 1)
    return _pool_and_classify(inputs, x, num_classes, name)


@register("resnet20")
def resnet20(*, input_shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 10) -> KerasModel:
    """The 20-layer residual network in its CIFAR form, with the parameter-free shortcuts (option A).

    ```python
    model = mk.models.resnet20(num_classes=100)
    print(model.output_shape)  # (None, 100)
    ```

    Parameters: 269,722
    FLOPs per image: 81,102,080
    Accuracy on CIFAR-10: not measured; 91.25 % in the paper (table 6, error 8.75 %).
    Paper: He, Zhang, Ren and Sun 2015, "Deep residual learning for image recognition", section 4.2, arXiv:1512.03385.
    Training there: SGD, momentum 0.9, weight decay 1e-4, batch 128, rate 0.1 cut by 10 at steps 32k and 48k of 64k,
    4-pixel pad-and-crop and flips.

    Args:
        input_shape: (height, width, channels).
        num_classes: the number of logits.
    """
    return _resnet("resnet20", 3, input_shape, num_classes)


@register("resnet32")
def resnet32(*, input_shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 10) -> KerasModel:
    """The 32-layer residual network in its CIFAR form, with the parameter-free shortcuts (option A).

    ```python
    model = mk.models.resnet32(input_shape=(64, 64, 3))
    print(model.input_shape)  # (None, 64, 64, 3)
    ```

    Parameters: 464,154
    FLOPs per image: 137,725,184
    Accuracy on CIFAR-10: not measured; 92.49 % in the paper (table 6, error 7.51 %).
    Paper: He, Zhang, Ren and Sun 2015, arXiv:1512.03385, as for `resnet20`.

    Args:
        input_shape: (height, width, channels).
        num_classes: the number of logits.
    """
    return _resnet("resnet32", 5, input_shape, num_classes)


@register("resnet56")
def resnet56(*, input_shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 10) -> KerasModel:
    """The 56-layer residual network in its CIFAR form, with the parameter-free shortcuts (option A).

    ```python
    model = mk.models.resnet56()
    print(sum(isinstance(layer, keras.layers.Conv2D) for layer in model.layers))  # 55
    ```

    Parameters: 853,018
    FLOPs per image: 250,971,392
    Accuracy on CIFAR-10: not measured; 93.03 % in the paper (table 6, error 6.97 %).
    Paper: He, Zhang, Ren and Sun 2015, arXiv:1512.03385, as for `resnet20`.

    Args:
        input_shape: (height, width, channels).
        num_classes: the number of logits.
    """
    return _resnet("resnet56", 9, input_shape, num_classes)


def _wide_block(x: KerasTensor, filters: int, strides: int, dropout: float) -> KerasTensor:
    """Pre-activation block; where the shape changes the shortcut is a 1x1 convolution of the activated input."""
    y = _norm_relu(x)
    if x.shape[-1] != filters or strides != 1:
        x = _conv(y, filters, size=1, strides=strides)
    y = _norm_relu(_conv(y, filters, strides=strides))
    if dropout:
        y = keras.layers.Dropout(dropout)(y)
    return keras.layers.Add()([x, _conv(y, filters)])


@register("wide_resnet")
def wide_resnet(
    *,
    input_shape: tuple[int, ...] = (32, 32, 3),
    num_classes: int = 10,
    depth: int = 28,
    width: int = 10,
    dropout: float = 0.0,
) -> KerasModel:
    """Wide ResNet: few pre-activation residual blocks at 16, 32 and 64 times `width` filters ("WRN-depth-width").

    ```python
    model = mk.models.wide_resnet(depth=16, width=4, dropout=0.3)   # WRN-16-4
    print(model.count_params())  # 2752506
    ```

    Parameters: 36,479,194
    FLOPs per image: 10,486,657,536
    Accuracy on CIFAR-10: not measured; 96.00 % in the paper (table 4, WRN-28-10 without dropout, error 4.00 %).
    Paper: Zagoruyko and Komodakis 2016, "Wide residual networks", arXiv:1605.07146.
    Training there: SGD, Nesterov momentum 0.9, weight decay 5e-4, batch 128, rate 0.1 cut by 5 at epochs 60, 120 and
    160 of 200, 4-pixel pad-and-crop and flips; its dropout, where used, is 0.3.

    Args:
        input_shape: (height, width, channels).
        num_classes: the number of logits.
        depth: the number of convolutional layers: 6 n + 4 with n blocks per stage, so 10, 16, 22, 28, 40, ...
        width: the widening factor k; 1 is the width of `resnet20`.
        dropout: the fraction dropped between the two convolutions of a block in training, 0 <= dropout < 1.

    Raises:
        ModelError: `depth` is not 6 n + 4, or `dropout` is 1.
    """
    require_dropout("wide_resnet", dropout)
    whole_number("depth", depth, ModelError, most=10_000)
    if depth < 10 or (depth - 4) % 6:
        raise ModelError(f"Model 'wide_resnet' needs a depth of 6 n + 4 (10, 16, 22, 28, 34, 40, ...); found {depth}.")
    inputs, x = pixels(input_shape, scale=1 / 127.5, offset=-1.0)
    x = _conv(x, 16)
    for filters in (16 * width, 32 * width, 64 * width):
        for block in range((depth - 4) // 6):
            x = _wide_block(x, filters, strides=2 if filters > 16 * width and block == 0 else 1, dropout=dropout)
    return _pool_and_classify(inputs, _norm_relu(x), num_classes, "wide_resnet")


def _conv_norm_relu(x: KerasTensor, filters: int, *, pool: bool = False) -> KerasTensor:
    layers = keras.layers
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    if pool:  # before the normalisation, which then has a quarter of the pixels
        x = layers.MaxPooling2D()(x)
    x = layers.BatchNormalization(momentum=0.9)(x)  # Keras's 0.99 lags behind in a few hundred steps
    return layers.ReLU()(x)


@register("speed_net")
def speed_net(*, input_shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 10, width: int = 32) -> KerasModel:
    """A residual network with nine 3x3 convolutions, for a fair accuracy on CIFAR-10 within ten epochs.

    ```python
    model = mk.models.speed_net(width=64)
    print(model.count_params())  # 761312
    ```

    A narrow convolution at full size, then three stages of `width`, 2 `width` and 2 `width` filters. Each begins with a
    convolution and 2x2 max pooling and continues with residual convolutions, so that little work is done at the full
    image size. Global max pooling and one dense layer give the logits. They are divided by 8, so that the softmax
    starts nearly uniform and stays trainable at high learning rates.

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
    inputs, x = pixels(input_shape, scale=1 / 64, offset=-2.0)
    x = _conv_norm_relu(x, width // 2)
    for filters, convolutions in ((width, 2), (2 * width, 2), (2 * width, 1)):
        x = y = _conv_norm_relu(x, filters, pool=True)
        for _ in range(convolutions):
            y = _conv_norm_relu(y, filters)
        x = keras.layers.Add()([x, y])
    x = keras.layers.GlobalMaxPooling2D()(x)
    x = keras.layers.Dense(num_classes, use_bias=False)(x)
    return keras.Model(inputs, keras.layers.Rescaling(1 / 8, name="logits")(x), name="speed_net")
