"""Plain convolutional networks, without shortcuts: one for MNIST, one for CIFAR."""

from __future__ import annotations

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel
from mirrorkit.models._inputs import pixels
from mirrorkit.models.registry import register


@register("mnist_cnn")
def mnist_cnn(*, input_shape: tuple[int, ...] = (28, 28, 1), num_classes: int = 10) -> KerasModel:
    """Two 3x3 convolutions (16 and 32 filters), each with ReLU and 2x2 max pooling, then dense layers of 64 and 10.

    ```python
    model = mk.models.mnist_cnn()
    print(model(images[:2]).shape)  # (2, 10)
    ```

    Parameters: 56,714
    FLOPs per image: 1,413,504
    Accuracy on MNIST: 99.10 % of the test digits after 5 epochs of batch 256 over 4 CPU replicas (Adam, cosine decay
    from 0.004, seed 0), by `pytest -m slow tests/models/test_accuracy_mnist.py`.
    Paper: the form is that of LeNet: LeCun, Bottou, Bengio and Haffner 1998, "Gradient-based learning applied to
    document recognition", https://doi.org/10.1109/5.726791

    Args:
        input_shape: (height, width, channels), at least 10 x 10 pixels.
        num_classes: the number of logits.
    """
    layers = keras.layers
    # MNIST's pixels have mean 33.3 and deviation 78.6.
    inputs, x = pixels(input_shape, scale=1 / 78.6, offset=-0.424)
    x = layers.Conv2D(16, 3, activation="relu")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(32, 3, activation="relu")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    x = layers.Dense(64, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(num_classes, name="logits")(x), name="mnist_cnn")


@register("cifar_cnn")
def cifar_cnn(*, input_shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 10, width: int = 32) -> KerasModel:
    """Three pairs of 3x3 convolutions (width, 2 width, 4 width filters), each with BatchNorm, ReLU and 2x2 max pooling.

    ```python
    model = mk.models.cifar_cnn(num_classes=100, width=16)
    print(model.output_shape)  # (None, 100)
    ```

    The last pooling is global average pooling, and a dense layer follows.

    Parameters: 288,746
    FLOPs per image: 77,269,504
    Accuracy on CIFAR-10: not measured.
    Paper: the form is that of VGG: Simonyan and Zisserman 2014, arXiv:1409.1556 (which gives no result on CIFAR).

    Args:
        input_shape: (height, width, channels), at least 4 x 4 pixels.
        num_classes: the number of logits.
        width: the filters of the first pair.
    """
    layers = keras.layers
    inputs, x = pixels(input_shape)
    for stage in range(3):
        if stage:
            x = layers.MaxPooling2D()(x)
        for _ in range(2):
            x = layers.Conv2D(width * 2**stage, 3, padding="same", use_bias=False)(x)
            x = layers.BatchNormalization()(x)
            x = layers.ReLU()(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(num_classes, name="logits")(x), name="cifar_cnn")
