"""Keras as the judge: what a step makes of a few rows must be what Keras's own `compute_loss` and metrics make of them.

Both are computed from the same rows, weights, layer state and seeds, as one shard, by the same forward pass, so that
hardly any rounding differs. What is compared are the gradients as they reach the optimizer, what layers assign, and the
logs. The optimizer is compared by itself, see `keras_updates.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel
from mirrorkit.errors import StepError
from mirrorkit.train.first_batch.keras_updates import update_faults
from mirrorkit.train.first_batch.results import Results, differences
from mirrorkit.train.first_batch.sampled_rows import take
from mirrorkit.train.first_batch.shards import on_one_shard, seeded, small
from mirrorkit.train.keras_model.custom_gradients import with_weights
from mirrorkit.train.keras_model.inlining import functions_inlined
from mirrorkit.train.keras_model.kept import kept_by
from mirrorkit.train.keras_model.layer_state import layers_of, training_argument
from mirrorkit.train.keras_model.outputs import UnpackedBatch
from mirrorkit.train.keras_model.seeds import seeds_on_host
from mirrorkit.train.reduce.switching import keeping
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.train.replica_code.step_function import flat_logs
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.variables import ValueScope, unchanged

_log = logging.getLogger("mirrorkit")

_ROWS = 4


def compare_with_keras(step: Supervised, batch: UnpackedBatch, *, training: bool) -> None:
    """Refuse a step that makes of rows what Keras's `fit` or `evaluate` does not.

    What Keras itself cannot compute is not compared, nor a model whose variables lie on several devices.

    Args:
        step: one that is prepared for the batch.
        batch: a global batch, taken apart.
        training: whether the training is compared, or the evaluation.
    """
    size = tf.nest.flatten(batch.x)[0].shape[0]
    if not size or step.on_first is not None:
        return
    rows = np.unique(np.linspace(0, size - 1, _ROWS).astype(int))
    try:
        some = UnpackedBatch(*[None if part is None else take(part, rows) for part in batch])
        with unchanged([]):  # a layer may draw from Python's or NumPy's generator
            found = outside_replica(lambda: _differences(step, some, training=training))
    except StepError:
        raise
    except Exception as error:  # the training will say more, or Keras alone cannot compute this
        _log.info("A step could not be compared with Keras: %s: %s", type(error).__name__, error)
        return
    if found:
        raise StepError(
            f"A step does not do what Keras's {'fit' if training else 'evaluate'} does: {' '.join(found)} (Seen "
            f"on {len(rows)} rows of the first batch, as one shard.) Look for a loss, metric, layer or optimizer that "
            "overrides more than Keras documents, and for a custom gradient that is not proportional to the upstream "
            "gradient, such as one that clips: a step takes gradients of sums, and divides later. If you know that "
            'it is right, write Step(..., unchecked=("keras",)).'
        )


def _differences(step: Supervised, batch: UnpackedBatch, *, training: bool) -> list[str]:
    values = step.values()
    values = values._replace(scale=[tf.ones_like(value) for value in values.scale])  # a scale may overflow at first

    def of_keras() -> Results:
        return _of_keras(step, values.weights, seeded(step.functions, values.state), batch, training=training)

    theirs = of_keras()
    gradients, state, totals = on_one_shard(step.functions, values, batch.present, training=training)
    found = differences(step, Results(gradients, state, step.logs(totals)), theirs, "in Keras")
    if found and differences(step, of_keras(), theirs, ""):
        found = []  # numbers drawn from a state of the process, which tracing refuses
    return [*found, *(update_faults(step.model.optimizer) if training else ())]


def _of_keras(
    step: Supervised, weights: Sequence[tf.Tensor], state: Sequence[tf.Tensor], batch: UnpackedBatch, *, training: bool
) -> Results:
    """Compute with Keras's own code; nothing is assigned."""
    model, trainer = step.trained, _trainer_of(step)
    given = [*zip(model.trainable_variables, weights, strict=True)]
    given += zip(model.non_trainable_variables, state, strict=True)
    with_weights()
    scope = ValueScope(state_mapping=given, collect_losses=True)
    with tf.GradientTape() as tape, seeds_on_host(), functions_inlined(), keeping(kept_by(layers_of(model))), scope:
        tape.watch(list(weights))
        y_pred = model(batch.x, **training_argument(model, training))
        loss = trainer.compute_loss(batch.x, batch.y, y_pred, batch.weight, training=training)
        logs = flat_logs(trainer.compute_metrics(batch.x, batch.y, y_pred, batch.weight) | {"loss": loss})
        after = [tf.convert_to_tensor(scope.get_current_value(v)) for v in model.non_trainable_variables]
    gradients = enumerate(tape.gradient(loss, list(weights)) if training else [])
    return Results(small(step.functions, gradients), after, logs)


def _trainer_of(step: Supervised) -> KerasModel:
    """Return a model compiled as the step is, to whose loss the layers of the step's model add theirs.

    The metrics that Keras makes of names are its own, and go with it.
    """
    trained = step.trained

    class Trainer(keras.Model):  # type: ignore[name-defined, misc]
        losses = property(lambda self: trained.losses)

    trainer = Trainer()
    if hasattr(trained, "output_names"):
        trainer.output_names = trained.output_names
    trainer.compile(**step.options.losses, **step.options.metrics, jit_compile=False)
    return trainer
