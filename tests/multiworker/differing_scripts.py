"""Two workers whose scripts differ in one way or another; run by the tests.

Run: python -m mirrorkit launch --workers 2 differing_scripts.py FOLDER [width | order]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

import mirrorkit as mk

EXAMPLES, BATCH = 64, 16


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
    model.predict_all()


def slow_down(model: Any) -> None:
    model.optimizer.learning_rate = 0.001


def numbers() -> mk.data.Batches:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, 3)).astype("float32")
    return mk.data.batches(mk.data.arrays(x, (x[:, 0] > 0).astype("float32")[:, None]), global_batch_size=BATCH)


class Script:
    """What a script may say; each worker has one of its own."""

    activation: Any = "relu"
    factor = 1.0
    optimizer: Callable[[], Any] = lambda self: keras.optimizers.Adam(0.01)
    loss: Any = "binary_crossentropy"
    metrics: Any = ("accuracy",)
    step: ClassVar[dict[str, Any]] = {}
    loop: ClassVar[dict[str, Any]] = {}
    fit: ClassVar[dict[str, Any]] = {}
    before: Callable[[Any], None] = lambda self, model: None
    after: Callable[[Any], None] = lambda self, loop: None

    def __init__(self, **other: Any) -> None:
        vars(self).update(other)

    def run(self, strategy: tf.distribute.Strategy) -> None:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            dense = keras.layers.Dense(4, self.activation)
            scaled = Scaled()
            scaled._factor = self.factor
            layers = [keras.Input((3,)), dense, scaled, keras.layers.Dense(1, "sigmoid")]
            model, optimizer = keras.Sequential(layers), self.optimizer()
        step = mk.train.Step(model, optimizer, loss=self.loss, metrics=list(self.metrics), **self.step)
        loop = mk.train.Loop(strategy, step, **self.loop)
        self.before(model)
        model.evaluate_all = lambda: loop.evaluate(numbers())
        model.predict_all = lambda: loop.predict(numbers())
        loop.fit(numbers(), **{"epochs": 2, "verbose": 0, **self.fit})
        self.after(loop)
        loop.fit(numbers(), epochs=3, verbose=0)


def other_loss(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.abs(y - y_pred), axis=-1)


def squares(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean((y - y_pred) ** 2, axis=-1)


other_loss.__name__ = squares.__name__  # as in two versions of a script


def differing() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """What worker 1 says, and what the other does where it is not the usual."""
    return {
        "another beta_1": ({"optimizer": lambda: keras.optimizers.Adam(0.01, beta_1=0.5)}, {}),
        "another rate": ({"optimizer": lambda: keras.optimizers.Adam(0.5)}, {}),
        "another schedule": (
            {"optimizer": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5))},
            {"optimizer": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))},
        ),
        "another optimizer": ({"optimizer": lambda: keras.optimizers.SGD(0.01)}, {}),
        "another activation": ({"activation": "tanh"}, {}),
        "a lambda with other code": (
            {"activation": lambda x: tf.nn.relu(x) * 1.05},
            {"activation": lambda x: tf.nn.relu(x)},
        ),
        "a layer with other code": ({"factor": 1.1}, {}),
        "a loss with other code": ({"loss": other_loss}, {"loss": squares}),
        "another option of the loss": (
            {"loss": keras.losses.BinaryCrossentropy(label_smoothing=0.1)},
            {"loss": keras.losses.BinaryCrossentropy()},
        ),
        "another option of a metric": (
            {"metrics": [keras.metrics.BinaryAccuracy(threshold=0.7)]},
            {"metrics": [keras.metrics.BinaryAccuracy()]},
        ),
        "another metric": ({"metrics": ["mae"]}, {}),
        "another clip_norm": ({"step": {"clip_norm": 1.0}}, {"step": {"clip_norm": 2.0}}),
        "accumulate": ({"step": {"accumulate": 2}}, {}),
        "ema": ({"step": {"ema": 0.9}}, {}),
        "jit_compile": ({"step": {"jit_compile": True}}, {}),
        "steps_per_call": ({"loop": {"steps_per_call": 4}}, {}),
        "fewer epochs": ({"fit": {"epochs": 1}}, {}),
        "no validation": ({}, {"fit": {"validation_data": numbers()}}),
        "class_weight": ({"fit": {"class_weight": {0: 1.0, 1: 2.0}}}, {}),
        "weights of its own": ({"before": write_noise}, {}),
        "a callback that writes noise": (
            {"fit": {"callbacks": [After(write_noise)]}},
            {"fit": {"callbacks": [After(write_noise)]}},
        ),
        "a callback that sets the rate": ({"fit": {"callbacks": [After(slow_down)]}}, {}),
        "evaluate between fits": ({}, {"after": lambda loop: loop.evaluate(numbers())}),
        "evaluate after an epoch": ({}, {"fit": {"callbacks": [After(evaluate)]}}),
        "predict after an epoch": ({}, {"fit": {"callbacks": [After(predict)]}}),
        "evaluate after a batch": (
            {"fit": {"callbacks": [After(lambda model: None, of_batches=True)]}},
            {"fit": {"callbacks": [After(evaluate, of_batches=True)]}},
        ),
        "export": ({}, {"after": lambda loop: mk.train.export(loop, Path(sys.argv[1]) / "never.keras")}),
        "a number of its own": ({}, {"after": lambda loop: mk.strategy.of_all_workers(loop.strategy, 1)}),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    strategy = mk.strategy.create("auto", start_timeout=120)
    me = mk.strategy.worker_index(strategy)
    errors = {}
    for what, (of_one, of_others) in differing().items():
        try:
            Script(**(of_one if me == 1 else of_others)).run(strategy)
            errors[what] = "no error"
        except (mk.errors.ClusterError, mk.errors.OutOfSyncError) as error:
            errors[what] = f"{type(error).__name__}: {error}"
        (folder / f"found{me}.json").write_text(json.dumps(errors))
    Script().run(strategy)
    (folder / f"right{me}").touch()


def of_another_width(extra: int) -> None:
    """Create a model whose widths, or whose number of layers, depend on the worker."""
    strategy = mk.strategy.create("auto", start_timeout=120)
    me = mk.strategy.worker_index(strategy)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.1)
        layers = [keras.layers.Dense(4) for _ in range(1 + extra * me)]
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1 if extra else 1 + me)])
    mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss="mse"))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        of_another_width(int(sys.argv[2] == "layer"))
    else:
        main()
