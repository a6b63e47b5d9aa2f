"""A step without an optimizer evaluates and predicts as Keras does, under every strategy, and does not train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import KINDS, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import CheckpointError, StepError

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


def _net() -> Any:
    """A net with statistics and a regularizer, which is trained no more."""
    regularizer = keras.regularizers.L2(0.1)
    return sequential((4,), L.Dense(3, kernel_regularizer=regularizer), L.BatchNormalization(), L.Dense(1))


@pytest.fixture(params=KINDS, ids=str)
def strategy(request: Any, strategy_of: Any) -> Any:
    return strategy_of(*request.param)


def _made(strategy: Any, net: Any = _net, **options: Any) -> mk.train.Loop:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = net()
    return mk.train.Loop(strategy, mk.train.Step(model, **options))


def _data(numbers: Any) -> Any:
    """Batches of 8, the last of which is smaller."""
    return mk.data.batches(mk.data.arrays(*numbers), global_batch_size=8)


def test_predictions_are_kerass(strategy: Any, numbers: Any) -> None:
    loop = _made(strategy)
    model = loop.step.model
    before = model.get_weights()
    found = loop.predict(_data(numbers))
    np.testing.assert_allclose(found, model(numbers[0], training=False), rtol=1e-5, atol=1e-6)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), before, strict=True))
    assert not model.compiled  # nobody said how
    np.testing.assert_array_equal(loop.predict(plain_dataset(numbers[0], batch=8)), found)


def test_a_checkpoint_of_the_training_is_restored(strategy_of: Any, numbers: Any, tmp_path: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model, optimizer = _net(), keras.optimizers.Adam(0.1)
    trained = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse", ema=0.9))
    trained.fit(_data(numbers), epochs=2, verbose=0, callbacks=[mk.train.Checkpoints(tmp_path)])
    loop = _made(strategy)
    assert loop.restore(tmp_path).epoch == 2
    np.testing.assert_array_equal(loop.predict(_data(numbers)), trained.predict(_data(numbers)))
    other = _made(strategy, lambda: sequential((4,), L.Dense(3), L.BatchNormalization(), L.Dense(2)))
    before = other.step.model.get_weights()
    with pytest.raises(CheckpointError, match=r"other shape or dtype: .*dense_\d*/kernel"):
        other.restore(tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(other.step.model.get_weights(), before, strict=True))


@pytest.mark.parametrize("net", [_net, lambda: sequential((4,), L.Dense(1))], ids=["regularized", "line"])
def test_metrics_alone_are_evaluated(net: Any, strategy: Any, numbers: Any) -> None:
    loop = _made(strategy, net, metrics=["mae"], weighted_metrics=[keras.metrics.RootMeanSquaredError(name="rmse")])
    apart = np.asarray(loop.step.model(numbers[0], training=False)) - numbers[1]
    found = loop.evaluate(_data(numbers))
    assert found.keys() == {"mae", "rmse"}
    assert found["mae"] == pytest.approx(np.abs(apart).mean(), rel=1e-5)
    assert found["rmse"] == pytest.approx(np.sqrt((apart**2).mean()), rel=1e-5)


def test_a_loss_is_evaluated_with_what_layers_add(strategy: Any, numbers: Any) -> None:
    loop = _made(strategy, loss="mse", metrics=["mae"])
    model = loop.step.model
    apart = np.asarray(model(numbers[0], training=False)) - numbers[1]
    found = loop.evaluate(_data(numbers))
    assert found["loss"] == pytest.approx((apart**2).mean() + float(model.losses[0]), rel=1e-5)
    assert found.keys() == {"loss", "mae"}


def test_callbacks_of_an_evaluation_are_told(strategy_of: Any, numbers: Any, tmp_path: Any) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    loop = _made(strategy_of("mirrored", 3), metrics=["mae"])
    loop.evaluate(_data(numbers), callbacks=[keras.callbacks.TensorBoard(tmp_path)])  # it asks for the optimizer


def _frozen() -> Any:
    model = _net()
    model.trainable = False
    return model


def _no_variables() -> Any:
    return sequential((4,), L.Rescaling(2.0))


def _half() -> Any:
    return sequential((4,), L.Dense(1, dtype="float16"))


def _mixed() -> Any:
    return sequential((4,), L.Dense(1, dtype="mixed_float16"))


def _unbuilt() -> Any:
    return keras.Sequential([L.Dense(1)])


@pytest.mark.parametrize("net", [_frozen, _no_variables, _half, _mixed, _unbuilt])
def test_models_that_could_not_be_trained_predict(net: Any, strategy: Any, numbers: Any) -> None:
    loop = _made(strategy, net)
    found = loop.predict(_data(numbers))
    np.testing.assert_allclose(found, loop.step.model(numbers[0], training=False), rtol=2e-3, atol=2e-3)
    assert len(found) == len(numbers[0])


def test_what_needs_an_optimizer_is_refused_by_name(strategy_of: Any, numbers: Any) -> None:
    strategy, data = strategy_of("mirrored", 3), _data(numbers)
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
    for option in ({"clip_norm": 1.0}, {"clip_value": 1.0}, {"accumulate": 2}, {"loss_scale": 2.0}, {"ema": 0.9}):
        with pytest.raises(StepError, match=f"Step was given {next(iter(option))} and no optimizer. Give it an"):
            _made(strategy, **option)
    with pytest.raises(StepError, match="shard_optimizer and no optimizer"):
        _made(strategy, shard_optimizer=True)


def test_with_an_optimizer_a_loss_is_needed(strategy_of: Any, numbers: Any) -> None:
    strategy = strategy_of("mirrored", 3)
    with strategy.scope():
        model, optimizer = sequential((4,), L.Dense(1)), keras.optimizers.SGD()
    with pytest.raises(StepError, match="No output of the model has a loss"):
        mk.train.Loop(strategy, mk.train.Step(model, optimizer)).fit(_data(numbers), verbose=0)


def test_the_values_of_a_loss_function_are_evaluated(strategy: Any, numbers: Any) -> None:
    with strategy.scope():
        model = sequential((4,), L.Dense(1))

    def values(batch: Any) -> Any:
        x, y = batch
        return {"loss": (model(x) - y)[:, 0] ** 2, "size": tf.abs(y[:, 0])}

    loop = mk.train.Loop(strategy, mk.train.Step.from_loss(model, None, values))
    apart = np.asarray(model(numbers[0])) - numbers[1]
    found = loop.evaluate(_data(numbers))
    assert found["loss"] == pytest.approx((apart**2).mean(), rel=1e-5)
    assert found["size"] == pytest.approx(np.abs(numbers[1]).mean(), rel=1e-5)


def test_a_metric_of_whole_batches_is_found_here_too(strategy_of: Any, numbers: Any) -> None:
    def spread(y: Any, y_pred: Any) -> Any:
        return keras.ops.max(y_pred) - keras.ops.min(y_pred)

    loop = _made(strategy_of("mirrored", 3), metrics=[spread])
    with pytest.raises(StepError, match="metric 'spread'"):
        loop.evaluate(_data(numbers))
