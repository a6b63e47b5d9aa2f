"""An optimizer of the user's own does as a function what its `apply_gradients` does, or is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training_helpers import sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
rng = np.random.default_rng(0)
X = rng.normal(size=(12, 6)).astype("float32")
NUMBERS = rng.uniform(0.1, 0.9, size=(12, 3)).astype("float32")


def _net() -> Any:
    return sequential((6,), L.Dense(5, "tanh"), L.Dense(3, "relu"))


class Halving(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
    """Keeps the rate where no update sees it."""

    share = 2.0

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.share /= 2
        super().update_step(gradient * self.share, variable, learning_rate)


class LeavesOutThirds(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
    """Counts its updates where a step does not see it; the first two are as they should be."""

    calls = 0

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        self.__dict__["calls"] = self.calls + 1
        return super().apply([(self.calls % 3 > 0) * gradient for gradient in grads], trainable_variables)


class Momentum(keras.optimizers.Optimizer):  # type: ignore[name-defined, misc]
    """As Keras documents an optimizer."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.kept = [self.add_variable_from_reference(variable, "kept") for variable in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        kept = self.kept[self._get_variable_index(variable)]
        self.assign(kept, 0.9 * kept + gradient)
        self.assign_sub(variable, learning_rate * kept)


class ByRank(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
    """Has an argument that its configuration leaves out."""

    def __init__(self, learning_rate: float, factors: Any = None, **options: Any) -> None:
        super().__init__(learning_rate, **options)
        self.factors = factors

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate * self.factors[len(variable.shape)])


def test_an_optimizer_that_its_configuration_does_not_make_again_is_not_compared(make_loop: Any, caplog: Any) -> None:
    loop = make_loop(("mirrored", 2), _net, optimizer=lambda: ByRank(0.1, {1: 2.0, 2: 1.0}))
    with caplog.at_level("INFO", "mirrorkit"):
        loop.fit(mk.data.batches(mk.data.arrays(X, NUMBERS), global_batch_size=4), verbose=0)
    assert "ByRank could not be compared with its apply_gradients" in caplog.text


@pytest.mark.parametrize("where", [pytest.param(("one_device", 1), marks=pytest.mark.slow), ("mirrored", 2)], ids=str)
def test_an_optimizer_of_the_users_own(where: Any, make_loop: Any) -> None:
    data = mk.data.batches(mk.data.arrays(X, NUMBERS), global_batch_size=4)
    make_loop(where, _net, lambda: Momentum(0.1)).fit(data, verbose=0)
    for kind in (Halving, LeavesOutThirds):
        with pytest.raises(StepError, match=f"12 updates of {kind.__name__}"):
            make_loop(where, _net, lambda kind=kind: kind(0.1)).fit(data, verbose=0)
        make_loop(where, _net, lambda kind=kind: kind(0.1), unchecked="keras").fit(data, verbose=0)
