"""What layers assign while they predict or are evaluated: as in Keras, and the same on all replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from step_helpers import with_policy
from training_helpers import Twice, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
X = np.random.default_rng(0).normal(size=(26, 4)).astype("float32") + 1


class Remembers(L.Layer):
    """A moving mean of its inputs, a number of calls, and a mask that holds infinity, in any pass."""

    def build(self, shape: Any) -> None:
        def state(name: str, start: float, dtype: str = "float32") -> Any:
            return self.add_weight(
                shape=() if dtype != "float32" else shape[-1:],
                dtype=dtype,
                initializer=keras.initializers.Constant(start),
                trainable=False,
                name=name,
            )

        self.mean, self.calls, self.mask = state("mean", 0), state("calls", 0, "int32"), state("mask", -np.inf)

    def call(self, x: Any) -> Any:
        known = x - self.mean
        self.mean.assign(0.5 * self.mean + 0.5 * keras.ops.mean(x, axis=0))
        self.calls.assign_add(1)
        self.mask.assign(-np.inf + 0 * self.mean)
        return known


def net() -> Any:
    keras.utils.set_random_seed(0)
    return sequential((4,), Remembers(), L.Dense(1))


def _ends(model: Any) -> Any:
    return model.inputs, model.outputs


def data(kind: str = "dataset") -> Any:
    if kind == "resident":
        return mk.data.resident(mk.data.arrays(X, X[:, :1]), global_batch_size=8)
    return plain_dataset(X, X[:, :1], batch=8)


def expected(passes: int) -> list[np.ndarray]:
    """Keras's state after so many evaluations; its last batch is as large as the others' share in the mean."""
    model = net()
    for _ in range(passes):
        for first in range(0, len(X), 8):
            model(X[first : first + 8])
    return [variable.numpy() for variable in model.non_trainable_variables]


def assert_state(loop: mk.train.Loop, values: list[np.ndarray]) -> None:
    for variable, value in zip(loop.step.model.non_trainable_variables, values, strict=True):
        for copy in loop.strategy.experimental_local_results(variable.value):
            np.testing.assert_allclose(copy.numpy(), value, rtol=1e-5, err_msg=variable.path)


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        (("mirrored", 3), "dataset"),  # of the last batch, 2 rows, one has none
        pytest.param(("one_device", 1), "dataset", marks=pytest.mark.slow),
        pytest.param(("mirrored", 4), "resident", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_evaluate_and_predict_write_as_keras_does(where: Any, kind: str, make_loop: Any) -> None:
    loop = make_loop(where, net)
    loop.evaluate(data(kind))
    assert_state(loop, expected(1))
    predicted = loop.predict(data(kind))
    assert_state(loop, expected(2))
    assert np.isfinite(predicted).all()
    loop.fit(data(kind), verbose=0, validation_data=data(kind))  # trains on, which NaN in the state would end
    assert_state(loop, expected(4))


@pytest.mark.slow
def test_state_of_half_precision(make_loop: Any) -> None:
    with with_policy("mixed_bfloat16"):
        loop = make_loop(("mirrored", 2), net)
        loop.predict(data())
    assert int(loop.step.model.layers[0].calls.numpy()) == 4
    np.testing.assert_allclose(loop.step.model.layers[0].mean.numpy(), expected(1)[0], rtol=0.05)
    assert mk.checks.in_sync(loop.strategy, loop.step)


class Exact(L.Layer):
    """State that float32 cannot hold: a sum of thirds, and a counter in large strides."""

    def build(self, shape: Any) -> None:
        self.thirds, self.far = (
            self.add_weight(shape=(), dtype=dtype, initializer="zeros", trainable=False, autocast=False, name=name)
            for name, dtype in (("thirds", "float64"), ("far", "int64"))
        )

    def call(self, x: Any) -> Any:
        self.thirds.assign_add(keras.ops.cast(1 + 0 * keras.ops.mean(x), "float64") / 3)  # as if it followed from rows
        self.far.assign_add(2**40 + 1)
        return x


@pytest.mark.parametrize(
    ("where", "own"), [(("one_device", 1), False), (("mirrored", 3), False), (("mirrored", 3), True)], ids=str
)
def test_state_keeps_its_digits(where: Any, own: bool, loop_over: Any) -> None:
    """In a training, an evaluation and a prediction, also of a model's own `train_step` of two updates."""

    def model() -> Any:
        made = (Twice if own else keras.Model)(*_ends(sequential((4,), Exact(), L.Dense(1))))
        made.compile("sgd", "mse")
        return made

    loop = loop_over(model, where)
    loop.fit(data(), verbose=0)
    loop.evaluate(data())
    passes = 4 * (2 if own else 1) + 4
    if not own:
        loop.predict(data())
        passes += 4
    thirds, far = loop.step.model.non_trainable_variables
    assert float(thirds.numpy()) == pytest.approx(passes / 3, rel=1e-14)
    assert int(far.numpy()) == passes * (2**40 + 1)


@pytest.mark.parametrize("what", ["evaluate", pytest.param("predict", marks=pytest.mark.slow)])
def test_refused_where_replicas_have_no_copies(what: str, make_loop: Any) -> None:
    loop = make_loop(("central_storage", 2), net)
    with pytest.raises(StepError, match=r"remembers.*/calls.*CentralStorageStrategy"):
        getattr(loop, what)(data())
