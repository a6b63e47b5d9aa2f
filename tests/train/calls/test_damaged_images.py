"""An image file that cannot be decoded: the loop names it, with the reason, in training, evaluation and prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import DataError


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tf.io.encode_jpeg(np.zeros((40, 40, 3), np.uint8)).numpy()[:200], "Invalid JPEG data"),
        (b"GIF of a cat", "GIF"),
        (b"", "Input is empty|Unknown image file format"),
        (None, "No such file"),
    ],
    ids=["cut short", "damaged", "empty", "gone"],
)
@pytest.mark.parametrize("task", ["fit", "evaluate", "predict"])
def test_a_loop_names_the_file(content, words, task, tmp_path, strategy_of):
    strategy = strategy_of("mirrored", 2)
    paths = [str(tmp_path / f"{i} [x].png") for i in range(9)]
    for path in paths:
        Path(path).write_bytes(tf.io.encode_png(np.zeros((6, 5, 3), np.uint8)).numpy())
    with strategy.scope():
        model = keras.Sequential([keras.Input((6, 5, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
        optimizer = keras.optimizers.SGD(0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = mk.train.Loop(strategy, mk.train.Step(model, optimizer, loss=loss))
    labels = np.arange(9) % 3
    recipe = mk.data.image_folder(paths, labels=labels, image_size=(6, 5), global_batch_size=2)
    Path(paths[8]).unlink()  # in the last batch
    if content is not None:
        Path(paths[8]).write_bytes(content)
    with pytest.raises(DataError, match="skip_corrupt=True") as raised:
        getattr(loop, task)(recipe, verbose=0) if task == "fit" else getattr(loop, task)(recipe)
    message = str(raised.value)
    assert message.startswith(f"{paths[8]} cannot be read, or decoded as an image: ")
    assert any(word in message for word in words.split("|"))
    assert len(message.splitlines()) == 1
