"""What the first batch shows of a model's own step: those that mean something else on a share are refused by name."""

from __future__ import annotations

from typing import Any

import faulty_models
import own_models
import pytest
import tensorflow as tf
from own_models import WGAN
from training_helpers import plain_dataset

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError


def _dataset() -> Any:
    return plain_dataset(*own_models.data(48), batch=16)


@pytest.mark.parametrize("kind", faulty_models.FAULTY, ids=lambda kind: kind.__name__)
def test_a_step_that_is_no_mean_over_rows_is_refused(loop_over: Any, kind: Any) -> None:
    loop = loop_over(lambda: faulty_models.compiled(kind))
    before = [variable.numpy() for variable in loop.step.model.trainable_variables]
    with pytest.raises(StepError, match=faulty_models.FAULTY[kind].format(kind.__name__)):
        loop.fit(_dataset(), epochs=1, verbose=0)
    after = [variable.numpy() for variable in loop.step.model.trainable_variables]
    assert all((a == b).all() for a, b in zip(before, after, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "replicas"),
    [
        (faulty_models.DropsAndNormalizes, 3),
        *(
            pytest.param(kind, 2 + number % 2, marks=pytest.mark.slow)
            for number, kind in enumerate(faulty_models.RIGHT)
            if kind is not faulty_models.DropsAndNormalizes
        ),
    ],
)
def test_a_step_that_draws_is_not_refused(loop_over: Any, kind: Any, replicas: int) -> None:
    def make() -> Any:
        if issubclass(kind, WGAN):
            model = kind()
            model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3))
            return model
        return faulty_models.compiled(kind)

    loop = loop_over(make, ("mirrored", replicas))
    loop.fit(_dataset(), epochs=1, verbose=0)
    mk.checks.in_sync(loop.strategy, loop.step)


def test_batches_of_as_many_rows_as_replicas_are_compared(loop_over: Any) -> None:
    loop = loop_over(lambda: faulty_models.compiled(faulty_models.SumOfRows))
    with pytest.raises(StepError, match="gives its update 1 gradients"):
        loop.fit(plain_dataset(*own_models.data(2), batch=2), epochs=1, verbose=0)


def test_ragged_rows_are_refused_by_name(loop_over: Any) -> None:
    """Of a step with several updates."""
    loop = loop_over(lambda: faulty_models.compiled(faulty_models.SumInTheTracker))
    x, y = own_models.data(8)
    ragged = tf.data.Dataset.from_tensor_slices((tf.RaggedTensor.from_tensor(x), y)).batch(4)
    with pytest.raises(StepError, match="RaggedTensors"):
        loop.fit(ragged, epochs=1, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [faulty_models.SumInTheTracker, faulty_models.SumOfRows])
def test_the_check_can_be_left_out(loop_over: Any, kind: Any) -> None:
    """Of a step with several updates, and of one that is a function."""
    loop = loop_over(lambda: faulty_models.compiled(kind), unchecked="rows")
    assert loop.fit(_dataset(), epochs=1, verbose=0).history
