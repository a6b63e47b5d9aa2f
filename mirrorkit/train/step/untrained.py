"""What stands in for the optimizer of a step that only evaluates and predicts."""

from __future__ import annotations

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, KerasOptimizer


def stand_in(strategy: tf.distribute.Strategy, model: KerasModel) -> KerasOptimizer:
    """Return an optimizer without slots, whose count of updates stays 0, and tell callbacks that there is none."""
    if not hasattr(model, "optimizer"):
        model.optimizer = None  # TensorBoard asks for it
    with strategy.scope():
        return keras.optimizers.SGD(0.0, name="no_optimizer")
