"""Several Keras models as one: what callbacks see of a step that trains more than one, and what `from_loss` trains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mirrorkit._keras import keras
from mirrorkit._types import Json, KerasModel, Nest
from mirrorkit.errors import StepError


class Models(keras.Model):  # type: ignore[name-defined, misc]
    """Keras models, layers and `SeedGenerator`s: one, or a list or dict of them."""

    def __init__(self, parts: Nest, name: str) -> None:
        # It computes nothing itself, so no policy's 16 bits are to change what it is given.
        super().__init__(name=name, dtype="float32", autocast=False)
        layers = [part for part in flatten(parts) if isinstance(part, keras.layers.Layer)]
        theirs = {id(variable) for layer in layers for variable in layer.variables}
        # Keras would list the state of a generator twice that a layer has too.
        seeds = [part for part in flatten(parts) if isinstance(part, keras.random.SeedGenerator)]
        self.parts = [*layers, *(seed for seed in seeds if id(seed.state) not in theirs)]
        self.built = True

    @property
    def _names(self) -> str:
        return ", ".join(repr(part.name) for part in self.__dict__.get("parts", []))

    def get_config(self) -> Json:
        """Refuse to be written with its configuration, which a step's own models would be lost from."""
        raise self.refusal("A .keras file")

    def __getattr__(self, name: str) -> Any:
        """Say which models there are: a callback's `self.model` is this."""
        raise AttributeError(
            f"The step has several models, {self._names}, and their container has no {name!r}. Pass a callback the "
            "model that it needs."
        )

    def refusal(self, what: str) -> StepError:
        """Return the error that something holds one model, and this is several."""
        return StepError(
            f"{what} holds one model, and the step has several parts: {self._names}. Save the weights of all "
            '(ModelCheckpoint("name.weights.h5", save_weights_only=True)), or write each model to a file of its own '
            "(mk.train.export(model, path))."
        )


def shown(models: Models) -> KerasModel:
    """Return what callbacks and `export` see: the model itself where there is no other part.

    Not a property: Keras saves what it finds among the attributes of a model.
    """
    (first, *others) = models.parts
    return models if others or not isinstance(first, keras.Model) else first


def flatten(parts: Nest) -> Iterator[object]:
    """Yield what is in a nest of lists, tuples and dicts, in its order."""
    inner = parts.values() if isinstance(parts, dict) else parts if isinstance(parts, (list, tuple)) else None
    if inner is None:
        yield parts
    else:
        for part in inner:
            yield from flatten(part)
