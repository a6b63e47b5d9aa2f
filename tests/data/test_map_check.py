"""A map that looks at other rows of its batch is refused, whatever it draws; one of single examples is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit import data
from mirrorkit.errors import RecipeError

RNG = np.random.default_rng(0)
SPLIT = data.arrays(RNG.normal(size=(100, 6)).astype(np.float32), RNG.integers(0, 3, 100))
DRAWS = tf.random.Generator.from_seed(1)
WEIGHTS = tf.constant(RNG.normal(size=(6, 300)).astype(np.float32))


def mixup(x, y):
    other = tf.random.shuffle(tf.range(tf.shape(x)[0]))
    share = tf.random.uniform([])
    return share * x + (1 - share) * tf.gather(x, other), y


OF_THE_BATCH = {
    "mixup": mixup,
    "centring": lambda x, y: (x - tf.reduce_mean(x, 0), y),
    "reversed labels": lambda x, y: (x, y[::-1]),
    "a shift": lambda x, y: (tf.roll(x, 1, 0), y),
    "the number of rows": lambda x, y: (x / tf.cast(tf.shape(x)[0], x.dtype), y),
    "numbers by the place in the batch": lambda x, y: (x + tf.random.stateless_normal(tf.shape(x), [1, 2]), y),
    "half precision": lambda x, y: (tf.cast(x - tf.reduce_mean(x, 0), tf.bfloat16), y),
    "a part of a dict": lambda x, y: ({"a": x, "b": tf.argsort(x, 0)}, y),
    "text": lambda x, y: (tf.strings.as_string(tf.cumsum(x)), y),
}
OF_AN_EXAMPLE = {
    "a cast": lambda x, y: (tf.cast(x, tf.float16), y),
    "by the row": lambda x, y: ((x - tf.reduce_mean(x, 1, keepdims=True)) / tf.math.reduce_std(x, 1)[:, None], y),
    "products, rounded by the number of rows": lambda x, y: (tf.exp(tf.matmul(x, WEIGHTS)), tf.one_hot(y, 3)),
    "nan": lambda x, y: (tf.math.log(x), y),
    "a dict": lambda x, y: ({"a": x, "b": x > 0}, y),
    "weights": lambda x, y: (x, y, tf.cast(y, tf.float32)),
    "noise": lambda x, y: (x + tf.random.normal(tf.shape(x)), y),
    "noise of a generator": lambda x, y: (x + DRAWS.normal(tf.shape(x)), y),
    "noise of numpy": lambda x, y: (x + tf.numpy_function(lambda: np.float32(RNG.normal()), [], tf.float32), y),
}


@pytest.mark.parametrize("name", OF_THE_BATCH)
def test_a_map_that_looks_at_other_rows_is_refused(name):
    recipe = data.batches(SPLIT, global_batch_size=32, map=OF_THE_BATCH[name])
    for _ in range(2):  # a second use is no way around it
        with pytest.raises(RecipeError, match="different result for a row"):
            recipe.dataset()


@pytest.mark.parametrize("name", OF_AN_EXAMPLE)
def test_a_map_of_single_examples_is_not_and_one_that_draws_is_named(name, caplog):
    data.batches(SPLIT, global_batch_size=32, map=OF_AN_EXAMPLE[name]).dataset()
    assert ["map draws random numbers" in text for text in caplog.messages] == [True] * name.startswith("noise")


@pytest.mark.parametrize("made", ["batches", "cached", "resident", "records", "image_folder"])
def test_every_recipe_looks(made, tmp_path: Path):
    seen = []

    def centre(x, y):
        seen.append(x.shape[0])
        x = tf.cast(x, tf.float32)
        return x - tf.reduce_mean(x, 0), y

    if made == "records":
        recipe = data.records(data.write_records(SPLIT, tmp_path), global_batch_size=32, shuffle=True, map=centre)
    elif made == "image_folder":
        files = [tmp_path / f"{number}.png" for number in range(40)]
        for file in files:
            file.write_bytes(tf.io.encode_png(RNG.integers(0, 255, (4, 4, 3), np.uint8)).numpy())
        recipe = data.image_folder(files, labels=SPLIT.labels[:40], image_size=(4, 4), global_batch_size=32, map=centre)
    elif made == "cached":
        recipe = data.batches(SPLIT, global_batch_size=32, map=centre, cache=True)
    else:
        recipe = getattr(data, made)(SPLIT, global_batch_size=32, map=centre)
    for use in (lambda: recipe.epochs(2), lambda: recipe.dataset(), lambda: recipe.element_spec):
        with pytest.raises(RecipeError, match="different result for a row"):
            use()
    assert max(seen) == 32


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda x, y: (x[::2], y[::2]), RecipeError, r"32 examples .* \[16, 6\]"),
        (lambda x, y: (x, y, tf.constant(2.0)), RecipeError, r"32 examples .* \[\]"),
        (lambda x, y: (tf.reshape(x, [32, 2, 3]), y), RecipeError, "fails on 16"),
        (lambda x, y: (x + tf.zeros([7]), y), ValueError, "Dimensions must be equal"),  # it says so itself
        (lambda x, y: x, RecipeError, "sample_weight"),
        (lambda x, y: (x, y, y, y), RecipeError, "sample_weight"),
        (lambda x, y: None, RecipeError, "sample_weight"),
    ],
)
def test_a_map_that_makes_no_batch_is_refused(function, error, words):
    with pytest.raises(error, match=words):
        data.batches(SPLIT, global_batch_size=32, map=function).dataset()


def test_the_seeds_of_the_process_stay():
    tf.random.set_seed(5)
    wanted = tf.random.uniform([3]).numpy()
    tf.random.set_seed(5)
    data.batches(SPLIT, global_batch_size=32, map=OF_AN_EXAMPLE["noise"]).dataset()
    np.testing.assert_array_equal(tf.random.uniform([3]), wanted)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_small_set(count):
    recipe = data.batches(SPLIT[:count], global_batch_size=2, map=OF_AN_EXAMPLE["by the row"])
    assert len(list(recipe.dataset())) == -(-count // 2)
