"""A small split, and what a recipe gives as arrays."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from mirrorkit import data

SPLIT = data.synthetic((16, 16, 3), train=53, test=1).train


def collect(dataset: tf.data.Dataset) -> list:
    return [tf.nest.map_structure(lambda t: t.numpy(), element) for element in dataset]


def joined(batches: list):
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches)
