"""`mk.fit`, `mk.evaluate` and `mk.predict`: Keras's methods of these names, for a model of any strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mirrorkit._types import KerasCallback, KerasModel, Nest
from mirrorkit.arguments import checks_arguments
from mirrorkit.errors import StepError
from mirrorkit.train.loop.loop import Loop
from mirrorkit.train.step.keras_compile import compiled_config, require_compiled
from mirrorkit.train.step.step import Step
from mirrorkit.train.step.supervised import Supervised
from mirrorkit.train.totals.totals import metric_names

_LOOP = "_mirrorkit_loop"


def fit(
    model: KerasModel,
    x: Any = None,
    y: Nest = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | str = "auto",
    callbacks: Sequence[KerasCallback] | None = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | None = None,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Nest = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    *,
    seed: int | None = None,
    **options: Any,
) -> KerasCallback:
    """Train a compiled model as Keras's `fit` does, under the strategy in whose scope it was made.

    ```python
    with strategy.scope():
        model = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    history = mk.fit(model, digits.train.images, digits.train.labels, batch_size=256, epochs=2)
    ```

    The arguments are those of Keras's `fit`; `batch_size` is that of the global batch. A further call goes on with the
    same compiled functions, until the model is compiled again or other options are given. It is a
    `mk.train.Loop` with a `mk.train.Step.from_compiled`, which say more.

    Args:
        model: a compiled Keras model. One that was made in no scope trains on one device.
        x: arrays [N, ...], a `tf.data.Dataset` of global batches, a recipe of `mk.data`, a `keras.utils.PyDataset`, on
            one worker a generator.
        y, batch_size, epochs, verbose, callbacks, validation_split, validation_data, shuffle, class_weight,
            sample_weight, initial_epoch, steps_per_epoch, validation_steps, validation_batch_size, validation_freq: as
            in Keras.
        seed: of the order; see `Loop.fit`.
        **options: arguments of `Step`, such as `clip_norm`, which win over those of `compile`.

    Returns:
        Keras's History; its attribute `report` is the `mk.train.Report`.

    Raises:
        StepError: the model is not compiled, or cannot train on the data.

    Source: https://keras.io/api/models/model_training_apis/#fit-method
    """
    require_compiled(model)
    report = _loop(model, options).fit(
        x,
        y,
        batch_size=batch_size,
        epochs=epochs,
        verbose=verbose,
        callbacks=callbacks,
        validation_split=validation_split,
        validation_data=validation_data,
        shuffle=shuffle,
        seed=seed,
        class_weight=class_weight,
        sample_weight=sample_weight,
        initial_epoch=initial_epoch,
        steps_per_epoch=steps_per_epoch,
        validation_steps=validation_steps,
        validation_batch_size=validation_batch_size,
        validation_freq=validation_freq,
    )
    model.history.report = report
    return model.history


@checks_arguments(StepError)
def evaluate(
    model: KerasModel,
    x: Any = None,
    y: Nest = None,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    sample_weight: Nest = None,
    steps: int | None = None,
    callbacks: Sequence[KerasCallback] | None = None,
    return_dict: bool = False,
) -> Any:
    """Return loss and metrics as Keras's `evaluate` does: a number, a list, or with `return_dict` a dict by name.

    ```python
    loss, accuracy = mk.evaluate(model, digits.test.images, digits.test.labels, batch_size=256)
    ```

    The arguments are those of Keras; see `fit`. Source: https://keras.io/api/models/model_training_apis/
    """
    require_compiled(model)
    loop = _loop(model)
    logs = loop.evaluate(
        x, y, batch_size=batch_size, verbose=verbose, sample_weight=sample_weight, steps=steps, callbacks=callbacks
    )
    if return_dict:
        return logs
    step = loop.step.for_loop(loop.strategy)  # type: ignore[union-attr]  # it is a `Step`
    names = metric_names(step.own.model if isinstance(step, Supervised) else model)
    # Keras's order: those of the metrics, and what has another name by its name.
    values = [logs[name] for name in [*filter(logs.__contains__, names), *sorted(logs.keys() - names)]]
    return values if len(values) > 1 else values[0]


@checks_arguments(StepError)
def predict(
    model: KerasModel,
    x: Any,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    steps: int | None = None,
    callbacks: Sequence[KerasCallback] | None = None,
) -> Nest:
    """Return the model's outputs for all examples as NumPy arrays [N, ...], as Keras's `predict` does.

    ```python
    scores = mk.predict(model, digits.test.images)
    ```

    The arguments are those of Keras; see `fit`. `verbose` prints nothing here.
    Source: https://keras.io/api/models/model_training_apis/
    """
    if callbacks:
        raise StepError("mk.predict calls no callbacks; mk.fit and mk.evaluate do.")
    return _loop(model).predict(x, batch_size=batch_size, steps=steps)


def _loop(model: KerasModel, options: Mapping[str, Any] | None = None) -> Loop:
    """Return the loop of the last call, unless the model was compiled since, or other options are given."""
    compiled = compiled_config(model) if model.compiled else None
    loop: Loop | None
    loop, of_options, of_compiled = vars(model).get(_LOOP, (None, None, None))
    if loop is not None and of_compiled is compiled and options in (None, of_options):
        return loop
    options = options or {}
    step = Step.from_compiled(model, **options) if model.compiled else Step(model)
    steps = model.steps_per_execution
    loop = Loop(model.distribute_strategy, step, steps_per_call=steps if steps > 1 else "auto")
    vars(model)[_LOOP] = loop, options, compiled  # not by assignment, which Keras would track
    return loop
