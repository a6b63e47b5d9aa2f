"""A step without an optimizer evaluates and predicts as Keras does, under every strategy, and does not train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import KINDS, THREE, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import CheckpointError, StepError

L = keras.layers


def _net() -> Any:
    """A net with statistics and a regularizer, which is trained no more."""
    regularizer = keras.regularizers.L2(0.1)
    return sequential((4,), L.Dense(3, kernel_regularizer=regularizer), L.BatchNormalization(), L.Dense(1))


@pytest.fixture
def three(strategy_of: Any) -> Any:
    return strategy_of(*THREE)


def _made(strategy: Any, net: Any = _net, **options: Any) -> mk.train.Loop:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = net()
    return mk.train.Loop(strategy, mk.train.Step(model, **options))


def _data(numbers: Any) -> Any:
    """Batches of 8, the last of which is smaller."""
    return mk.data.batches(mk.data.arrays(*numbers), global_batch_size=8)


@pytest.mark.parametrize("where", [KINDS[1], pytest.param(KINDS[2], marks=pytest.mark.slow)], ids=str)
def test_predictions_loss_and_metrics_are_kerass(where: Any, strategy_of: Any, numbers: Any) -> None:
    """With what layers add to the loss; every variable keeps its value."""
    root = keras.metrics.RootMeanSquaredError(name="rmse")
    loop = _made(strategy_of(*where), loss="mse", metrics=["mae"], weighted_metrics=[root])
    model = loop.step.model
    before = model.get_weights()
    found = loop.predict(_data(numbers))
    expected = np.asarray(model(numbers[0], training=False))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    squares = np.mean((expected - numbers[1]) ** 2)
    assert loop.evaluate(_data(numbers)) == {
        "loss": pytest.approx(squares + float(model.losses[0]), rel=1e-5),
        "mae": pytest.approx(np.abs(expected - numbers[1]).mean(), rel=1e-5),
        "rmse": pytest.approx(np.sqrt(squares), rel=1e-5),
    }
    assert all(map(np.array_equal, model.get_weights(), before))


def test_a_checkpoint_of_the_training_is_restored(three: Any, numbers: Any, tmp_path: Any) -> None:
    with three.scope():
        model, optimizer = _net(), keras.optimizers.Adam(0.1)
    trained = mk.train.Loop(three, mk.train.Step(model, optimizer, loss="mse", ema=0.9))
    trained.fit(_data(numbers), verbose=0, callbacks=[mk.train.Checkpoints(tmp_path)])
    loop = _made(three)
    assert loop.restore(tmp_path).epoch == 1
    np.testing.assert_array_equal(loop.predict(_data(numbers)), trained.predict(_data(numbers)))
    other = _made(three, lambda: sequential((4,), L.Dense(3), L.BatchNormalization(), L.Dense(2)))
    before = other.step.model.get_weights()
    with pytest.raises(CheckpointError, match=r"-.*dense/kernel float32"):
        other.restore(tmp_path)
    assert all(map(np.array_equal, other.step.model.get_weights(), before))


def test_metrics_alone_are_evaluated(three: Any, numbers: Any) -> None:
    loop = _made(three, metrics=["mae"])
    apart = np.asarray(loop.step.model(numbers[0], training=False)) - numbers[1]
    assert loop.evaluate(_data(numbers)) == {"mae": pytest.approx(np.abs(apart).mean(), rel=1e-5)}
    assert loop.step.model.optimizer is None  # TensorBoard asks for it
    assert not _made(three).step.model.compiled  # nobody said how


def _frozen() -> Any:
    model = _net()
    model.trainable = False
    return model


UNTRAINED = {
    "frozen": _frozen,
    "no variables": lambda: sequential((4,), L.Rescaling(2.0)),
    "half": lambda: sequential((4,), L.Dense(1, dtype="float16")),
    "mixed": lambda: sequential((4,), L.Dense(1, dtype="mixed_float16")),
    "not built": lambda: keras.Sequential([L.Dense(1)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("net", UNTRAINED.values(), ids=UNTRAINED)
def test_models_that_could_not_be_trained_predict(net: Any, three: Any, numbers: Any) -> None:
    loop = _made(three, net)
    found = loop.predict(_data(numbers))
    np.testing.assert_allclose(found, loop.step.model(numbers[0], training=False), rtol=2e-3, atol=2e-3)
    assert len(found) == len(numbers[0])


def test_what_needs_an_optimizer_is_refused_by_name(three: Any, numbers: Any) -> None:
    strategy, data = three, _data(numbers)
    loop = _made(strategy, metrics=["mae"])
    cure = r"without an optimizer.*To train, write Step\(model, optimizer, loss"
    for trained in (loop.fit, loop.warm_up, loop.traced):
        with pytest.raises(StepError, match=cure):
            trained(data)
    rows = tuple(tf.constant(part[:4]) for part in numbers)
    with pytest.raises(StepError, match=cure):
        strategy.run(loop.step.compute, args=(rows,))
    with pytest.raises(StepError, match=r"neither a loss nor metrics.*Write Step\(model, metrics"):
        _made(strategy).evaluate(data)
    for option in ({"clip_norm": 1.0}, {"accumulate": 2}, {"loss_scale": 2.0}, {"ema": 0.9}, {"shard_optimizer": True}):
        with pytest.raises(StepError, match=f"{next(iter(option))} and no optimizer"):
            _made(strategy, **option)


def test_the_values_of_a_loss_function_are_evaluated(three: Any, numbers: Any) -> None:
    with three.scope():
        model = sequential((4,), L.Dense(1))

    def values(batch: Any) -> Any:
        x, y = batch
        return {"loss": (model(x) - y)[:, 0] ** 2, "size": tf.abs(y[:, 0])}

    loop = mk.train.Loop(three, mk.train.Step.from_loss(model, None, values))
    apart = np.asarray(model(numbers[0])) - numbers[1]
    found = loop.evaluate(_data(numbers))
    assert found["loss"] == pytest.approx((apart**2).mean(), rel=1e-5)
    assert found["size"] == pytest.approx(np.abs(numbers[1]).mean(), rel=1e-5)


def test_a_metric_of_whole_batches_is_found_here_too(three: Any, numbers: Any) -> None:
    def spread(y: Any, y_pred: Any) -> Any:
        return keras.ops.max(y_pred) - keras.ops.min(y_pred)

    loop = _made(three, metrics=[spread])
    with pytest.raises(StepError, match="metric 'spread'"):
        loop.evaluate(_data(numbers))
