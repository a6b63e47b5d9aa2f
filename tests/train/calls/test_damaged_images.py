"""An image file that cannot be decoded: the loop names it, with the reason, in training, evaluation and prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import DataError

CONTENTS = {  # of the file, and words of the reason
    "cut short": (tf.io.encode_jpeg(np.zeros((40, 40, 3), np.uint8)).numpy()[:200], "Invalid JPEG data"),
    "damaged": (b"GIF of a cat", "GIF"),
    "empty": (b"", "Input is empty|Unknown image file format"),
    "gone": (None, "No such file"),
}


@pytest.fixture(scope="module")
def loop(strategy_of):
    """A classifier of small pictures, compiled once."""
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6, 5, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
        optimizer = keras.optimizers.SGD(0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss))


@pytest.mark.parametrize(
    ("kind", "task"), [*((kind, "fit") for kind in CONTENTS), ("cut short", "evaluate"), ("gone", "predict")]
)
def test_a_loop_names_the_file(kind, task, tmp_path, loop):
    content, words = CONTENTS[kind]
    paths = [str(tmp_path / f"{i} [x].png") for i in range(9)]
    for path in paths:
        Path(path).write_bytes(tf.io.encode_png(np.zeros((6, 5, 3), np.uint8)).numpy())
    labels = np.arange(9) % 3
    recipe = mk.data.image_folder(paths, labels=labels, image_size=(6, 5), global_batch_size=2)
    Path(paths[8]).unlink()  # in the last batch
    if content is not None:
        Path(paths[8]).write_bytes(content)
    with pytest.raises(DataError, match="skip_corrupt=True") as raised:
        getattr(loop, task)(recipe, **({"verbose": 0} if task == "fit" else {}))
    message = str(raised.value)
    assert message.startswith(f"{paths[8]} cannot be read, or decoded as an image: ")
    assert any(word in message for word in words.split("|"))
    assert len(message.splitlines()) == 1
