"""Models with their own `train_step`, unedited: Keras's `fit` on one device says what must come out."""

from __future__ import annotations

from typing import Any

import numpy as np
import own_models
import pytest
from training_helpers import plain_dataset

from mirrorkit._keras import keras
from mirrorkit.variables import copies

EPOCHS, BATCH = 2, 16  # of 50 examples: the last batch has two


def keras_run(
    make: Any, *, order: Any = slice(None), validation: Any = None
) -> tuple[dict[str, Any], list[np.ndarray]]:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    model = make()
    fit_data = plain_dataset(*(part[order] for part in own_models.data()), batch=BATCH)
    history = model.fit(fit_data, epochs=EPOCHS, verbose=0, validation_data=validation, shuffle=False).history
    return history, [np.asarray(variable.value) for variable in model.variables]


def largest(one: Any, other: Any) -> float:
    """The largest difference; of numbers above 1 it is relative."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return float(np.max(np.abs(one - other) / np.maximum(1.0, np.abs(other)), initial=0.0))


FAST = [("distillation", 2), ("in_loops", 3)]
ALL = [*((name, 3) for name in own_models.MODELS), ("wgan", 1), ("wgan", 2), ("tracks", 1)]
CASES = [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in FAST)]


@pytest.mark.parametrize(("name", "replicas"), CASES)
def test_it_trains_as_keras_does(loop_over: Any, name: str, replicas: int) -> None:
    history, weights = keras_run(own_models.MODELS[name])
    loop = loop_over(own_models.MODELS[name], ("mirrored" if replicas > 1 else "one_device", replicas))
    report = loop.fit(plain_dataset(*own_models.data(), batch=BATCH), epochs=EPOCHS, verbose=0)
    assert report.history.keys() == history.keys()
    found = {log: largest(report.history[log], history[log]) for log in history}
    for i, (variable, expected) in enumerate(zip(loop.step.model.variables, weights, strict=True)):
        if getattr(variable, "synchronization", None) == "on_read" and "metric" in variable.path:
            continue
        found[f"{i}: {variable.path}"] = float(np.max([largest(copy, expected) for copy in copies(variable)]))
    bar = 1e-6  # Keras may compile with XLA, which rounds otherwise
    if max(found.values()) > bar:
        control, reordered = keras_run(own_models.MODELS[name], order=_within_batches())
        rounding = max(largest(a, b) for a, b in zip(weights, reordered, strict=True))
        bar = 3 * max(rounding, *(largest(control[log], history[log]) for log in history))
    assert {path: apart for path, apart in found.items() if not apart <= max(bar, 1e-6)} == {}


def _within_batches() -> np.ndarray:
    """The same batches with their rows in another order: what differs then is rounding."""
    rng = np.random.default_rng(1)
    return np.concatenate([first + rng.permutation(min(BATCH, 50 - first)) for first in range(0, 50, BATCH)])
