"""Workers whose scripts differ say so before the first step, or after the epoch in which their variables parted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import jobs
import keras
import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk

pytestmark = pytest.mark.slow
EXAMPLES, BATCH = 64, 16

# What each worker is told; tests/train/requirements/test_settings.py has the names of all options.
STEP, FIT = (f"ClusterError: The workers do not have the same {what}: " for what in ("step", "fit"))
RESULTS = "ClusterError: The workers do not compute the same: for the same 16 rows of the batch, "
PLACE = "ClusterError: The workers are not at the same place of the program: "
SAYS = {
    "another rate": STEP + "learning_rate of the optimizer is 0.01 on worker 0 and 0.5 on worker 1.",
    "a layer with other code": RESULTS,
    "a loss with other code": RESULTS,
    "fewer epochs": FIT + "epochs is 2 on worker 0 and 1 on worker 1.",
    "no validation": FIT
    + "validation (its frequency, batch size, batches, steps within an epoch) is [1, 16, 4, None] on worker 0 and None",
    "weights of its own": "/kernel' has different values on worker 1 than on worker 0, before the first step;",
    "a callback that writes noise": "/kernel' has different values on worker 1 than on worker 0, after epoch 0",
    "evaluate between fits": PLACE + "Loop.evaluate on worker 0 and fit on worker 1. All of",
    "evaluate after an epoch": PLACE + "Loop.evaluate within Loop.fit on worker 0 and Loop.fit on worker 1. All of",
    "evaluate after a batch": PLACE + "Loop.evaluate within Loop.fit on worker 0 and Loop.fit on worker 1. All of",
    "Keras's predict after an epoch": PLACE + "Model.predict on worker 0 and Loop.fit on worker 1. All of",
    "export": PLACE + "a wait for the chief on worker 0 and fit on worker 1. All of",
    "a number of its own": PLACE + "a call of your own on worker 0 and fit on worker 1. All of",
}


class Scaled(keras.layers.Layer):
    """A layer that says nothing of its factor, as if that were code."""

    _factor = 1.0

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x * self._factor


class After(keras.callbacks.Callback):
    """Does something after each epoch, or each batch."""

    def __init__(self, act: Callable[[Any], None], *, of_batches: bool = False) -> None:
        super().__init__()
        if of_batches:
            self.on_train_batch_end = lambda batch, logs=None: act(self.model)
        else:
            self.on_epoch_end = lambda epoch, logs=None: act(self.model)


def write_noise(model: Any) -> None:
    kernel = model.trainable_variables[0]
    kernel.assign(kernel + np.random.default_rng().normal(size=kernel.shape) * 1e-2)


def evaluate(model: Any) -> None:
    model.evaluate_all()


def predict(model: Any) -> None:
    model.predict(np.ones((4, 3), "float32"), verbose=0)


def numbers() -> mk.data.Batches:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, 3)).astype("float32")
    return mk.data.batches(mk.data.arrays(x, (x[:, 0] > 0).astype("float32")[:, None]), global_batch_size=BATCH)


class Script:
    """What a script may say; each worker has one of its own."""

    factor = 1.0
    optimizer: Callable[[], Any] = lambda self: keras.optimizers.Adam(0.01)
    loss: Any = "binary_crossentropy"
    fit: ClassVar[dict[str, Any]] = {}
    before: Callable[[Any], None] = lambda self, model: None
    after: Callable[[Any], None] = lambda self, loop: None

    def __init__(self, **other: Any) -> None:
        vars(self).update(other)

    def run(self, strategy: tf.distribute.Strategy) -> None:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            dense = keras.layers.Dense(4, "relu")
            scaled = Scaled()
            scaled._factor = self.factor
            layers = [keras.Input((3,)), dense, scaled, keras.layers.Dense(1, "sigmoid")]
            model, optimizer = keras.Sequential(layers), self.optimizer()
        step = mk.train.Step(model, optimizer, loss=self.loss, metrics=["accuracy"])
        loop = mk.train.Loop(strategy, step)
        self.before(model)
        model.evaluate_all = lambda: loop.evaluate(numbers())
        loop.fit(numbers(), **{"epochs": 2, "verbose": 0, **self.fit})
        self.after(loop)
        loop.fit(numbers(), epochs=3, verbose=0)


def other_loss(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.abs(y - y_pred), axis=-1)


def squares(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean((y - y_pred) ** 2, axis=-1)


other_loss.__name__ = squares.__name__  # as in two versions of a script


def differing(folder: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """What worker 1 says, and what the other does where it is not the usual."""
    return {
        "another rate": ({"optimizer": lambda: keras.optimizers.Adam(0.5)}, {}),
        "a layer with other code": ({"factor": 1.1}, {}),
        "a loss with other code": ({"loss": other_loss}, {"loss": squares}),
        "fewer epochs": ({"fit": {"epochs": 1}}, {}),
        "no validation": ({}, {"fit": {"validation_data": numbers()}}),
        "weights of its own": ({"before": write_noise}, {}),
        "a callback that writes noise": (
            {"fit": {"callbacks": [After(write_noise)]}},
            {"fit": {"callbacks": [After(write_noise)]}},
        ),
        "evaluate between fits": ({}, {"after": lambda loop: loop.evaluate(numbers())}),
        "evaluate after an epoch": ({}, {"fit": {"callbacks": [After(evaluate)]}}),
        "evaluate after a batch": (
            {"fit": {"callbacks": [After(lambda model: None, of_batches=True)]}},
            {"fit": {"callbacks": [After(evaluate, of_batches=True)]}},
        ),
        "Keras's predict after an epoch": ({}, {"fit": {"callbacks": [After(predict)]}}),
        "export": ({}, {"after": lambda loop: mk.train.export(loop, folder / "never.keras")}),
        "a number of its own": ({}, {"after": lambda loop: mk.strategy.of_all_workers(loop.strategy, 1)}),
    }


def asked(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, str]:
    """The error of each case; at last the scripts are equal, and train."""
    errors = {}
    for what, (of_one, of_others) in differing(folder).items():
        try:
            Script(**(of_one if mk.strategy.worker_index(strategy) == 1 else of_others)).run(strategy)
            errors[what] = "no error"
        except (mk.errors.ClusterError, mk.errors.OutOfSyncError) as error:
            errors[what] = f"{type(error).__name__}: {error}"
    Script().run(strategy)
    return errors


def test_both_workers_say_what_differs_and_equal_scripts_train_afterwards(found):
    for worker in found:
        assert worker.keys() == SAYS.keys()
        for what, says in SAYS.items():
            assert says in worker[what], what


ONE_LAYER_MORE = """
import mirrorkit as mk
from mirrorkit._keras import keras

strategy = mk.strategy.create("auto", start_timeout=120)
with strategy.scope():
    layers = [keras.layers.Dense(4) for _ in range(1 + mk.strategy.worker_index(strategy))]
    keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
"""


def test_another_shape_is_named_with_the_variable(tmp_path):
    (tmp_path / "script.py").write_text(ONE_LAYER_MORE)
    with jobs.launched(tmp_path, "--workers", 2, "script.py") as job:
        assert job.end() != 0
    text = (
        r"creates the variable 'sequential/dense_1/kernel' of shape (\S+), where another worker creates one of shape "
    )
    (found, *_) = re.findall(rf"worker (\d) {text}(\S+)\.", job.text)
    assert set(found[1:]) == {"[4,1]", "[4,4]"}
    assert (found[0] == "0") == (found[1] == "[4,1]")
