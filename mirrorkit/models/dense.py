"""Models without convolutions: softmax regression and the multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel
from mirrorkit.models._inputs import pixels
from mirrorkit.models.registry import register, require_dropout


@register("linear")
def linear(*, input_shape: tuple[int, ...] = (28, 28, 1), num_classes: int = 10) -> KerasModel:
    """Softmax regression: the pixels of an example, flattened, and one dense layer.

    ```python
    model = mk.models.linear(input_shape=(20,), num_classes=3)
    print(model.count_params())  # 63
    ```

    Parameters: 7,850
    FLOPs per image: 15,680
    Accuracy on MNIST: not measured; 88.0 % in the paper (one-layer network, error 12.0 %).
    Paper: LeCun, Bottou, Bengio and Haffner 1998, "Gradient-based learning applied to document recognition",
    https://doi.org/10.1109/5.726791

    Args:
        input_shape: the shape of one example, any rank.
        num_classes: the number of logits.
    """
    inputs, x = pixels(input_shape)
    x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="logits")(x), name="linear")


@register("mlp")
def mlp(
    *,
    input_shape: tuple[int, ...] = (28, 28, 1),
    num_classes: int = 10,
    units: Sequence[int] = (300, 100),
    dropout: float = 0.0,
) -> KerasModel:
    """A multilayer perceptron: dense layers with ReLU between the flattened pixels and the logits.

    ```python
    model = mk.models.mlp(input_shape=(20,), num_classes=3, units=(64, 32), dropout=0.2)
    print(model.count_params())  # 3523
    ```

    Parameters: 266,610
    FLOPs per image: 532,400
    Accuracy on MNIST: not measured; 96.95 % in the paper (its 300-100 network has sigmoid-like units, error 3.05 %).
    Paper: LeCun, Bottou, Bengio and Haffner 1998, "Gradient-based learning applied to document recognition",
    https://doi.org/10.1109/5.726791

    Args:
        input_shape: the shape of one example, any rank.
        num_classes: the number of logits.
        units: the widths of the hidden layers, first to last; empty gives "linear".
        dropout: the fraction of each hidden layer's outputs to drop in training, 0 <= dropout < 1.

    Raises:
        ModelError: `dropout` is 1.
    """
    require_dropout("mlp", dropout)
    inputs, x = pixels(input_shape)
    x = keras.layers.Flatten()(x)
    for width in units:
        x = keras.layers.Dense(width, activation="relu")(x)
        if dropout:
            x = keras.layers.Dropout(dropout)(x)
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="logits")(x), name="mlp")
