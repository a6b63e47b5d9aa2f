"""A recurrent layer's loop over time runs on its replica's device: copies at each time step would cost more than it."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from executed import operations

L = keras.layers
TIME = 6


def one_output() -> keras.Model:
    return keras.Sequential([keras.Input((TIME, 3)), L.SimpleRNN(4), L.Dense(1)])


def masked_output() -> keras.Model:
    """Two losses with divisors of their own: one for each example, and one for each step that no mask leaves out."""
    x = keras.Input((TIME, 3))
    steps = L.GRU(4, return_sequences=True)(L.Masking()(x))
    return keras.Model(x, [L.Dense(1, name="each")(steps), L.Dense(1, name="all")(L.SimpleRNN(4)(steps))])


def data(net: Any) -> tf.data.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, TIME, 3)).astype("float32")
    y = rng.normal(size=(8, 1)).astype("float32")
    each = rng.normal(size=(8, TIME, 1)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y if net is one_output else (each, y))).batch(8)


@pytest.mark.cpu
@pytest.mark.parametrize("net", [one_output, pytest.param(masked_output, marks=pytest.mark.slow)])
def test_a_replica_copies_nothing_from_another_at_each_time_step(make_loop: Any, net: Any) -> None:
    def run() -> None:
        loss = "mse" if net is one_output else ["mse", "mse"]
        make_loop(("mirrored", 2), net, loss=loss).fit(data(net), verbose=0)

    within = [found for found in operations(run) if re.search(r"replica_1.*(gru|rnn)[^/]*/while", found[1])]
    assert {op for _, _, op in within} >= {"NextIteration", "TensorListPushBack", "TensorListPopBack"}
    assert {device for device, *_ in within} == {"CPU:1"}
    assert not [name for _, name, op in within if op in ("_Recv", "_Send")]
