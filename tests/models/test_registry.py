from __future__ import annotations

import pytest

from mirrorkit import models
from mirrorkit._keras import keras
from mirrorkit.errors import ModelError
from mirrorkit.models import registry


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
        ("mnist_cnn", {"input_shape": (784,)}, "height, width, channels"),
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


@pytest.mark.parametrize("name", ["mnist_cnn", "cifar_cnn", "resnet20", "wide_resnet", "speed_net"])
def test_an_image_too_small_is_refused_and_the_smallest_works(name):
    with pytest.raises(ModelError, match=rf"{name}.*\(1, 9, 3\)") as error:
        models.create(name, input_shape=(1, 9, 3))
    smallest = int(str(error.value).split("at least ")[1].split()[0])
    options = {"depth": 10, "width": 1} if name == "wide_resnet" else {}
    assert models.create(name, input_shape=[smallest, smallest, 3], **options).output_shape == (None, 10)
    with pytest.raises(ModelError, match="pixels"):
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
