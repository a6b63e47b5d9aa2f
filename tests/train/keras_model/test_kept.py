"""Replicas take turns where they communicate: what a layer keeps of a trace stays that of each."""

from __future__ import annotations

from typing import Any

from training_helpers import THREE, largest_difference, plain_dataset, sequential

from mirrorkit._keras import keras

L = keras.layers


class Keeps(L.Layer):  # type: ignore[name-defined, misc]
    """Reads a tensor of its own again after a layer within it has communicated."""

    def __init__(self) -> None:
        super().__init__()
        self.normalize = L.BatchNormalization(synchronized=True)

    def call(self, x: Any, training: bool = False) -> Any:
        self.inputs_now = x
        return self.normalize(x, training=training) + self.inputs_now


def net() -> Any:
    added = L.ActivityRegularization(l2=0.5)  # before replicas communicate
    return sequential((4,), L.Dense(3), added, Keeps(), L.Dense(1))


def test_added_losses_and_tensors_in_attributes_are_each_replicas_own(make_loop: Any, numbers: Any) -> None:
    data, found = plain_dataset(*(part[:13] for part in numbers), batch=8), []
    for where in (("one_device", 1), THREE):
        loop = make_loop(where, net)
        loop.fit(data, verbose=0)
        found.append(loop.step.model.get_weights())
    assert largest_difference(*found) < 2e-6  # the same sums, in another order
