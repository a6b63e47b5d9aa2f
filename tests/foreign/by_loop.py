"""TF-Keras's harness for correctness on replicas, from its wheel, around models that `mk.train.Loop` trains.

The harness makes the inputs (arrays or a dataset, with and without validation data), trains and evaluates twice on
replicas and on one device, and compares weights, logs and predictions. Its own models are for Keras 2 and are not in
the wheel, so the models and data here are ours, with the shapes and laws of its tests. One device is Keras's `fit`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import keras
import numpy as np
import recorder
import tensorflow as tf
from absl.testing import parameterized
from tf_keras.src.distribute import keras_correctness_test_base as harness

import mirrorkit as mk

mk.devices.split_cpu(4)

# A kind of strategy, its replicas (three share 64 rows unequally), and the inputs: whether they are arrays, not a
# dataset, and whether there is validation data, or else an evaluation.
UNEQUAL = ("mirrored", 3, True, True)
PLACES = [UNEQUAL, ("mirrored", 3, False, False), ("mirrored", 2, False, True), ("central_storage", 2, True, False)]
on_replicas = parameterized.parameters(*PLACES)
TOLERANCE = 4e-5  # the harness's own where all batches are full; with a smaller last batch it allows 1e-3


@functools.cache
def strategy_of(kind: str, replicas: int) -> tf.distribute.Strategy:
    return mk.strategy.create(kind, devices=f"cpu:{replicas}")


class ByLoop:
    """A compiled Keras model as the harness calls it, trained by mirrorkit."""

    def __init__(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        self.model = model
        self._loop = mk.train.Loop(strategy, mk.train.Step.from_compiled(model))

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int | None = None,
        epochs: int,
        shuffle: bool,
        steps_per_epoch: int | None = None,
        validation_data: Any = None,
        validation_steps: int | None = None,
        callbacks: Sequence[Any] = (),
    ) -> mk.train.Report:
        assert not shuffle
        if validation_data is not None:
            pair = validation_data if isinstance(validation_data, tuple) else (validation_data, None)
            validation_data = _data(*pair, batch_size, validation_steps)
        train = _data(x, y, batch_size, steps_per_epoch)
        report = self._loop.fit(train, epochs=epochs, validation_data=validation_data, callbacks=callbacks, verbose=0)
        recorder.went_through()
        return report

    def evaluate(
        self, x: Any, y: Any = None, *, batch_size: int | None = None, steps: int | None = None
    ) -> list[float]:
        return list(self._loop.evaluate(_data(x, y, batch_size, steps)).values())

    def predict(self, x: Any, *, steps: int | None = None) -> np.ndarray:
        return self._loop.predict(_data(x, None, 32, steps))

    def get_weights(self) -> list[np.ndarray]:
        return self.model.get_weights()


def _data(x: Any, y: Any, batch_size: int | None, steps: int | None) -> Any:
    """Make mirrorkit's data of what Keras's methods take: so many batches of a dataset, or arrays."""
    if isinstance(x, tf.data.Dataset):
        return x.take(steps)
    if y is None:
        return tf.data.Dataset.from_tensor_slices(x).batch(batch_size)
    return mk.data.batches(mk.data.arrays(x, y), global_batch_size=batch_size)


def dense(kind: str = "sequential") -> Any:
    """Four dense layers, one with an L2 penalty."""
    layers = [
        keras.layers.Dense(10, activation="relu"),
        keras.layers.Dense(10, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4)),
        keras.layers.Dense(10, activation="relu"),
        keras.layers.Dense(1),
    ]
    if kind == "sequential":
        return keras.Sequential([keras.Input((1,)), *layers])
    model = Subclass(layers)
    model(np.zeros((1, 1), "float32"))
    return model


class Subclass(keras.Model):
    def __init__(self, stages: Sequence[Any]) -> None:
        super().__init__()
        self.stages = list(stages)

    def call(self, inputs: Any) -> Any:
        for stage in self.stages:
            inputs = stage(inputs)
        return inputs


def convolution(norm: str | None) -> Any:
    """One convolution of images of 28 by 28, perhaps normalized, pooled, ten classes."""
    image = keras.Input((28, 28, 3))
    found = keras.layers.Conv2D(16, 3, strides=4, kernel_regularizer=keras.regularizers.L2(1e-4))(image)
    if norm == "regular":
        found = keras.layers.BatchNormalization()(found)
    elif norm == "sync":  # two beside each other
        both = [keras.layers.BatchNormalization(synchronized=True)(found) for _ in range(2)]
        found = keras.layers.Add()(both)
    found = keras.layers.Flatten()(keras.layers.MaxPooling2D()(found))
    return keras.Model(image, keras.layers.Dense(10, activation="softmax")(found))


def words(between: Callable[[], Sequence[Any]]) -> Any:
    """Ten words of 20, embedded in 10 numbers; two classes."""
    ids = keras.Input((10,), dtype="int32")
    found = keras.layers.Embedding(20, 10)(ids)
    for layer in between():
        found = layer(found)
    return keras.Model(ids, keras.layers.Dense(2, activation="softmax", dtype="float32")(found))


def siamese() -> Any:
    """One embedding of two sequences of words, and the cosine of their means."""
    embedding = keras.layers.Embedding(20, 10, embeddings_initializer=keras.initializers.RandomUniform(0, 1))
    pair = [keras.Input((10,), dtype="int32", name=name) for name in ("words_a", "words_b")]
    means = [keras.layers.GlobalAveragePooling1D()(embedding(ids)) for ids in pair]
    return keras.Model(pair, keras.layers.Dot(axes=1, normalize=True)(means))


class _OnReplicas:
    """What the harness asks of a test: `net`, `rate` and `loss` say which model."""

    rate, loss, metric = 0.1, "sparse_categorical_crossentropy", "sparse_categorical_accuracy"

    def setUp(self) -> None:
        super().setUp()
        keras.utils.clear_session()
        keras.utils.set_random_seed(1)

    def get_model(self, initial_weights: Any = None, distribution: Any = None, input_shapes: Any = None) -> Any:
        with harness.MaybeDistributionScope(distribution):
            model, optimizer = self.net(), keras.optimizers.SGD(self.rate)
            assert model.weights  # else the harness would not make both begin alike
            if initial_weights:
                model.set_weights(initial_weights)
            model.compile(optimizer, self.loss, metrics=[self.metric], auto_scale_loss=False)
        return ByLoop(model, distribution) if distribution else _Quiet(model)

    def check(self, place: tuple[str, int, bool, bool], **options: Any) -> None:
        """Run the harness, whose tolerance is that of full batches whatever the last batch is."""
        kind, replicas, arrays, validates = place
        compare = functools.partial(_compare, harness.compare_results)
        with mock.patch.object(harness, "compare_results", compare):
            self.run_correctness_test(strategy_of(kind, replicas), arrays, validates, **options)


def _compare(original: Callable[..., None], *results: Any, partial_last_batch: Any, **options: Any) -> None:
    original(*results, **options)


class _Quiet:
    """A Keras model that prints nothing."""

    def __init__(self, model: Any) -> None:
        self.get_weights = model.get_weights
        for name in ("fit", "evaluate", "predict"):
            setattr(self, name, functools.partial(getattr(model, name), verbose=0))


class DenseTest(_OnReplicas, harness.TestDistributionStrategyCorrectnessBase):
    rate, loss, metric = 0.05, "mean_squared_error", "mse"
    net = staticmethod(dense)

    def get_data(self, rows: int = 1280) -> tuple[np.ndarray, ...]:
        x = np.random.rand(rows, 1).astype("float32")
        return x, 3 * x, np.float32([[1], [2], [3], [4]])

    def get_data_with_partial_last_batch(self, rows: int = 1300) -> tuple[np.ndarray, ...]:
        x, y, some = self.get_data(rows)
        return x, y, *self.get_data(1000)[:2], some

    def get_data_with_partial_last_batch_eval(self) -> tuple[np.ndarray, ...]:
        return self.get_data_with_partial_last_batch(1280)

    @on_replicas
    def test_full_batches(self, *place: Any) -> None:
        self.check(place)

    @on_replicas
    def test_smaller_last_batch_of_the_evaluation(self, *place: Any) -> None:
        self.check(place, partial_last_batch="eval")

    @on_replicas
    def test_smaller_last_batch(self, *place: Any) -> None:
        self.check(place, partial_last_batch="train_and_eval", training_epochs=1)

    def get_input_for_dynamic_lr_test(self, callbacks: Any, **inputs: Any) -> Any:
        return {**inputs, "callbacks": [_Rates()]}, None, None

    @parameterized.parameters(("mirrored", 3), ("central_storage", 2))
    def test_rate_that_a_callback_sets(self, kind: str, replicas: int) -> None:
        self.run_dynamic_lr_test(strategy_of(kind, replicas))

    @on_replicas
    def test_a_subclass_of_model(self, *place: Any) -> None:
        self.net = functools.partial(dense, "subclass")
        self.check(place)


class _Rates(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self.model.optimizer.learning_rate = 0.001 * (batch % 10)


class ConvolutionTest(_OnReplicas, harness.TestDistributionStrategyCorrectnessBase):
    def net(self) -> Any:
        return convolution(self.with_batch_norm)

    def get_data(self, train: int = 1280) -> tuple[np.ndarray, ...]:
        centers = np.random.randn(10, 28, 28, 3)
        labels = np.random.randint(0, 10, train)
        x = (centers[labels] + np.random.normal(0, 0.1, (train, 28, 28, 3))).astype("float32")
        return x, labels[:, np.newaxis].astype("float32"), x

    def get_data_with_partial_last_batch(self) -> tuple[np.ndarray, ...]:
        x, y, _ = self.get_data(1280 + 20 + 1000)
        return x[1000:], y[1000:], x[:1000], y[:1000], x[:1000]

    @on_replicas
    def test_full_batches(self, *place: Any) -> None:
        self.check(place)

    @on_replicas
    def test_smaller_last_batch(self, *place: Any) -> None:
        self.check(place, partial_last_batch="train_and_eval", training_epochs=1)

    @parameterized.parameters(UNEQUAL)
    def test_batch_normalization_of_each_replica_differs_from_one_device(self, *place: Any) -> None:
        self.check(place, with_batch_norm="regular")

    @on_replicas
    def test_synchronized_batch_normalization(self, *place: Any) -> None:
        self.check(place, with_batch_norm="sync")

    @parameterized.parameters(*PLACES[:2])
    def test_synchronized_batch_normalization_with_a_smaller_last_batch(self, *place: Any) -> None:
        self.check(place, with_batch_norm="sync", partial_last_batch="train_and_eval", training_epochs=1)


class WordsTest(_OnReplicas, harness.TestDistributionStrategyEmbeddingModelCorrectnessBase):
    """The data is the harness's own."""

    def get_data_with_partial_last_batch(self) -> tuple[np.ndarray, ...]:
        x, y, some = self.get_data(count=1280 + 20 + 1000)
        return x[1000:], y[1000:], x[:1000], y[:1000], some

    def net(self) -> Any:
        return words(self.between)

    @parameterized.parameters(*((name, *place) for name in ("mean", "dense", "gru", "lstm") for place in PLACES[1:]))
    def test_full_batches(self, name: str, *place: Any) -> None:
        self.between = BETWEEN[name]
        self.check(place)

    @parameterized.parameters(*((name, *UNEQUAL) for name in ("mean", "dense", "gru", "lstm")))
    def test_smaller_last_batch(self, name: str, *place: Any) -> None:
        self.between = BETWEEN[name]
        self.check(place, partial_last_batch="train_and_eval", training_epochs=1)


BETWEEN = {
    "mean": lambda: [keras.layers.GlobalAveragePooling1D()],
    "dense": lambda: [keras.layers.TimeDistributed(keras.layers.Dense(4)), keras.layers.GlobalAveragePooling1D()],
    "gru": lambda: [keras.layers.GRU(4)],
    "lstm": lambda: [keras.layers.LSTM(4)],
}


class SiameseTest(_OnReplicas, harness.TestDistributionStrategyEmbeddingModelCorrectnessBase):
    loss, metric = "mse", "mse"
    net = staticmethod(siamese)

    def get_data(self) -> tuple[Any, ...]:
        (a, labels_a, _), (b, labels_b, _) = super().get_data(), super().get_data()
        x = {"words_a": a, "words_b": b}
        return x, np.where(labels_a == labels_b, 1, -1).astype("float32"), x

    @parameterized.parameters(UNEQUAL, PLACES[3])  # of a dataset of dicts the harness counts the keys, not the rows
    def test_full_batches(self, *place: Any) -> None:
        self.check(place)


class CustomLoopTest(tf.test.TestCase, parameterized.TestCase):
    """A training loop by hand: `step.compute` in `strategy.run`, and `step.update`; 66 rows in batches of 32."""

    @parameterized.parameters("SGD", "Adagrad", "Ftrl", "Adam", "RMSprop", "Nadam", "Adamax")
    def test_equals_a_loop_on_one_device(self, optimizer: str) -> None:
        keras.utils.set_random_seed(2)
        # The others divide a gradient by its own size, and that of a bias before a normalization is rounding alone.
        net = normalized if optimizer in ("SGD", "Adagrad", "Ftrl") else dense
        x = np.random.rand(66, 1).astype("float32")
        data = tf.data.Dataset.from_tensor_slices((x, 3 * x)).batch(32)
        initial, make = net().get_weights(), getattr(keras.optimizers, optimizer)
        expected = by_hand(net, initial, make, data)
        for compiled in ("step", "epoch"):
            found = by_step(net, initial, make, data, compiled)
            self.assertAllClose(found, expected, atol=TOLERANCE, rtol=TOLERANCE, msg=compiled)


def normalized() -> Any:
    """Dense layers around a synchronized BatchNormalization."""
    stages = dense().layers
    return keras.Sequential(
        [keras.Input((1,)), *stages[:2], keras.layers.BatchNormalization(synchronized=True), *stages[2:]]
    )


def by_hand(net: Callable[[], Any], initial: Any, make: Any, data: tf.data.Dataset) -> list[Any]:
    """Weights after two epochs, and the losses, by Keras on one device."""
    model, optimizer = net(), make(0.05)
    model.set_weights(initial)
    losses = []
    for batch_x, batch_y in [*data, *data]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((batch_y - model(batch_x, training=True)) ** 2) + tf.add_n(model.losses)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        losses.append(loss)
    return [*model.get_weights(), np.array(losses)]


def by_step(net: Callable[[], Any], initial: Any, make: Any, data: tf.data.Dataset, compiled: str) -> list[Any]:
    """The same on two replicas by mirrorkit; each step is compiled, or each epoch."""
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model, optimizer = net(), make(0.05)
        model.set_weights(initial)
    step = mk.train.Step(model, optimizer, loss="mse")
    step.build(strategy)

    def train(batch: Any) -> tf.Tensor:
        return step.update(strategy, strategy.run(step.compute, args=(batch,)))["loss"]

    if compiled == "step":
        train = tf.function(train)

    def epoch(batches: Any) -> list[tf.Tensor]:
        return [train(next(batches)) for _ in range(3)]

    if compiled == "epoch":
        epoch = tf.function(epoch)
    shared = strategy.experimental_distribute_dataset(data)
    losses = [loss for _ in range(2) for loss in epoch(iter(shared))]
    recorder.went_through()
    return [*model.get_weights(), np.array(losses)]


if __name__ == "__main__":
    tf.test.main()
