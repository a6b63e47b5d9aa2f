"""What the placement tests and table look at: the cases of the equivalence table, and those of the data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gpu_placement import Placement, placement

import mirrorkit as mk
from mirrorkit._keras import keras

sys.path.append(str(Path(__file__).resolve().parents[1] / "equivalence"))

from cases import CASES, Case
from cells import policy


@dataclass(frozen=True)
class Subject:
    """A step and its data; `data` makes a recipe with `mk.data.batches` or `mk.data.resident`."""

    make_step: Callable[[], Any]
    data: Callable[[str], Any]
    policy: str = "float32"

    def placement(self, source: str, *, devices: str) -> Placement:
        """Return the report for one of the sources."""
        with policy(self.policy):
            return placement(self.make_step, self.data(source), devices=devices)


def _of_case(case: Case) -> Subject:
    def make_step() -> Any:
        options = dict(case.options)
        if "weighted_metrics" in options:
            options["weighted_metrics"] = [make() for make in options["weighted_metrics"]]
        return mk.train.Step(case.net(), case.optimizer(), loss=case.loss(), metrics=case.metrics(), **options)

    def data(source: str) -> Any:
        recipe = case.data()
        arguments = {name: getattr(recipe, name) for name in ("global_batch_size", "shuffle", "seed", "one_hot")}
        return getattr(mk.data, source)(recipe.split, **arguments)

    return Subject(make_step, data, case.policy)


def pictures(count: int = 76, **options: Any) -> Callable[[str], Any]:
    """Return what makes uint8 pictures in batches of 16: four, and a smaller one of 12."""

    def data(source: str) -> Any:
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 256, (count, 8, 8, 3)).astype("uint8"), rng.integers(0, 3, count)
        split = mk.data.arrays(x, y, num_classes=3)
        return getattr(mk.data, source)(split, global_batch_size=16, shuffle=True, seed=0, **options)

    return data


def _convolutions() -> Any:
    layers = [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.MaxPooling2D(), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Rescaling(1 / 255), *layers, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return mk.train.Step(model, keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, metrics=["accuracy"])


_augmentations = {
    "flip": mk.data.augment.flip(),
    "pad_and_crop": mk.data.augment.pad_and_crop(2),
    "pad_and_crop, reflect": mk.data.augment.pad_and_crop(2, mode="reflect"),
    "cutout": mk.data.augment.cutout(2),
    "normalize": mk.data.augment.normalize(127.0, 60.0),
}
_WRITTEN = (
    "records",
    "image_folder",
    "parquet",
    "source",
)  # cases of data that lies elsewhere; the step is that of others
FEATURES = {
    "convolutions and accuracy, uint8": Subject(_convolutions, pictures()),
    **{name: Subject(_convolutions, pictures(augment=[one])) for name, one in _augmentations.items()},
    **{name: _of_case(case) for name, case in CASES.items() if name not in _WRITTEN},
}
