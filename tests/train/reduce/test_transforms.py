"""Transforms of the reduced gradient: the same on any number of replicas, kept in checkpoints, and refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import Noise, RunningMean, cut, numbers_of, train
from training_helpers import THREE, At, Interrupted, adam, largest_difference, line_net, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.variables import path

L = keras.layers


BOTH = {"transforms": [RunningMean(), Noise()]}


def _net() -> Any:
    return sequential((4,), *(L.Dense(4, "tanh") for _ in range(4)), L.Dense(1))


def _states(loop: Any) -> list[np.ndarray]:
    return numbers_of([one for one in loop.step.variables if path(one).startswith("RunningMean/")])


CLIPS = {
    "clip_norm": lambda gradients: [g * min(1, 0.5 / np.sqrt(sum(np.sum(g**2) for g in gradients))) for g in gradients],
    "clip_value": lambda gradients: [np.clip(g, -0.5, 0.5) for g in gradients],
}


def _gradients(x: Any, y: Any, kernel: Any, bias: Any) -> list[np.ndarray]:
    error = x @ kernel + bias - y
    return [2 * x.T @ error / len(x), 2 * error.mean(0)]


@pytest.mark.parametrize("option", CLIPS)
def test_the_global_gradient_is_clipped_then_transformed(make_loop: Any, numbers: Any, option: str) -> None:
    """Against NumPy; the batch of 4 leaves a share of three replicas empty, and that of 1 all but one."""
    options, clip = {option: 0.5, "transforms": [RunningMean()]}, CLIPS[option]
    loop = make_loop(THREE, line_net, lambda: keras.optimizers.SGD(1.0), **options)
    kernel, bias = (value.astype("float64") for value in loop.step.model.get_weights())
    batches, means = cut(*numbers, sizes=[30, 4, 1]), [np.zeros_like(kernel), np.zeros_like(bias)]
    train(loop, batches)
    for x, y in batches:
        gradients = _gradients(x, y, kernel, bias)
        clipped = clip(gradients)
        if len(x) == 30:
            assert np.abs(gradients[0] - clipped[0]).max() > 0.1, "nothing was clipped"
            shards = [clip(_gradients(*shard, kernel, bias))[0] for shard in cut(x, y, sizes=[15, 15])]
            assert np.abs(np.mean(shards, 0) - clipped[0]).max() > 0.001, "clipping each shard gives the same"
        means = [0.5 * mean + 0.5 * g for mean, g in zip(means, clipped, strict=True)]
        kernel, bias = kernel - means[0], bias - means[1]
    assert largest_difference([*loop.step.model.get_weights(), *_states(loop)], [kernel, bias, *means, 2]) < 1e-5


class Alternating(keras.Model):  # two optimizers in turn, each for half of the model
    def __init__(self) -> None:
        super().__init__()
        self.parts = [sequential((4,), L.Dense(3, "tanh")), sequential((3,), L.Dense(1))]
        self.other = keras.optimizers.SGD(0.1)
        self.compile(adam())

    def call(self, x: Any) -> Any:
        return self.parts[1](self.parts[0](x))

    def train_step(self, data: Any) -> Any:
        for part, optimizer in zip(self.parts, (self.optimizer, self.other), strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
            optimizer.apply(tape.gradient(loss, part.trainable_variables), part.trainable_variables)
        return {"loss": loss}


@pytest.mark.parametrize("kind", [pytest.param("a function", marks=pytest.mark.slow), "with variables"])
def test_a_resumed_run_comes_to_the_same_bits(make_loop: Any, loop_over: Any, numbers: Any, tmp_path: Any, kind: str):
    def run(folder: str, *more: Any) -> Any:
        if kind == "a function":
            loop = make_loop(("mirrored", 2), _net, adam, **BOTH)
        else:
            loop = loop_over(Alternating, **BOTH)
        callbacks = [mk.train.Checkpoints(tmp_path / folder, every=2), *more]
        loop.fit(plain_dataset(*numbers, batch=16), epochs=2, verbose=0, callbacks=callbacks)
        return [(path(one), one.value.numpy()) for one in loop.step.variables if "logs_of" not in path(one)]

    expected = run("whole")
    with pytest.raises(Interrupted):
        run("broken", At("on_train_batch_end", 3))
    for (name, one), (_, other) in zip(expected, run("broken"), strict=True):
        assert np.array_equal(one, other), name


def _odd(state: Any = (), update: Any = lambda gradients, state: (gradients, state)) -> Any:
    return SimpleNamespace(init=lambda variables: state, update=lambda gradients, state, step: update(gradients, state))


ODD = {
    "no transform": ([5], r"int cannot be one of the transforms: .*'init'"),
    "a class": ([Noise], "type cannot be one of the transforms"),
    "a state of text": ([_odd({"a": ["b"]})], "'b', which is no number"),
    "None": ([_odd(update=lambda g, s: None)], r"At \(0, 0\) .*update returned None in place of TensorSpec"),
    "fewer": ([_odd(update=lambda g, s: (g[1:], s))], r"At \(0, 0\) .*shape=\(1,\).*shape=\(4, 1\)"),
    "another dtype": ([_odd(0, lambda g, s: (g, tf.cast(s, "int64")))], r"At \(1,\) .*int64.*in place of .*int32"),
    "a draw of the process": ([_odd(update=lambda g, s: ([tf.random.normal(one.shape) for one in g], s))], "Normal"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_transform_is_refused(make_loop: Any, name: str) -> None:
    given, message = ODD[name]
    with pytest.raises(StepError, match=message):
        make_loop(("one_device", 1), line_net, transforms=given)


def test_where_there_are_none(make_loop: Any) -> None:
    held: list[Any] = []
    reads = SimpleNamespace(init=lambda v: held.extend(v) or (), update=lambda g, s, step: ([g[0] * held[0], g[1]], s))
    with pytest.raises(StepError, match=r"reads the variable .*kernel.*, which the step also writes"):
        make_loop(("mirrored", 2), line_net, transforms=[reads])
    with pytest.raises(StepError, match="transforms="):
        make_loop(("mirrored", 2), line_net, sparse_embeddings="lazy", **BOTH)
    with pytest.raises(StepError, match="was given transforms and no optimizer"):
        mk.train.Step(line_net(), **BOTH)
