"""N replicas give the result of one, and one gives the result of plain TensorFlow or Keras on the whole batch.

The references here are made without mirrorkit: a GradientTape over the whole global batch, Keras's own fit, or NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import KINDS, keras_twin, largest_difference, plain_dataset

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


def _sequential(shape: tuple[int | None, ...], *layers: Any) -> Any:
    return keras.Sequential([keras.Input(shape), *layers])


# --- twenty steps: 57 images in batches of 14, so that every epoch ends with a batch of one: on four replicas shares of
# 4, 4, 4, 2, then 1, 0, 0, 0.

_EPOCHS, _BATCH = 4, 14


def _pictures() -> mk.data.Recipe:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (57, 8, 8, 1), dtype=np.uint8)
    labels = rng.integers(0, 5, 57)
    return mk.data.batches(mk.data.arrays(images, labels), global_batch_size=_BATCH, shuffle=True, seed=1)


def _small_cnn() -> Any:
    return _sequential(
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
    assert int(expected[len(values) - len(expected)].size) > 0
    assert largest_difference([v[0] for v in values], expected) < 1e-5  # measured: 1.8e-7 to 3.6e-7
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-5)
    moved = largest_difference([v[0] for v in values][:2], [w.value.numpy() for w in _small_cnn().weights[:2]])
    assert moved > 0.01


@pytest.mark.parametrize("where", KINDS[1:], ids=str)
def test_twenty_steps_equal_those_of_one_replica(where: Any, train_20_steps: Any) -> None:
    values, history = train_20_steps(where)
    expected, one_history = train_20_steps(("one_device", 1))
    assert largest_difference([v[0] for v in values], [v[0] for v in expected]) < 1e-5  # measured: 2.4e-7
    assert history["accuracy"] == one_history["accuracy"]
    assert len(values[0]) == (where[1] if where[0] == "mirrored" else 1), "the strategy has not that many copies"
    for copies in values:
        for copy in copies[1:]:
            np.testing.assert_array_equal(copies[0], copy)


@pytest.mark.parametrize("where", [("mirrored", 4), ("central_storage", 2)], ids=str)
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
    loop = make_loop(("mirrored", 2), lambda: _sequential((4,), L.Dense(1)), metrics=["mae"])
    step, strategy = loop.step, loop.strategy
    before = keras_twin(lambda: _sequential((4,), L.Dense(1)), loop)
    (batch,) = mk.data.distribute(plain_dataset(*numbers, batch=60), strategy)
    logs = step.update(strategy, strategy.run(step.compute, args=(batch,)))
    error = numbers[1] - before.predict(numbers[0], verbose=0)
    np.testing.assert_allclose(logs["loss"], np.mean(error**2), rtol=1e-5)
    np.testing.assert_allclose(logs["mae"], np.mean(np.abs(error)), rtol=1e-5)
    expected = before.get_weights()[0] + 0.1 * 2 * np.mean(error * numbers[0], 0)[:, None]
    np.testing.assert_allclose(step.model.get_weights()[0], expected, atol=1e-5)


# --- layer state


def _noisy_net() -> Any:
    return _sequential((4,), L.BatchNormalization(momentum=0.5), L.Dense(6), L.Dropout(0.4), L.Dense(1))


@pytest.mark.parametrize("where", [("mirrored", 4), ("central_storage", 2)], ids=str)
def test_batchnorm_statistics_and_seeds_stay_equal(
    where: Any, make_loop: Any, numbers: Any, assert_replicas_equal: Any
) -> None:
    loop = make_loop(where, _noisy_net, lambda: keras.optimizers.Adam(0.01))
    state = loop.step.model.non_trainable_variables
    assert any("seed" in variable.path for variable in state)
    before = [variable.value.numpy() for variable in state]
    loop.fit(plain_dataset(*numbers, batch=59), epochs=2, verbose=0)  # 15, 15, 15, 14, then 1, 0, 0, 0
    assert_replicas_equal(loop)
    for variable, old in zip(state, before, strict=True):
        assert not np.array_equal(variable.value.numpy(), old), f"{variable.path} did not change"
    assert all(np.isfinite(value).all() for value in loop.step.model.get_weights())


@pytest.mark.parametrize("batch", [58, 5])
def test_moving_statistics_are_the_mean_over_the_examples(batch: int, make_loop: Any, numbers: Any) -> None:
    """One step: shards count by their number of examples; 58 gives 15, 15, 15, 13, 5 gives 2, 2, 1, 0."""
    x, y = numbers[0][:batch] + 3, numbers[1][:batch]
    loop = make_loop(("mirrored", 4), _noisy_net)
    loop.fit(plain_dataset(x, y, batch=batch), verbose=0)
    shards = [s for s in np.split(x, np.cumsum(mk.batching.per_replica_sizes(batch, 4))[:-1]) if len(s)]
    mean = sum(len(s) * s.mean(0) for s in shards) / batch
    variance = sum(len(s) * s.var(0) for s in shards) / batch
    layer = loop.step.model.layers[0]
    np.testing.assert_allclose(layer.moving_mean.value.numpy(), 0.5 * mean, rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance.value.numpy(), 0.5 + 0.5 * variance, rtol=1e-5)


class _Block(L.Layer):
    """A layer with layers inside, as users write them."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def build(self, shape: Any) -> None:
        self.inner.build(shape)

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.inner(x, training=training)


@pytest.mark.parametrize("place", ["in the model", "in a layer", "wrapped"])
def test_synchronized_batchnorm_equals_one_replica(
    place: str, make_loop: Any, numbers: Any, assert_replicas_equal: Any
) -> None:
    def net() -> Any:
        synchronized = L.BatchNormalization(synchronized=True)
        if place == "wrapped":
            return _sequential((4,), L.Reshape((2, 2)), L.TimeDistributed(synchronized), L.Flatten(), L.Dense(1))
        return _sequential(
            (4,), L.Dense(3), _Block(synchronized) if place == "in a layer" else synchronized, L.Dense(1)
        )

    weights = []
    for where in (("one_device", 1), ("mirrored", 2)):
        loop = make_loop(where, net)
        loop.fit(plain_dataset(*numbers, batch=20), epochs=2, verbose=0)
        assert_replicas_equal(loop)
        weights.append(loop.step.model.get_weights())
    assert largest_difference(*weights) < 1e-5  # measured: 4.8e-7


def test_dropout_draws_differ_between_replicas(make_loop: Any) -> None:
    def net() -> Any:
        return _sequential((64,), L.Dropout(0.5), L.Dense(1, use_bias=False, kernel_initializer="ones"))

    loop = make_loop(("mirrored", 4), net, loss=lambda y, y_pred: y_pred[:, 0])
    (batch,) = mk.data.distribute(plain_dataset(np.ones((4, 64), "float32"), np.ones((4, 1)), batch=4), loop.strategy)
    masks = []
    for _ in range(2):  # the gradient of sum(mask * w) is the mask: one example on each replica
        sums = tf.function(lambda: loop.strategy.run(loop.step.compute, args=(batch,)), autograph=False)()
        masks += [m.numpy().ravel() for m in loop.strategy.experimental_local_results(sums["gradients"][0])]
        loop.step.update(loop.strategy, sums)
    for mask in masks:
        assert set(np.unique(mask)) == {0.0, 2.0}
    assert len({mask.tobytes() for mask in masks}) == 8, "two of 4 replicas x 2 steps drew the same mask"


def test_frozen_layers_are_neither_sent_nor_changed(make_loop: Any, numbers: Any) -> None:
    def net() -> Any:
        model = _sequential((4,), L.Dense(7), L.BatchNormalization(), L.Dense(1))
        model.layers[0].trainable = model.layers[1].trainable = False
        return model

    loop = make_loop(("mirrored", 2), net)
    model, strategy = loop.step.model, loop.strategy
    frozen = [w.value.numpy() for layer in model.layers[:2] for w in layer.weights]
    before = model.layers[2].kernel.numpy()
    loop.fit(plain_dataset(*numbers, batch=30), verbose=0)
    for variable, value in zip([w for layer in model.layers[:2] for w in layer.weights], frozen, strict=True):
        np.testing.assert_array_equal(variable.value.numpy(), value)
    assert not np.array_equal(model.layers[2].kernel.numpy(), before)
    (batch,) = mk.data.distribute(plain_dataset(*numbers, batch=60), strategy)
    sums = tf.function(lambda: strategy.run(loop.step.compute, args=(batch,)), autograph=False)()
    shapes = [strategy.experimental_local_results(value)[0].shape for value in tf.nest.flatten(sums)]
    assert sum(shape.num_elements() for shape in shapes) < 7 + 1 + 10, f"more is sent than the last layer: {shapes}"


# --- empty shares


@pytest.mark.parametrize(
    ("where", "static"), [(("mirrored", 4), True), (("mirrored", 4), False), (("central_storage", 2), False)], ids=str
)
def test_a_batch_of_one_trains_like_on_one_device(where: Any, static: bool, make_loop: Any) -> None:
    """Max pooling's gradient would kill the process on an empty share, BatchNorm's statistics would become NaN."""

    def net() -> Any:
        return _sequential(
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
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-5  # measured: 1.2e-7
    predicted = model(x).numpy()
    assert loop.evaluate(data)["loss"] == pytest.approx(np.mean((predicted - y) ** 2), rel=1e-4)
    np.testing.assert_allclose(loop.predict(data), predicted, atol=1e-5)


# --- gradients


@pytest.mark.parametrize("clipping", ["step", "optimizer"])
def test_the_global_gradient_is_clipped(clipping: str, make_loop: Any, numbers: Any) -> None:
    limit = 0.5
    by_step = clipping == "step"
    loop = make_loop(
        ("mirrored", 4),
        lambda: _sequential((4,), L.Dense(1)),
        lambda: keras.optimizers.SGD(1.0, **({} if by_step else {"global_clipnorm": limit})),
        clip_norm=limit if by_step else None,
    )
    before = loop.step.model.get_weights()
    x, y = numbers[0][:30], numbers[1][:30]
    error = x @ before[0] + before[1] - y
    gradient = [2 * x.T @ error / 30, 2 * error.mean(0)]
    norm = np.sqrt(sum(np.sum(g**2) for g in gradient))
    assert norm > 2 * limit
    loop.fit(plain_dataset(x, y, batch=30), verbose=0)
    after = loop.step.model.get_weights()
    for old, new, g in zip(before, after, gradient, strict=True):
        np.testing.assert_allclose(old - new, g * limit / norm, atol=1e-5)


def test_regularisers_and_added_losses_count_once(make_loop: Any, numbers: Any) -> None:
    class Penalty(L.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(0.3 * keras.ops.mean(keras.ops.square(x)))
            return x

    def net() -> Any:
        l2 = keras.regularizers.L2(0.2)
        return _sequential((4,), L.Dense(3, kernel_regularizer=l2, activity_regularizer=l2), Penalty(), L.Dense(1))

    loop = make_loop(("mirrored", 4), net)
    model = keras_twin(net, loop)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    data = plain_dataset(*numbers, batch=30)  # 8, 8, 8, 6
    expected = model.fit(data, epochs=3, verbose=0).history["loss"]
    np.testing.assert_allclose(loop.fit(data, epochs=3, verbose=0).history["loss"], expected, rtol=1e-5)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-5  # measured: 1.2e-7
    assert loop.evaluate(data)["loss"] == pytest.approx(model.evaluate(data, verbose=0), rel=1e-5)


def test_embeddings_get_dense_gradients(make_loop: Any) -> None:
    """Keras updates the rows of an embedding that a batch lacks differently for sparse gradients; N replicas cannot."""

    def net() -> Any:
        return _sequential((3,), L.Embedding(20, 4), L.Flatten(), L.Dense(1))

    rng = np.random.default_rng(0)
    tokens, y = rng.integers(0, 20, (12, 3)), rng.normal(size=(12, 1)).astype("float32")
    loop = make_loop(("mirrored", 2), net, lambda: keras.optimizers.Adam(0.05))
    model, optimizer = keras_twin(net, loop), keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)
    data = plain_dataset(tokens, y, batch=4)
    for x, target in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - target) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        assert isinstance(gradients[0], tf.IndexedSlices)
        optimizer.apply([tf.convert_to_tensor(gradient) for gradient in gradients])
    loop.fit(data, verbose=0)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-5  # measured: 1.2e-7


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_weight_that_the_loss_does_not_reach_stays(make_loop: Any, numbers: Any) -> None:
    class HalfUsed(L.Layer):
        def build(self, shape: Any) -> None:
            self.used = self.add_weight(shape=(4, 1), name="used")
            self.unused = self.add_weight(shape=(5,), name="unused", initializer="ones")

        def call(self, x: Any) -> Any:
            return keras.ops.matmul(x, self.used)

    def net() -> Any:
        return _sequential((4,), HalfUsed(), L.Dense(1))

    loop = make_loop(("mirrored", 2), net, lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1))
    model = keras_twin(net, loop)
    model.compile(keras.optimizers.AdamW(0.05, weight_decay=0.1), "mse")
    data = plain_dataset(*numbers, batch=30)
    model.fit(data, epochs=2, verbose=0)
    loop.fit(data, epochs=2, verbose=0)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-5  # measured: 6e-8
    np.testing.assert_array_equal(loop.step.model.layers[0].unused.numpy(), np.ones(5))


def test_a_compiled_computation_gives_the_same_result(make_loop: Any, numbers: Any) -> None:
    def net() -> Any:
        return _sequential((4,), L.Dense(5, activation="relu"), L.BatchNormalization(), L.Dense(1))

    results = []
    for jit_compile in (False, True):
        loop = make_loop(("mirrored", 2), net, metrics=["mae"], jit_compile=jit_compile)
        history = loop.fit(plain_dataset(*numbers, batch=20), verbose=0).history
        results.append([*loop.step.model.get_weights(), *history.values()])
    assert largest_difference(*results) < 1e-5  # measured: 2.4e-7


# --- weights of examples, masks, several outputs: as Keras's fit and evaluate on one device


def _fit_both(loop: Any, model: Any, data: Any, *, tolerance: float = 1e-5, **options: Any) -> tuple[Any, Any]:
    """Train both; histories and weights must agree. Then evaluate both."""
    expected = model.fit(data, epochs=2, verbose=0, **options).history
    found = loop.fit(data, epochs=2, verbose=0, **options).history
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=tolerance, atol=1e-6, err_msg=name)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < tolerance
    evaluated = loop.evaluate(data)
    for name, value in model.evaluate(data, return_dict=True, verbose=0).items():
        np.testing.assert_allclose(evaluated[name], value, rtol=tolerance, atol=1e-6, err_msg=name)
    return found, expected


def _probabilities() -> Any:
    return _sequential((4,), L.Dense(3, activation="softmax"))


@pytest.fixture(scope="module")
def classes(numbers: Any) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [60, 4] and classes [60]: 0, 1 and 2, unevenly."""
    x, y = numbers
    return x, np.digitize(y[:, 0], [-1.0, 4.0])


def test_sample_weights_count_as_in_keras(make_loop: Any, classes: Any) -> None:
    x, y = classes
    weight = np.linspace(0, 3, 60).astype("float32")
    options = {
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
        "weighted_metrics": ["accuracy", "sparse_categorical_crossentropy"],
    }
    loop = make_loop(("mirrored", 4), _probabilities, **options)
    model = keras_twin(_probabilities, loop)
    model.compile(keras.optimizers.SGD(0.1), **options)
    found, _ = _fit_both(loop, model, plain_dataset(x, y, weight, batch=20))
    assert "weighted_accuracy" in found
    assert found["weighted_accuracy"] != found["accuracy"]


def test_class_weights_count_as_in_keras(make_loop: Any, classes: Any) -> None:
    loop = make_loop(("mirrored", 2), _probabilities, loss="sparse_categorical_crossentropy")
    model = keras_twin(_probabilities, loop)
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    _fit_both(loop, model, plain_dataset(*classes, batch=30), class_weight={0: 0.5, 1: 2.0, 2: 0.0})


@pytest.mark.parametrize("one_hot", [False, True])
def test_class_weights_leave_other_classes_at_one(one_hot: bool, make_loop: Any, classes: Any) -> None:
    x, y = classes
    loss = "categorical_crossentropy" if one_hot else "sparse_categorical_crossentropy"
    loop = make_loop(("one_device", 1), _probabilities, loss=loss)
    before = loop.step.model(x).numpy()
    data = plain_dataset(x, np.eye(3, dtype="float32")[y] if one_hot else y, batch=60)
    history = loop.fit(data, class_weight={0: 3.0}, verbose=0).history
    crossentropy = -np.log(before[np.arange(60), y])
    np.testing.assert_allclose(history["loss"][0], np.mean(crossentropy * np.where(y == 0, 3, 1)), rtol=1e-5)


def test_several_outputs_as_in_keras(make_loop: Any, numbers: Any, classes: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((4,))
        hidden = L.Dense(4, activation="tanh")(inputs)
        return keras.Model(
            inputs, {"size": L.Dense(1, name="size")(hidden), "kind": L.Dense(3, "softmax", name="kind")(hidden)}
        )

    options = {
        "loss": {"kind": "sparse_categorical_crossentropy", "size": "mse"},
        "loss_weights": {"kind": 2.0, "size": 0.1},
        "metrics": {"kind": ["accuracy"], "size": ["mae", "mse"]},
    }
    loop = make_loop(("mirrored", 4), net, **options)
    model = keras_twin(net, loop)
    model.compile(keras.optimizers.SGD(0.1), **options)
    data = plain_dataset(numbers[0], {"kind": classes[1], "size": numbers[1]}, batch=30)
    found, _ = _fit_both(loop, model, data)
    assert set(found) == {"loss", "kind_loss", "size_loss", "kind_accuracy", "size_mae", "size_mse"}
    outputs, expected = loop.predict(data), model.predict(numbers[0], verbose=0)
    assert outputs.keys() == expected.keys()
    for name in outputs:
        np.testing.assert_allclose(outputs[name], expected[name], atol=1e-5)


def test_a_list_of_outputs_as_in_keras(make_loop: Any, numbers: Any) -> None:
    def net() -> Any:
        inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((4,), name="b")}
        joined = L.Concatenate()([inputs["a"], inputs["b"]])
        return keras.Model(inputs, [L.Dense(1, name="up")(joined), L.Dense(1, name="down")(joined)])

    x, y = numbers
    loop = make_loop(("mirrored", 2), net, loss=["mse", "mae"], metrics=[["mae"], []])
    model = keras_twin(net, loop)
    model.compile(keras.optimizers.SGD(0.1), loss=["mse", "mae"], metrics=[["mae"], []])
    data = tf.data.Dataset.from_tensor_slices(({"a": x, "b": x[::-1]}, (y, -y))).batch(30)
    found, _ = _fit_both(loop, model, data)
    assert set(found) == {"loss", "up_loss", "down_loss", "up_mae"}


def _reader() -> Any:
    return _sequential((6,), L.Embedding(5, 4, mask_zero=True), L.Dense(3, activation="tanh"), L.Dense(1))


@pytest.mark.parametrize(("reduction", "weighted"), [("sum_over_batch_size", False), ("mean_with_sample_weight", True)])
def test_masked_steps_do_not_count(reduction: str, weighted: bool, make_loop: Any) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 5, (24, 6))
    tokens[np.arange(6)[None] >= rng.integers(1, 7, 24)[:, None]] = 0  # the replicas get different numbers of tokens
    y = rng.normal(size=(24, 6, 1)).astype("float32")
    weight = [rng.uniform(0, 2, (24, 6)).astype("float32")] if weighted else []
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    loop = make_loop(("mirrored", 4), _reader, loss=loss, metrics=["mae"])
    model = keras_twin(_reader, loop)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["mae"])
    _fit_both(loop, model, plain_dataset(tokens, y, *weight, batch=24))


def test_mean_with_sample_weight_divides_by_the_weights(make_loop: Any, numbers: Any) -> None:
    x, y = numbers
    weight = np.linspace(0, 3, 60).astype("float32")
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    loop = make_loop(("mirrored", 4), lambda: _sequential((4,), L.Dense(1)), loss=loss)
    model = keras_twin(lambda: _sequential((4,), L.Dense(1)), loop)
    model.compile(keras.optimizers.SGD(0.1), loss)
    _fit_both(loop, model, plain_dataset(x, y, weight, batch=60))


@pytest.mark.parametrize("flat", [False, True], ids=["y [B, 1]", "y [B]"])
def test_a_users_loss_function_sees_what_keras_shows_it(flat: bool, make_loop: Any, numbers: Any) -> None:
    @keras.saving.register_keras_serializable("tests")
    def half_square(y: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.square(y - y_pred) / 2, axis=-1)

    x, y = numbers
    y = np.round(y).astype("int64")  # cast to float before it gets there
    loop = make_loop(("mirrored", 2), lambda: _sequential((4,), L.Dense(1)), loss=half_square)
    model = keras_twin(lambda: _sequential((4,), L.Dense(1)), loop)
    model.compile(keras.optimizers.SGD(0.1), half_square)
    _fit_both(loop, model, plain_dataset(x, y[:, 0] if flat else y, batch=30))


def test_bfloat16_computes_the_same_on_two_replicas(make_loop: Any, numbers: Any, assert_replicas_equal: Any) -> None:
    def net() -> Any:
        return _sequential((4,), L.Dense(8, activation="relu"), L.Dense(1, dtype="float32"))

    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        weights = []
        for where in (("one_device", 1), ("mirrored", 2)):
            loop = make_loop(where, net)
            loop.fit(plain_dataset(*numbers, batch=20), verbose=0)
            assert_replicas_equal(loop)
            weights.append(loop.step.model.get_weights())
            assert weights[-1][0].dtype == np.float32
    finally:
        keras.config.set_dtype_policy("float32")
    assert largest_difference(*weights) < 5e-3  # bfloat16 has 8 bits; measured: 6e-4


def test_a_mask_beside_several_outputs_is_refused(make_loop: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((6,), dtype="int32")
        hidden = L.Embedding(5, 4, mask_zero=True)(inputs)
        return keras.Model(inputs, [L.Dense(1, name="a")(hidden), L.Dense(1, name="b")(hidden)])

    tokens, y = np.ones((8, 6), "int32"), np.ones((8, 6, 1), "float32")
    loop = make_loop(("one_device", 1), net, loss=["mse", "mse"])
    with pytest.raises(StepError, match=r"'a'.*mask"):
        loop.fit(tf.data.Dataset.from_tensor_slices((tokens, (y, y))).batch(4), verbose=0)


# --- the real thing


@pytest.mark.slow
def test_real_mnist_on_four_replicas_equals_plain_tensorflow(strategy_of: Any, assert_replicas_equal: Any) -> None:
    import os

    if not os.environ.get("MIRRORKIT_DATA"):
        pytest.skip("needs MNIST: set MIRRORKIT_DATA to the folder that holds it")
    train = mk.data.batches(mk.data.load("mnist").train, global_batch_size=250, shuffle=True, seed=3)
    steps, strategy = 20, strategy_of("mirrored", 4)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = mk.models.create("mnist_cnn")
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    if any(isinstance(layer, (L.Dropout, L.BatchNormalization)) for layer in model.layers):
        pytest.fail("mnist_cnn depends on the split into replicas; take another net for this test")
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    reference = keras.optimizers.SGD(0.05, momentum=0.9)
    reference.build(plain.trainable_variables)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=_logits_loss))
    loop.fit(train, steps_per_epoch=steps, verbose=0)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = _logits_loss(labels, plain(images, training=True))
        reference.apply(tape.gradient(loss, plain.trainable_variables))

    for batch in train.dataset(epoch=0).take(steps):
        step(*batch)
    assert_replicas_equal(loop)
    assert int(optimizer.iterations.numpy()) == steps
    assert largest_difference(model.get_weights(), plain.get_weights()) < 1e-5
