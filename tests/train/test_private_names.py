"""The private names of TensorFlow and Keras on which steps rely are where they were, and mean what they meant.

Where one moves, some tests would fail anyway; other names would silently be passed over, such as a mask that is not
seen. Those of the optimizers have tests of their own in tests/optim.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import sequential

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit.train.keras_model.layer_state import is_generator, is_seed, layers_of
from mirrorkit.train.reduce import tracing
from mirrorkit.train.totals.losses import mask_of
from mirrorkit.train.totals.totals import Totals

L = keras.layers


def test_layers_are_listed_with_what_is_inside_them_and_outer_ones_first() -> None:
    class Block(L.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = [L.Dense(2), L.TimeDistributed(L.BatchNormalization())]

        def call(self, x: Any) -> Any:
            return x

    block = Block()
    model = sequential((4, 3), block)
    found = layers_of(model)
    dense, wrapper = block.inner
    assert {id(model), id(block), id(dense), id(wrapper), id(wrapper.layer)} <= {id(layer) for layer in found}
    places = [[layer is one for layer in found].index(True) for one in (model, block, wrapper, wrapper.layer)]
    assert places == sorted(places)
    assert places[0] == 0


def test_a_mask_is_an_attribute_of_the_tensor() -> None:
    x = tf.constant([[[1.0], [0.0]]])
    assert np.array_equal(mask_of(L.Masking()(x)), [[True, False]])
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=1, reduction="none")
    assert np.array_equal(mask_of(loss.call(tf.constant([0, 1]), tf.constant([[0.5, 0.5]] * 2))), [True, False])
    assert mask_of(x) is None


def test_whether_a_metric_is_to_rise_or_fall() -> None:
    model = sequential((4,), L.Dense(1))
    model.compile(loss="mse", metrics=["accuracy", "mae", keras.metrics.AUC(name="area")])
    model.evaluate(np.zeros([4, 4]), np.zeros([4, 1]), verbose=0)
    assert Totals(model).modes == {"loss": "min", "accuracy": "max", "mae": "min", "area": "max"}


def test_a_compiled_model_keeps_what_it_was_given() -> None:
    loss, metrics = (lambda y, y_pred: (y - y_pred) ** 2), ["mae", keras.metrics.Mean()]
    model = sequential((4,), L.Dense(1))
    model.compile("sgd", loss, metrics=metrics, loss_weights=[2.0])
    kept = model._compile_config.config
    assert kept["loss"] is loss
    assert list(kept["metrics"]) == metrics
    assert kept["loss_weights"] == [2.0]
    assert kept["weighted_metrics"] is None


@pytest.mark.parametrize(
    "layer",
    [L.Dropout(0.5), L.GaussianNoise(0.1), L.RandomFlip(), L.LSTM(2, dropout=0.5)],
    ids=lambda layer: layer.name,
)
def test_seeds_of_layers_are_known_by_their_names(layer: Any) -> None:
    layer(np.zeros((1, 4, 4, 3) if layer.name.startswith("random") else (1, 4, 3), "float32"))
    generators = [variable for variable in layer.non_trainable_variables if is_generator(variable)]
    assert generators
    assert all(map(is_seed, generators))
    assert not any(map(is_seed, layer.trainable_variables))


def test_keras_looks_its_synchronized_moments_up_at_each_call() -> None:
    called: list[Any] = []
    with private.replace("nn._compute_moments_sync", lambda original, x, *_: (called.append(x) or x, x)):
        keras.ops.moments(np.ones((2, 3), "float32"), axes=0, synchronized=True)
    assert len(called) == 1


@pytest.mark.parametrize("name", ["numpy.signbit", "numpy.argmax", "numpy.take", "image.affine_transform"])
def test_functions_of_keras_that_are_replaced_are_looked_up_at_each_call(name: str) -> None:
    """Replaced is the attribute of the module: where Keras kept a reference of its own, it would go unseen."""
    called: list[str] = []

    def spy(original: Any, *args: Any, **options: Any) -> Any:
        called.append(name)
        return original(*args, **options)

    with private.replace(name, spy):
        x = np.ones((2, 3), "float32")
        {
            "numpy.signbit": lambda: keras.ops.signbit(x),
            "numpy.argmax": lambda: keras.ops.argmax(x, axis=-1),
            "numpy.take": lambda: keras.ops.take(x, np.array([1]), axis=0),
            "image.affine_transform": lambda: keras.ops.image.affine_transform(x[..., None], np.ones(8, "float32")),
        }[name]()
    assert called == [name]
    private.install()
    assert private.get(name).__code__.co_filename == private.__file__


def test_a_layer_knows_its_losses_by_their_ids() -> None:
    layer = keras.layers.ActivityRegularization(1.0)
    with keras.StatelessScope(collect_losses=True):
        layer(tf.ones((2, 3)))
        assert len(layer._loss_ids) == len(layer.losses) == 1
        layer._loss_ids.clear()
        assert not layer.losses


def test_a_draw_without_a_seed_asks_for_the_global_generator() -> None:
    called: list[bool] = []
    with private.replace("seed_generator.global_seed_generator", lambda get: called.append(True) or get()):
        keras.random.normal((1,))
    assert called == [True]


@pytest.mark.parametrize(
    "operation",
    [
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "RngReadAndSkip",
        "StatefulUniform",
        "TruncatedNormal",
    ],
)
def test_stateful_random_operations_of_tensorflow_have_these_names(operation: str) -> None:
    assert hasattr(tf.raw_ops, operation)
    assert operation.startswith(tracing._STATEFUL)
