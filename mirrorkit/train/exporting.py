"""Export: a trained model as a file or folder that loads without mirrorkit and without a strategy."""

from __future__ import annotations

import contextlib
import logging
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from mirrorkit._keras import keras
from mirrorkit._types import KerasModel, KerasVariable, Nest, Spec
from mirrorkit.arguments import checks_arguments
from mirrorkit.errors import StepError
from mirrorkit.strategy import is_chief, waiting_for_the_chief
from mirrorkit.train.export_places import KERAS, checked, is_keras_file, put
from mirrorkit.train.keras_model.building import is_built
from mirrorkit.train.keras_model.layer_state import layers_of, training_argument
from mirrorkit.train.keras_model.models import Models
from mirrorkit.train.reduce.tracing import outside_replica
from mirrorkit.variables import unchanged

_log = logging.getLogger("mirrorkit")

_NO_CONFIG = (TypeError, ValueError, NotImplementedError)  # of what cannot be made of its configuration


@checks_arguments(StepError)
def export(
    of: Any, path: str | os.PathLike[str], *, averaged: bool = False, input_signature: Spec | None = None
) -> Path | str:
    """Write a model for use elsewhere: a `.keras` file, or a SavedModel folder when the path has another name.

    ```python
    mk.train.export(loop, "digits.keras")   # model = keras.saving.load_model("digits.keras")
    mk.train.export(loop, "digits")         # served = tf.saved_model.load("digits"); served.serve(images)
    ```

    A `.keras` file holds the model's configuration and weights, and what it was compiled with: plain
    `keras.saving.load_model(path)` gives a model on one device that can evaluate and train on. Like every Keras file it
    is without the state of random seeds, which `Checkpoints` keep. The code of custom layers and losses is not in it:
    they must be registered with Keras, and their module imported before loading. Where a loss, a metric or the
    optimizer cannot be made of its configuration, a warning says so, and the model loads uncompiled.

    A SavedModel holds the computation itself, so custom layers need no code where it is loaded: `tf.saved_model.load`
    (its `serve(x)` works while the object that was loaded lives), TensorFlow Serving, or `keras.layers.TFSMLayer`. It
    computes with `training=False`; Keras's own `model.export` leaves random augmentation layers switched on.

    The state of the training, random generators included, does not change. The export is written under another name
    first, and replaces an existing file or SavedModel when it is whole: a file in one step, a folder in two renames. A
    process that is killed between these leaves the old one and the new one in a hidden folder `.NAME-...` beside the
    path. A folder that holds anything else is refused. On several workers all must call it: the chief writes, and the
    call returns when the file is whole.

    The path may be an address, such as s3://bucket/digits, which fsspec writes. A `.keras` file is replaced in one step
    there too. A SavedModel is several objects, and an object store replaces one at a time: `saved_model.pb`, without
    which nothing loads, is removed first and uploaded last. So an interrupted export does not load, and the next one
    replaces it. A reader that copies the objects during an export may get some of each: if that can happen, give each
    version its own address, such as s3://bucket/digits/7. `tf.saved_model.load` reads no such address; copy the folder
    first: `system, path = fsspec.core.url_to_fs(address)`, then `system.get(path + "/", "digits/", recursive=True)`.

    Sources: https://keras.io/api/models/model_saving_apis/model_saving_and_loading/ and
    https://keras.io/api/models/model_saving_apis/export/

    Args:
        of: a loop, a step, or a Keras model.
        path: ends in `.keras`, or names a folder; either may be an address.
        averaged: write the averages of the weights (`Step(..., ema=...)`) instead of the weights.
        input_signature: for a SavedModel of a subclassed model, whose inputs are not known: a nest of `tf.TensorSpec`
            in the structure of one batch of inputs, the first dimension None.

    Returns:
        The path; an address as a string.

    Raises:
        StepError: a model that is not built, that has layers which such a file cannot hold, or whose inputs are not
            known; no averages; a path of another format, or where something else exists.
        FileError: a path that cannot be written, or an address that cannot be reached.
        ArgumentError: an address without fsspec, or without its package for this kind of address.
    """
    step = of if isinstance(of, keras.Model) else getattr(of, "step", of)
    model = step if isinstance(step, keras.Model) else getattr(step, "model", None)
    if not isinstance(model, keras.Model):
        raise StepError(
            f"export takes a Keras model, or a loop or a step that has one as `model`; found {type(step).__name__}. Of "
            "a step of your own export the model itself: mk.train.export(step.generator, path), say."
        )
    if isinstance(model, Models):
        raise model.refusal("An exported file")
    if not model.built or (not model.variables and not is_built(model)):
        raise StepError(
            f"The model {model.name!r} is not built, so it has no weights yet. Let a Loop fit or evaluate first, or "
            "call it on one batch in the strategy's scope."
        )
    if averaged and not hasattr(step, "averaged"):
        raise StepError("The averages belong to the step, not to the model: export(step, path, averaged=True).")
    target = checked(path)
    write = _write_keras if is_keras_file(target) else _write_saved_model
    strategy = model.distribute_strategy

    def put_in_place() -> None:
        with unchanged([]):
            put(target, lambda new: write(model, new, input_signature))

    with (
        waiting_for_the_chief(strategy, f"export {os.fspath(target)!r}"),
        step.averaged() if averaged else contextlib.nullcontext(),
    ):
        if is_chief(strategy):  # outside of any scope: in one, its new variables would wait for the other workers'
            outside_replica(put_in_place)
    return target


def _write_keras(model: KerasModel, path: Path, input_signature: Spec | None) -> None:
    """Save as Keras does, and load that here: it would not say before that it cannot."""
    try:
        model.save(path)
        keras.saving.load_model(path)
    except _NO_CONFIG as error:
        try:
            keras.saving.load_model(path, compile=False).save(path)
        except _NO_CONFIG:
            raise StepError(_why_not(model, error)) from error
        _log.warning(
            "The file holds no optimizer, loss and metrics, and loads as a model to be compiled: %s",
            textwrap.shorten(str(error), 300),
        )


def _why_not(model: KerasModel, error: Exception) -> str:
    """Name a layer that cannot be made from its configuration: the first from the end, where inner layers come."""
    name = repr(model.name)
    for layer in reversed(layers_of(model)):
        try:
            keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
        except _NO_CONFIG as its_own:
            name, error = f"{layer.name!r} ({type(layer).__name__})", its_own
            break
    return (
        f"A {KERAS} file cannot hold the layer {name}. Decorate its class or function with "
        "@keras.saving.register_keras_serializable() and give a class a get_config, also in place of a Lambda; or "
        f"export a SavedModel, which needs no code: a path without {KERAS}. "
        f"Keras says: {textwrap.shorten(str(error), 300)}"
    )


def _write_saved_model(model: KerasModel, folder: Path, input_signature: Spec | None) -> None:
    def plain(variables: Sequence[KerasVariable]) -> list[tf.Variable]:
        return [tf.Variable(v.numpy(), trainable=v.trainable, name=v.path) for v in variables]

    trainable, other = plain(model.trainable_variables), plain(model.non_trainable_variables)

    def serve(x: Nest) -> Nest:
        return model.stateless_call(trainable, other, x, **training_argument(model, False))[0]

    archive = keras.export.ExportArchive()
    held: dict[int, Any] = {}  # of a model too, but TensorFlow finds nothing in its lists
    for layer in layers_of(model):
        held |= {id(one): one for one in tf.train.TrackableView(layer).descendants()}
    for one in held.values():
        if isinstance(one, tf.saved_model.experimental.TrackableResource):  # such as a table with a vocabulary
            archive.track(one)
    archive.add_variable_collection("trainable_variables", trainable)
    archive.add_variable_collection("non_trainable_variables", other)
    archive.add_variable_collection("variables", [*trainable, *other])
    archive.add_endpoint("serve", serve, [_inputs(model) if input_signature is None else input_signature])
    try:
        archive.write_out(folder, verbose=False)
    except AssertionError as error:
        raise StepError(
            f"The model {model.name!r} computes with a table, or another resource of TensorFlow, that is not an "
            "attribute of a layer, so a SavedModel would not hold it. Make it one (self.table = table), and not an "
            f"element of a list or dict. TensorFlow says: {error}"
        ) from error


def _inputs(model: KerasModel) -> Spec:
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise StepError(
            f"The model {model.name!r} ({type(model).__name__}) does not say what its inputs are. Say what they are: "
            "export(..., input_signature=tf.TensorSpec([None, 28, 28, 1], tf.float32)); a dict or list of them for "
            f"several. A {KERAS} file needs none."
        )
    return inputs[0] if isinstance(model, keras.Sequential) else model.input
