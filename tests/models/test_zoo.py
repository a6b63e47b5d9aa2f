"""The zoo: what its models compute, and how they are found."""

from __future__ import annotations

import functools
import inspect
import re

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit import models
from mirrorkit._keras import keras
from mirrorkit.errors import ModelError
from mirrorkit.models import registry

ZOO = ["cifar_cnn", "linear", "mlp", "mnist_cnn", "resnet20", "resnet32", "resnet56", "speed_net", "wide_resnet"]
DEEP = ("resnet32", "resnet56")  # what `resnet20` is, with more of the same blocks
LONG = (*DEEP, "wide_resnet")
SMALL = {"wide_resnet": {"depth": 10, "width": 1}}  # the default has 36 million parameters


def documented(name: str, what: str) -> int:
    found = re.findall(rf"^\s*{what}: ([\d,]+)$", getattr(models, name).__doc__, re.M)
    assert len(found) == 1, f"{name}'s docstring says {what!r} {len(found)} times"
    return int(found[0].replace(",", ""))


def counted_flops(model: keras.Model) -> int:
    """Multiplications and additions of the convolutions and matrix products in the traced graph of one image."""
    graph = tf.function(lambda x: model(x, training=False)).get_concrete_function(
        tf.TensorSpec((1, *model.input_shape[1:]))
    )
    flops = 0
    for op in graph.graph.get_operations():
        if op.type == "Conv2D":
            kernel = op.inputs[1].shape
            flops += 2 * op.outputs[0].shape.num_elements() * kernel[0] * kernel[1] * kernel[2]
        elif op.type == "MatMul":
            flops += 2 * op.outputs[0].shape.num_elements() * op.inputs[1].shape[0]
    return flops


def test_the_zoo_is_what_this_file_tests():
    assert set(ZOO) <= set(models.names())
    assert {name for name in models.names() if hasattr(models, name)} == set(ZOO)


def test_each_has_ten_classes_if_nobody_says_more():
    defaults = {name: inspect.signature(getattr(models, name)).parameters["num_classes"].default for name in ZOO}
    assert defaults == dict.fromkeys(ZOO, 10)


@functools.cache
def created(name: str) -> keras.Model:
    """The model as it comes, for tests that leave it as it is."""
    return models.create(name)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in ZOO])
def test_size_and_work_are_as_documented(name):
    model = created(name)
    assert sum(int(np.prod(v.shape)) for v in model.trainable_variables) == documented(name, "Parameters")
    assert counted_flops(model) == documented(name, "FLOPs per image")
    assert re.search(r"Accuracy on \S+: \S", getattr(models, name).__doc__)
    assert re.search(r"(arXiv:\d{4}\.\d{4,5}\b|https://doi\.org/)", getattr(models, name).__doc__)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * ("resnet" in n)) for n in ZOO if n not in DEEP]
)
def test_pixels_of_uint8_and_float_give_the_same_logits(name, tmp_path):
    model = models.create(name, **SMALL[name]) if name in SMALL else created(name)
    assert isinstance(model.layers[1], keras.layers.Rescaling)
    pixels = np.random.default_rng(0).integers(0, 256, (3, *model.input_shape[1:]), np.uint8)
    logits = model(pixels).numpy()
    assert logits.shape == (3, 10)
    assert logits.dtype == np.float32
    np.testing.assert_array_equal(logits, model(pixels.astype("float32")).numpy())
    assert len(np.unique(logits.round(6))) > 10
    probabilities = logits.min() >= 0 and np.allclose(logits.sum(1), 1)
    assert not probabilities
    rescaled = model.layers[1](np.array([0.0, 255.0])).numpy()
    assert -4 <= rescaled[0] <= 0 < rescaled[1] <= 4
    if name in ("mnist_cnn", "resnet20", "wide_resnet", "speed_net"):
        model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(again(pixels), logits, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in ZOO if name not in DEEP])
def test_other_shapes_and_classes(name):
    model = models.create(name, input_shape=(33, 40, 2), num_classes=7, **SMALL.get(name, {}))
    assert model.input_shape == (None, 33, 40, 2)
    assert model(np.zeros((2, 33, 40, 2), np.uint8)).shape == (2, 7)


@pytest.mark.parametrize("name", ["resnet20", "wide_resnet"])
def test_a_residual_net_halves_the_picture_twice(name):
    model = models.create(name, **SMALL.get(name, {}))
    (pooled,) = (one for one in model.layers if isinstance(one, keras.layers.GlobalAveragePooling2D))
    assert pooled.input.shape == (None, 8, 8, 64)


def test_the_shortcut_of_resnet_has_no_weights_and_takes_every_second_pixel():
    x = keras.Input((6, 6, 4))
    from mirrorkit.models.resnet import _block

    block = keras.Model(x, _block(x, 8, strides=2))
    for variable in block.trainable_variables:
        if "kernel" in variable.path:
            variable.assign(tf.zeros_like(variable))
    pixels = np.random.default_rng(0).random((2, 6, 6, 4), np.float32)
    out = block(pixels).numpy()
    np.testing.assert_array_equal(out[..., 2:6], pixels[:, ::2, ::2])
    assert not out[..., :2].any()
    assert not out[..., 6:].any()
    assert sum("kernel" in v.path for v in block.variables) == 2


def test_wide_resnet_dropout_acts_in_training_only():
    model = models.create("wide_resnet", depth=10, width=1, dropout=0.5)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    np.testing.assert_array_equal(model(pixels), model(pixels))
    assert sum(isinstance(layer, keras.layers.Dropout) for layer in model.layers) == 3


def test_every_trainable_variable_of_a_deep_net_gets_a_gradient():
    model = created("resnet20")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(model(pixels, training=True) ** 2)
    for variable, gradient in zip(
        model.trainable_variables, tape.gradient(value, model.trainable_variables), strict=True
    ):
        assert np.abs(gradient).max() > 0, variable.path


@pytest.fixture
def own_names(monkeypatch):
    """A copy of the list of models, so that what a test registers is gone after it."""
    monkeypatch.setattr(registry, "_builders", dict(registry._builders))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("resnet21", {}, r"'resnet21'.*'resnet\d\d'.*mnist_cnn"),
        *(
            ("linear", {"input_shape": shape}, "without the batch axis")
            for shape in (28, (), (28, None, 1), (28, 28.0, 1), (0, 28, 1), "28")
        ),
        *(("linear", {"num_classes": number}, "num_classes") for number in (0, 2.5, True, "10")),
        ("wide_resnet", {"depth": 20}, "depth"),
        ("wide_resnet", {"depth": 4}, "depth"),
        ("wide_resnet", {"depth": 10, "width": 1, "dropout": 1.0}, "dropout"),
        ("mlp", {"dropout": 1}, "dropout"),
        ("speed_net", {"width": 33}, "width"),
    ],
)
def test_what_a_model_cannot_be_is_refused_with_what_it_takes(name, options, words):
    with pytest.raises(ModelError, match=words):
        models.create(name, **options)


@pytest.mark.parametrize("name", ["mnist_cnn", "cifar_cnn", "speed_net", "resnet20", "wide_resnet"])
def test_keras_refuses_what_is_no_image_or_too_small_a_one_and_the_smallest_works(name):
    with pytest.raises(ValueError, match="expected min_ndim=4, found ndim=2"):
        models.create(name, input_shape=(784,))
    options = SMALL.get(name, {})
    told = re.search(r"at least (\d+) x", inspect.getdoc(models.find(name)))
    smallest = int(told[1]) if told else 1
    assert models.create(name, input_shape=[smallest, smallest, 3], **options).output_shape == (None, 10)
    if told:
        with pytest.raises(ValueError, match=r"Computed output size would be (zero or )?negative"):
            models.create(name, input_shape=(smallest, smallest - 1, 3), **options)


def test_a_registered_builder_is_created_by_name(own_names):
    @models.register("tiny")
    def tiny(*, input_shape=(4,), num_classes=10, width=3):
        inputs = keras.Input(input_shape)
        hidden = keras.layers.Dense(width)(inputs)
        return keras.Model(inputs, keras.layers.Dense(num_classes)(hidden))

    assert "tiny" in models.names()
    model = models.create("tiny", num_classes=2, width=5)
    assert (model.input_shape, model.output_shape, model.count_params()) == ((None, 4), (None, 2), 5 * 5 + 6 * 2)


def test_a_builder_with_free_options_is_given_them(own_names):
    @models.register("free")
    def free(*, input_shape=(4,), num_classes=10, **options):
        return options

    assert models.create("free", anything=7) == {"anything": 7}


def test_a_taken_name_is_refused_but_the_same_function_may_come_again(own_names):
    def define():
        @models.register("mine")
        def mine(*, input_shape=(4,), num_classes=10):
            return None

        return mine

    define()
    latest = define()
    assert registry._builders["mine"] is latest
    with pytest.raises(ModelError, match=r"taken by mirrorkit\.models\.dense\.mlp"):

        @models.register("mlp")
        def other(*, input_shape=(4,), num_classes=10):
            return None


def test_an_option_that_the_builder_does_not_take_is_named(own_names):
    with pytest.raises(TypeError, match="'widht'"):
        models.create("wide_resnet", depth=10, widht=1)

    @models.register("bad")
    def bad(*, input_shape, num_classes=10):
        return None

    @models.register("worse")
    def worse(*, input_shape=(4,)):
        return None

    with pytest.raises(TypeError, match=r"bad\(\) missing .*'input_shape'"):
        models.create("bad")
    with pytest.raises(TypeError, match=r"worse\(\) .*'num_classes'"):
        models.create("worse")
