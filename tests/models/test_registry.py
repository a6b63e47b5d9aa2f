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


def test_unknown_name_is_answered_with_the_nearest_and_the_list():
    with pytest.raises(ModelError, match=r"'resnet21'.*Did you mean 'resnet\d\d'.*linear, mlp, mnist_cnn"):
        models.create("resnet21")


def test_unknown_option_is_answered_with_those_the_builder_takes():
    with pytest.raises(ModelError, match=r"no option 'widht'.*depth, width, dropout"):
        models.create("wide_resnet", depth=10, widht=1)
    with pytest.raises(ModelError, match="takes none"):
        models.create("linear", depth=3)


@pytest.mark.parametrize("name", ["mnist_cnn", "cifar_cnn", "resnet20", "wide_resnet", "speed_net"])
def test_an_image_too_small_is_refused_and_the_smallest_works(name):
    with pytest.raises(ModelError, match=rf"{name}.*at least (\d+) x \1 pixels.*\(1, 9, 3\)") as error:
        models.create(name, input_shape=(1, 9, 3))
    smallest = int(str(error.value).split("at least ")[1].split()[0])
    options = {"depth": 10, "width": 1} if name == "wide_resnet" else {}
    assert models.create(name, input_shape=(smallest, smallest, 3), **options).output_shape == (None, 10)
    with pytest.raises(ModelError, match="pixels"):
        models.create(name, input_shape=(smallest, smallest - 1, 3), **options)


@pytest.mark.parametrize("shape", [28, (), (28, None, 1), (28, 28.0, 1), (0, 28, 1), "28"])
def test_an_input_shape_that_is_none_is_refused(shape):
    with pytest.raises(ModelError, match="without the batch axis"):
        models.create("linear", input_shape=shape)


def test_a_flat_shape_is_refused_by_image_models_only():
    assert models.create("mlp", input_shape=[7]).input_shape == (None, 7)
    with pytest.raises(ModelError, match=r"height, width, channels"):
        models.create("mnist_cnn", input_shape=(784,))


@pytest.mark.parametrize("num_classes", [0, 2.5, True, "10"])
def test_num_classes_must_be_a_count(num_classes):
    with pytest.raises(ModelError, match="num_classes"):
        models.create("linear", num_classes=num_classes)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"units": (64, 0)}),
        ("mlp", {"units": 64}),
        ("mlp", {"dropout": 1.0}),
        ("wide_resnet", {"depth": 20}),
        ("wide_resnet", {"depth": 4}),
        ("wide_resnet", {"width": 0}),
        ("wide_resnet", {"dropout": -0.1}),
        ("speed_net", {"width": 33}),
    ],
)
def test_options_outside_their_range_are_refused(name, options):
    with pytest.raises(ModelError, match=next(iter(options))):
        models.create(name, **options)


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
    with pytest.raises(ModelError, match=r"'mlp' is already taken by mirrorkit\.models\.dense\.mlp"):

        @models.register("mlp")
        def other(*, input_shape=(4,), num_classes=10):
            return None


def test_a_builder_without_the_two_arguments_is_refused(own_names):
    with pytest.raises(ModelError, match="input_shape"):

        @models.register("bad")
        def bad(*, input_shape, num_classes=10):
            return None

    with pytest.raises(ModelError, match="num_classes"):

        @models.register("worse")
        def worse(*, input_shape=(4,)):
            return None

    assert not {"bad", "worse"} & set(models.names())
