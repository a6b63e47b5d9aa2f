"""A model's own step is a step like any other: validation, prediction, callbacks, checkpoints, warm-up, refusals."""

from __future__ import annotations

from typing import Any

import faulty_models
import numpy as np
import own_models
import pytest
import tensorflow as tf
from test_own_train_step import EPOCHS, keras_run, largest
from training_helpers import At, Interrupted, plain_dataset

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.variables import copies, path


def _dataset(rows: int = 50) -> Any:
    return plain_dataset(*own_models.data(rows), batch=16)


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_validation_is_by_its_own_test_step(loop_over: Any, replicas: int) -> None:
    history, _ = keras_run(own_models.MODELS["vae"], validation=_dataset(41))
    loop = loop_over(own_models.MODELS["vae"], ("mirrored" if replicas > 1 else "one_device", replicas))
    report = loop.fit(_dataset(), epochs=EPOCHS, validation_data=_dataset(41), verbose=0)
    assert report.history.keys() == history.keys()
    for name in history:
        assert largest(report.history[name], history[name]) < 1e-5, name
    again = loop.evaluate(_dataset(41))
    assert {f"val_{name}": pytest.approx(value) for name, value in again.items()} == {
        name: values[-1] for name, values in report.history.items() if name.startswith("val_")
    }


def _unlabelled(take: Any) -> Any:
    class Reconstructs(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6)])

        def call(self, x: Any) -> Any:
            return self.net(x)

        def train_step(self, data: Any) -> Any:
            x = take(data)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.net(x) - x) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    keras.utils.set_random_seed(0)
    model = Reconstructs()
    model.compile(keras.optimizers.SGD(0.1))
    return model


@pytest.mark.parametrize("replicas", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_it_gets_a_tuple_of_one_as_from_keras(loop_over: Any, replicas: int) -> None:
    """`(x,)` of a dataset, which `data[0]` takes a row of where it is `x`; of arrays `x`, as from Keras's fit."""
    x, _ = own_models.data()
    tuples = tf.data.Dataset.from_tensor_slices((x,)).batch(16)
    arrays = mk.data.batches(mk.data.arrays(x), global_batch_size=16, shuffle=False, drop_remainder=False)
    whole = mk.data.from_function(lambda shard, shards: tuples, global_batch_size=16, steps_per_epoch=3)
    for data, of_keras, take in (
        (tuples, tuples, lambda data: data[0]),
        (whole, tuples.take(3), lambda data: data[0]),
        (arrays, x, lambda data: data),
    ):
        expected = _unlabelled(take)
        expected.fit(of_keras, batch_size=16 if of_keras is x else None, shuffle=False, verbose=0)
        loop = loop_over(lambda take=take: _unlabelled(take), ("mirrored", replicas))
        loop.fit(data, verbose=0)
        assert largest(loop.step.model.net.get_weights()[0], expected.net.get_weights()[0]) < 1e-6  # measured: 6e-8


class Forgets(keras.Sequential):
    """Its step leaves out the metrics that `compile` was given."""

    updates = 1

    def train_step(self, data: Any) -> Any:
        x, y = data
        for _ in range(self.updates):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss, "other": loss + 1.0}


class ForgetsTwice(Forgets):
    updates = 2


class LogsRows(Forgets):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data) | {"rows": data[1][:, 0]}


def _forgetful(kind: type[keras.Model]) -> Any:
    keras.utils.set_random_seed(0)
    model = kind([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("kind", [Forgets, ForgetsTwice])
def test_metrics_given_to_compile_may_be_left_out(loop_over: Any, kind: type[keras.Model]) -> None:
    with mk.strategy.create("one_device").scope():  # without one, Keras builds no metrics before it asks for them
        expected = _forgetful(kind)
    history = expected.fit(_dataset(48), epochs=2, verbose=0).history
    report = loop_over(lambda: _forgetful(kind), ("mirrored", 2)).fit(_dataset(48), epochs=2, verbose=0)
    assert report.history.keys() == history.keys() == {"loss", "other"}
    assert largest(report.history["loss"], history["loss"]) < 1e-5


def test_a_log_with_several_numbers_is_named(loop_over: Any) -> None:
    with pytest.raises(StepError, match=r"logs \['rows'\], which are not scalars. Return their means."):
        loop_over(lambda: _forgetful(LogsRows)).fit(_dataset(), verbose=0)


def test_metrics_given_to_compile_are_those_of_all_rows(loop_over: Any) -> None:
    loop = loop_over(own_models.MODELS["distillation"])
    _, y = own_models.data(41)
    found = loop.evaluate(_dataset(41))
    outputs = loop.predict(_dataset(41))
    assert outputs.shape == (41, 3)
    assert found["mae"] == pytest.approx(np.mean(np.abs(outputs - y)), rel=1e-5)
    assert found["root_mean_squared_error"] == pytest.approx(np.sqrt(np.mean((outputs - y) ** 2)), rel=1e-5)


class _DrawsAll(faulty_models.DropsAndNormalizes):
    """With draws of TensorFlow, and a variable of its own, too."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = tf.Variable(0.0)

    def objective(self, x: Any, y: Any) -> Any:
        self.seen.assign_add(1.0)
        x += keras.random.normal(tf.shape(x))  # without a seed
        return super().objective(x + tf.random.normal(tf.shape(x), stddev=self.seen), y)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", [_DrawsAll, faulty_models.DrawsNoise])  # with variables, and as a function
def test_a_run_goes_on_with_the_same_bits(loop_over: Any, tmp_path: Any, kind: Any, replicas: int) -> None:
    def run(*callbacks: Any) -> Any:
        loop = loop_over(lambda: faulty_models.compiled(kind), ("mirrored" if replicas > 1 else "one_device", replicas))
        data = mk.data.batches(mk.data.arrays(*own_models.data()), global_batch_size=16, shuffle=True, seed=1)
        return loop, loop.fit(data, epochs=2, callbacks=list(callbacks), verbose=0).history

    whole, expected = run()
    with pytest.raises(Interrupted):
        run(mk.train.Checkpoints(tmp_path, every=3), At("on_train_batch_end", 5))
    again, history = run(mk.train.Checkpoints(tmp_path, every=3))
    if kind is _DrawsAll:
        assert float(copies(again.step.model.seen)[-1]) == 8
    for variable, other in zip(whole.step.variables, again.step.variables, strict=True):
        if getattr(variable, "synchronization", None) == "on_read" or "logs_of" in path(variable):
            continue  # means over a batch, of which Keras's fit does not repeat the last bit either
        for one, two in zip(copies(variable), copies(other), strict=True):
            assert np.array_equal(one.numpy(), two.numpy()), path(variable)
    assert all(largest(history[name], expected[name]) < 1e-6 for name in expected)


@pytest.mark.slow
def test_it_is_restored_after_it_has_seen_data(loop_over: Any, tmp_path: Any) -> None:
    first, loop = (loop_over(own_models.MODELS["vae"]) for _ in range(2))
    first.fit(_dataset(), epochs=1, callbacks=[mk.train.Checkpoints(tmp_path)], verbose=0)
    with pytest.raises(StepError, match=r"VAE.*loop\.warm_up"):
        loop.restore(tmp_path)
    loop.warm_up(_dataset())
    assert loop.restore(tmp_path).epoch == 1
    assert loop.evaluate(_dataset(41)) == first.evaluate(_dataset(41))


class _Means(keras.layers.Layer):  # type: ignore[name-defined, misc]
    def build(self, shape: Any) -> None:
        self.means = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.means.assign(keras.ops.mean(x, axis=0))
        return x


class _Sixteen(faulty_models.Base):
    def __init__(self) -> None:
        super().__init__()
        self.means = _Means(dtype="mixed_bfloat16")
        self.net = keras.Sequential([keras.Input((6,)), self.means, keras.layers.Dense(3)])


def test_a_layer_of_mixed_precision_assigns_its_state(loop_over: Any) -> None:
    loop = loop_over(lambda: faulty_models.compiled(_Sixteen))
    x = np.arange(48, dtype="float32").reshape(8, 6) % 7  # of which 16 bits hold every mean
    loop.fit(plain_dataset(x, x[:, :3], batch=8), epochs=1, verbose=0)
    for copy in copies(loop.step.model.means.means):
        np.testing.assert_array_equal(copy.numpy(), np.mean(x, 0))


def test_one_copy_for_all_replicas_is_refused(loop_over: Any) -> None:
    with pytest.raises(StepError, match=r"CentralStorageStrategy has one copy.*WGAN.*after the update"):
        loop_over(own_models.MODELS["wgan"], ("central_storage", 2)).fit(_dataset(), verbose=0)


def test_to_evaluate_or_predict_it_needs_a_call(loop_over: Any) -> None:
    loop = loop_over(own_models.MODELS["wgan"])
    with pytest.raises(StepError, match="neither `call` nor `test_step`"):
        loop.evaluate(_dataset())
    with pytest.raises(StepError, match="neither `call` nor `predict_step`"):
        loop.predict(_dataset())


class _Switches(faulty_models.Base):
    """A model that has all its weights trained by itself, whatever was set before."""

    def __init__(self) -> None:
        super().__init__()
        self.net.layers[0].trainable = False

    def train_step(self, data: Any) -> Any:
        self.net.layers[0].trainable = True
        return super().train_step(data)


def test_layers_frozen_behind_its_back(loop_over: Any) -> None:
    """Only its own step may switch `trainable`."""
    loop = loop_over(lambda: faulty_models.compiled(_Switches))
    loop.fit(_dataset(), epochs=2, verbose=0)
    loop.step.model.net.layers[1].trainable = False
    with pytest.raises(StepError, match=r"`trainable` of '.*' was changed since"):
        loop.fit(_dataset(), verbose=0)


class _Unused(faulty_models.Base):
    def __init__(self) -> None:
        super().__init__()
        self.unused = keras.layers.Dense(2, name="unused")
        self.unused.build((None, 6))


@pytest.mark.slow
def test_weights_without_a_gradient_are_named_as_by_keras(loop_over: Any) -> None:
    loop = loop_over(lambda: faulty_models.compiled(_Unused))
    with pytest.warns(UserWarning, match="Gradients do not exist") as ours:
        loop.fit(_dataset(), epochs=2, verbose=0)  # with a smaller last batch
    keras.utils.set_random_seed(0)
    model = faulty_models.compiled(_Unused)
    with pytest.warns(UserWarning, match="Gradients do not exist") as theirs:
        model.fit(_dataset(), verbose=0)
    said, expected = ([str(w.message) for w in found if "Gradients" in str(w.message)] for found in (ours, theirs))
    assert len(said) == 1
    assert expected[0].startswith(said[0])


def test_options_of_a_step_are_refused(loop_over: Any) -> None:
    loop = loop_over(own_models.MODELS["wgan"], clip_norm=1.0, accumulate=2)
    with pytest.raises(StepError, match=r"given accumulate for WGAN.*reads the weight '.*' after the update"):
        loop.fit(_dataset(), verbose=0)


def test_it_is_no_step_of_a_custom_training_loop(strategy_of: Any) -> None:
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        step = mk.train.Step.from_compiled(own_models.MODELS["wgan"]())
    with pytest.raises(StepError, match="Loop only"):
        step.build(strategy)


def test_averages_are_refused(loop_over: Any) -> None:
    loop = loop_over(own_models.MODELS["mean_teacher"], ("one_device", 1))
    with pytest.raises(StepError, match="train_step of its own"):
        loop.fit(_dataset(), validation_data=_dataset(), validation_averaged=True, verbose=0)
