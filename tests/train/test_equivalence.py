"""N replicas give the result of one, and one gives the result of plain TensorFlow on the whole global batch.

The references are made without mirrorkit: a GradientTape over the whole batch, and Keras's own optimizer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import KINDS, keras_twin, largest_difference, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


# --- twenty steps: 57 images in batches of 14, so that every epoch ends with a batch of one: on four replicas shares of
# 4, 4, 4, 2, then 1, 0, 0, 0.

_EPOCHS, _BATCH = 4, 14


def _pictures() -> mk.data.Recipe:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (57, 8, 8, 1), dtype=np.uint8)
    labels = rng.integers(0, 5, 57)
    return mk.data.batches(mk.data.arrays(images, labels), global_batch_size=_BATCH, shuffle=True, seed=1)


def _small_cnn() -> Any:
    return sequential(
        (8, 8, 1), L.Rescaling(1 / 255), L.Conv2D(4, 3, activation="relu"), L.MaxPool2D(), L.Flatten(), L.Dense(5)
    )


def _momentum() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


_logits_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def trained() -> dict[Any, Any]:
    """Results of the twenty steps by strategy, made when first asked for."""
    return {}


@pytest.fixture
def train_20_steps(trained: dict[Any, Any], make_loop: Any, copies: Any) -> Callable[[tuple[str, int]], Any]:
    def get(where: tuple[str, int]) -> Any:
        if where not in trained:
            loop = make_loop(where, _small_cnn, _momentum, loss=_logits_loss, metrics=["accuracy"])
            report = loop.fit(_pictures(), epochs=_EPOCHS, verbose=0)
            trained[where] = copies(loop), report.history
        return trained[where]

    return get


@pytest.fixture(scope="module")
def by_hand() -> tuple[list[np.ndarray], list[float]]:
    """Weights and slots after the same twenty steps, and each epoch's mean loss, in plain TensorFlow."""
    keras.utils.set_random_seed(0)
    model, optimizer = _small_cnn(), _momentum()
    optimizer.build(model.trainable_variables)
    losses = []
    for epoch in range(_EPOCHS):
        total = 0.0
        for images, labels in _pictures().dataset(epoch=epoch):
            with tf.GradientTape() as tape:
                loss = _logits_loss(labels, model(images, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            total += float(loss) * len(labels)
        losses.append(total / 57)
    return [v.value.numpy() for v in (*model.trainable_variables, *optimizer.variables)], losses


@pytest.mark.parametrize("where", KINDS, ids=str)
def test_twenty_steps_equal_plain_tensorflow_on_the_whole_batch(where: Any, train_20_steps: Any, by_hand: Any) -> None:
    values, history = train_20_steps(where)
    expected, losses = by_hand
    assert largest_difference([v[0] for v in values], expected) < 1e-5  # measured: 1.8e-7
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-5)
    keras.utils.set_random_seed(0)
    moved = largest_difference([v[0] for v in values][:2], [w.value.numpy() for w in _small_cnn().weights[:2]])
    assert moved > 0.01


@pytest.mark.parametrize("where", KINDS[1:], ids=str)
def test_twenty_steps_equal_those_of_one_replica(where: Any, train_20_steps: Any) -> None:
    values, history = train_20_steps(where)
    expected, one_history = train_20_steps(("one_device", 1))
    assert largest_difference([v[0] for v in values], [v[0] for v in expected]) < 1e-5  # measured: 1.8e-7
    assert history["accuracy"] == one_history["accuracy"]
    assert len(values[0]) == (where[1] if where[0] == "mirrored" else 1), "the strategy has not that many copies"
    for copies in values:
        for copy in copies[1:]:
            np.testing.assert_array_equal(copies[0], copy)


@pytest.mark.parametrize("where", KINDS[1:], ids=str)
def test_the_loop_in_the_open_gives_the_same_bits(
    where: Any, train_20_steps: Any, strategy_of: Any, copies: Any
) -> None:
    strategy = strategy_of(*where)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model, optimizer = _small_cnn(), _momentum()
    step = mk.train.Step(model, optimizer, loss=_logits_loss, metrics=["accuracy"])
    step.build(strategy)

    @tf.function
    def train_step(batch: Any) -> Any:
        sums = strategy.run(step.compute, args=(batch,))
        return step.update(strategy, sums)

    for epoch in range(_EPOCHS):
        for batch in mk.data.distribute(_pictures().dataset(epoch=epoch), strategy, autoshard="data"):
            logs = train_step(batch)
    assert set(logs) == {"loss", "accuracy"}
    values, _ = train_20_steps(where)
    for variable, (first, *_) in zip(step.variables, values, strict=True):
        copy = strategy.experimental_local_results(variable.value)[0]
        np.testing.assert_array_equal(copy.numpy(), first, err_msg=variable.path)


def test_one_step_in_the_open_works_eagerly(make_loop: Any, numbers: Any) -> None:
    loop = make_loop(("mirrored", 2), lambda: sequential((4,), L.Dense(1)), metrics=["mae"])
    step, strategy = loop.step, loop.strategy
    before = keras_twin(lambda: sequential((4,), L.Dense(1)), loop)
    (batch,) = mk.data.distribute(plain_dataset(*numbers, batch=60), strategy)
    logs = step.update(strategy, strategy.run(step.compute, args=(batch,)))
    error = numbers[1] - before.predict(numbers[0], verbose=0)
    np.testing.assert_allclose(logs["loss"], np.mean(error**2), rtol=1e-5)
    np.testing.assert_allclose(logs["mae"], np.mean(np.abs(error)), rtol=1e-5)
    expected = before.get_weights()[0] + 0.1 * 2 * np.mean(error * numbers[0], 0)[:, None]
    np.testing.assert_allclose(step.model.get_weights()[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("where", "static"),
    [
        (("mirrored", 2), False),
        pytest.param(("mirrored", 2), True, marks=pytest.mark.slow),
        pytest.param(("central_storage", 2), False, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_batch_of_one_trains_like_on_one_device(where: Any, static: bool, make_loop: Any) -> None:
    """Max pooling's gradient would kill the process on an empty share, BatchNorm's statistics would become NaN."""

    def net() -> Any:
        return sequential(
            (6, 6, 1), L.Conv2D(3, 3), L.BatchNormalization(), L.MaxPool2D(), L.Flatten(), L.Dropout(0.0), L.Dense(1)
        )

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 6, 6, 1)).astype("float32"), rng.normal(size=(3, 1)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(1, drop_remainder=static)
    loop = make_loop(where, net)
    model, losses = keras_twin(net, loop), []
    for image, target in data:  # by hand, with SGD
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(image, training=True) - target) ** 2)
        losses.append(float(loss))
        for variable, gradient in zip(
            model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
        ):
            variable.assign_sub(0.1 * gradient)
    np.testing.assert_allclose(loop.fit(data, verbose=0).history["loss"], np.mean(losses), rtol=1e-4)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-5  # measured: 2.4e-7
    predicted = model(x).numpy()
    assert loop.evaluate(data)["loss"] == pytest.approx(np.mean((predicted - y) ** 2), rel=1e-4)
    np.testing.assert_allclose(loop.predict(data), predicted, atol=1e-5)


def _smooth_cnn() -> Any:
    """No ReLU, no max pooling: at ties they flip, and twenty steps make 6e-4 of it.

    Plain TensorFlow differs from itself by as much when the examples of each batch are merely permuted.
    """
    return sequential(
        (28, 28, 1),
        L.Rescaling(1 / 255),
        L.Conv2D(16, 5, activation="tanh"),
        L.AveragePooling2D(4),
        L.Flatten(),
        L.Dense(32, activation="tanh"),
        L.Dense(10),
    )


@pytest.mark.slow
def test_real_mnist_on_replicas_equals_plain_tensorflow(strategy_of: Any, copies: Any) -> None:
    if not os.environ.get("MIRRORKIT_DATA"):
        pytest.skip("needs MNIST: set MIRRORKIT_DATA to the folder that holds it")
    digits = mk.data.load("mnist").train
    train = mk.data.batches(digits[:4990], global_batch_size=250, shuffle=True, seed=3)  # 19 batches of 250, one of 240
    results = []
    for where in KINDS:
        strategy = strategy_of(*where)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model, optimizer = _smooth_cnn(), _momentum()
        loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=_logits_loss))
        loop.fit(train, verbose=0)
        results.append([values[0] for values in copies(loop)])
        for values in copies(loop):
            assert all(np.array_equal(values[0], value) for value in values)

    keras.utils.set_random_seed(0)
    model, optimizer = _smooth_cnn(), _momentum()
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = _logits_loss(labels, model(images, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables))

    for batch in train.dataset(epoch=0):
        step(*batch)
    assert int(optimizer.iterations.numpy()) == 20
    expected = [v.value.numpy() for v in (*model.trainable_variables, *optimizer.variables)]
    differences = [largest_difference(result, expected) for result in results]
    assert max(differences) < 1e-5, differences  # measured: 1.5e-6 to 2.0e-6
