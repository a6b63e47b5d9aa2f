from __future__ import annotations

import keras
import tensorflow as tf

from mirrorkit.train.replica_code.written import plain_variables
from mirrorkit.variables import path


class Counting(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__(name="counting")
        self.count = tf.Variable(0)


def test_variables_are_called_by_the_attributes_that_hold_them() -> None:
    model = keras.Sequential([Counting()], name="model")
    model.seen = tf.Variable(0.0)
    model.means = {"x": tf.Variable(1.0), "again": model.seen}
    model.all = [tf.Variable(2.0), 3]
    assert [path(variable) for variable in plain_variables(model)] == [
        "model.seen",
        "model.means",
        "model.all",
        "counting.count",
    ]
