"""The settings and rows that workers compare."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import Line, Noise

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train import Step
from mirrorkit.train.requirements.settings import plain, settings_of, settings_of_variables


def settings(
    *layers: Any, optimizer: Any = None, loss: Any = "mse", metrics: Any = None, **options: Any
) -> dict[str, Any]:
    model = keras.Sequential([keras.Input((3,)), *(layers or [keras.layers.Dense(2)])])
    step = Step(model, optimizer or keras.optimizers.Adam(), loss=loss, metrics=metrics, **options)
    return settings_of(model, step.optimizer, step._options)


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [key for key in {**one, **other} if one.get(key, "missing") != other.get(key, "missing")]


DIFFERING = [
    ({"optimizer": lambda: keras.optimizers.Adam(beta_1=0.5)}, ["beta_1 of the optimizer"]),
    ({"optimizer": lambda: keras.optimizers.Adam(clipnorm=1.0)}, ["clipnorm of the optimizer"]),
    ({"metrics": lambda: [keras.metrics.BinaryAccuracy(threshold=0.3)]}, ["metrics/metrics/0/threshold of the step"]),
    (
        {"loss": lambda: keras.losses.BinaryCrossentropy(label_smoothing=0.1)},
        ["losses/loss/label_smoothing of the step"],
    ),
    ({"clip_norm": lambda: 1.0}, ["clip_norm of the step"]),
    ({"transforms": lambda: [Noise(seed=2)]}, ["transforms/0/seed of the step"]),
    ({"accumulate": lambda: 2}, ["accumulate of the step"]),
    ({"ema": lambda: 0.5}, ["ema of the step"]),
    ({"loss_scale": lambda: 8.0}, ["loss_scale/initial of the step"]),
    ({"jit_compile": lambda: True}, ["jit_compile of the step"]),
]
USUAL = {
    "transforms": lambda: [Noise(seed=1)],
    "metrics": lambda: [keras.metrics.BinaryAccuracy()],
    "loss": lambda: keras.losses.BinaryCrossentropy(True),
}


@pytest.mark.parametrize(("other", "names"), DIFFERING, ids=lambda value: str(list(value)))
def test_what_differs_has_a_name(other, names):
    one, two = (settings(**{name: make() for name, make in {**USUAL, **given}.items()}) for given in ({}, other))
    assert set(names) <= set(differences(one, two))
    assert all(name.split("/")[0].split()[0] == names[0].split("/")[0].split()[0] for name in differences(one, two))


def test_a_step_with_outputs_of_its_own_differs_from_one_without() -> None:
    def of(**options: Any) -> dict[str, Any]:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        step = Step.from_loss(model, keras.optimizers.Adam(), lambda x: tf.reduce_mean(model(x) ** 2, -1), **options)
        return settings_of(model, step.optimizer, dataclasses.replace(step._options, predict=options.get("predict")))

    assert differences(of(), of(predict=lambda x: x)) == ["predict of the step"]
    assert differences(of(predict=lambda x: x + 1), of(predict=lambda x: x)) == []


def test_an_option_of_a_layer_has_a_name():
    layers = keras.layers
    one, two = settings(layers.Dense(2, "relu")), settings(layers.Dense(2, "tanh"))
    assert [key.replace(" (2)", "") for key in differences(one, two)] == ["activation of layer 'dense'"]


def test_a_width_shows_in_the_variables():
    one, two = settings(keras.layers.Dense(2)), settings(keras.layers.Dense(3))
    found = differences(one, two)
    assert any(key.startswith("variable 0 (") and key.endswith("/kernel)") for key in found), found


def test_a_layer_that_is_not_trained_shows():
    frozen = keras.layers.Dense(2, trainable=False)
    assert any("variable" in key for key in differences(settings(keras.layers.Dense(2)), settings(frozen)))


def test_names_seeds_and_places_of_files_may_differ():
    one = settings(keras.layers.Dense(2, lambda x: x, name="dense_4"), keras.layers.Dropout(0.5, seed=1))
    again = settings(keras.layers.Dense(2, lambda y: y + 0, name="dense_7"), keras.layers.Dropout(0.5, seed=2))
    assert differences(one, again) == []


def test_all_of_it_is_for_json():
    found = settings(
        keras.layers.Dense(2, kernel_regularizer="l2"),
        optimizer=keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10)),
        metrics=["mae", lambda y, p: y],
    )
    assert json.loads(json.dumps(found)) == found


def test_a_class_that_tells_nothing_is_compared_by_its_variables():
    class Secretive(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(3,))

        def call(self, x: Any) -> Any:
            return x * self.scale

        def get_config(self) -> Any:
            raise NotImplementedError

    found = settings(Secretive())
    assert "class of layer 'secretive' (2)" in found
    assert found["variable 0 (sequential/secretive/variable)"] == "float32 (3,)"


def test_what_json_cannot_say_is_told_by_its_kind():
    assert plain({"a": np.float32(0.5), "b": object(), "c": (1, np.zeros(2)), "d": "/tmp/x", "e": len}) == {
        "a": 0.5,
        "b": "object",
        "c": [1, "ndarray"],
        "d": "a path",
        "e": "len",
    }


def test_variables_of_tensorflow_have_settings_too():
    variable = keras.Variable(np.zeros((2, 3), "float32"), name="w", trainable=False)
    assert settings_of_variables([variable]) == {"variable 0 (w)": "float32 (2, 3) not trained"}
    assert settings_of_variables([variable.value]) != {}


# --- A custom step is given batches whose components have a row for each example, as any other step


@pytest.mark.parametrize(
    ("replicas", "what", "other"),
    [(1, "evaluate", tf.ones([])), (2, "fit", tf.ones([7, 1]))],
    ids=["no rows", "fewer rows"],
)
def test_a_step_of_ones_own(strategy_of: Any, replicas: int, what: str, other: tf.Tensor) -> None:
    strategy = strategy_of("mirrored", replicas)
    data = tf.data.Dataset.from_tensors((tf.ones([8, 4]), other)).repeat(3)
    with strategy.scope():
        step = Line()
    with pytest.raises(StepError, match=r"\[0\] has 8, component \[1\] has (7|no)\."):
        getattr(mk.train.Loop(strategy, step), what)(data)
