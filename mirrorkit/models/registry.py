"""The list of models by name: `register` adds a builder, `create` calls one, `names` lists them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeVar

from mirrorkit._types import KerasModel
from mirrorkit.arguments import checks_arguments, is_whole, whole_number
from mirrorkit.errors import ModelError

Builder = TypeVar("Builder", bound=Callable[..., KerasModel])

_builders: dict[str, Callable[..., KerasModel]] = {}


def register(name: str) -> Callable[[Builder], Builder]:
    """Register a function that builds a model, for `create(name)`.

    ```python
    @mk.models.register("my_net")
    def my_net(*, input_shape=(32, 32, 3), num_classes=10, width=64):
        inputs = keras.Input(input_shape)
        ...
        return keras.Model(inputs, logits)


    model = mk.models.create("my_net", width=128)
    ```

    Args:
        name: a free name, or that of an earlier definition of the same function (a notebook cell that runs again).

    Returns:
        A decorator that returns the function unchanged. The function must take `input_shape` and `num_classes` by
        keyword, `input_shape` with a default.

    Raises:
        ModelError: the name is taken by another function.
    """

    def add(builder: Builder) -> Builder:
        known = _builders.get(name)
        if known is not None and _identity(known) != _identity(builder):
            raise ModelError(f"The model name {name!r} is already taken by {_identity(known)}. Choose another name.")
        _builders[name] = builder
        return builder

    return add


def names() -> list[str]:
    """The names that `create` knows, sorted.

    ```python
    print("resnet20" in mk.models.names())  # True
    ```
    """
    return sorted(_builders)


def require_dropout(model: str, dropout: float) -> None:
    """Refuse the fraction 1, which Keras takes, and with which nothing is trained."""
    if dropout == 1:
        raise ModelError(f"Model {model!r} needs a dropout with 0 <= dropout < 1; found {dropout}.")


@checks_arguments(ModelError)
def create(
    name: str, *, input_shape: tuple[int, ...] | None = None, num_classes: int = 10, **options: Any
) -> KerasModel:
    """Build a model by its name.

    ```python
    with strategy.scope():
        model = mk.models.create("resnet20", num_classes=100)
    ```

    The models of mirrorkit are functional Keras models. They take pixels from 0 to 255 (uint8, or floats in the same
    range; float32 [batch, *input_shape] inside, or what the Keras dtype policy says), begin with
    `keras.layers.Rescaling`, and return logits [batch, num_classes]: use a loss with `from_logits=True`.

    Args:
        name: one of `names()`.
        input_shape: the shape of one example, without the batch axis; None for the model's own default.
        num_classes: the number of logits.
        **options: other options of the model's builder, such as `depth` and `width` of "wide_resnet".

    Raises:
        ModelError: an unknown name, or an `input_shape` or `num_classes` that no model can have.
        TypeError: an option that the builder does not take.
    """
    builder = find(name)
    options["num_classes"] = whole_number(f"num_classes of the model {name!r}", num_classes, ModelError)
    if input_shape is not None:
        if not isinstance(input_shape, (tuple, list)) or not input_shape or not all(map(is_whole, input_shape)):
            raise ModelError(
                f"input_shape is the shape of one example, such as (28, 28, 1), without the batch axis; "
                f"model {name!r} was given {input_shape!r}."
            )
        options["input_shape"] = tuple(int(size) for size in input_shape)
    return builder(**options)


def find(name: str) -> Callable[..., KerasModel]:
    """Return the function that builds a model.

    Raises:
        ModelError: an unknown name.
    """
    if name not in _builders:
        close = difflib.get_close_matches(str(name), _builders, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ModelError(f"There is no model {name!r}.{hint} Known models: {', '.join(names())}.")
    return _builders[name]


def _identity(builder: Callable[..., KerasModel]) -> str:
    return f"{builder.__module__}.{builder.__qualname__}"
