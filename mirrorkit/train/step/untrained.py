"""A step without an optimizer, which evaluates and predicts: no option of the training, and what stands in for one."""

from __future__ import annotations

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, KerasOptimizer
from mirrorkit.errors import StepError
from mirrorkit.train.step.options import Options


def check(options: Options) -> None:
    """Refuse what says how to train."""
    clip_norm, clip_value = options.clip
    given = {
        "clip_norm": clip_norm is not None,
        "clip_value": clip_value is not None,
        "accumulate": options.accumulate != 1,
        "loss_scale": options.loss_scale is not None,
        "ema": options.ema is not None,
        "shard_optimizer": options.shard_optimizer,
    }
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise StepError(
            f"Step was given {', '.join(wrong)} and no optimizer. Give it an optimizer to train with; a step that "
            "evaluates and predicts only needs none of these."
        )


def stand_in(strategy: tf.distribute.Strategy, model: KerasModel) -> KerasOptimizer:
    """Return an optimizer without slots, whose count of updates stays 0, and tell callbacks that there is none."""
    if not hasattr(model, "optimizer"):
        model.optimizer = None  # TensorBoard asks for it
    with strategy.scope():
        return keras.optimizers.SGD(0.0, name="no_optimizer")
