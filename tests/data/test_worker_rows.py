"""Which rows each worker reads; test_preparation.py has every kind of recipe on several workers."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from recipe_helpers import contexts

from mirrorkit import batching, data
from mirrorkit.data import own_rows


@given(st.integers(1, 300), st.integers(1, 8), st.integers(1, 4))
def test_a_worker_has_the_rows_of_its_replicas(size, workers, each):
    sizes = batching.per_replica_sizes(size, workers * each)
    for worker, context in enumerate(contexts(workers, each)):
        first = sum(sizes[: worker * each])
        wanted = (first, first + sum(sizes[worker * each : (worker + 1) * each])) if min(sizes) else (0, size)
        assert own_rows(size, context) == wanted
    assert own_rows(size, None) == (0, size)


def noisy(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """An augmentation of a user's: other numbers for each image, which depend on how many it is given."""
    return tf.cast(images, tf.float32) + tf.random.stateless_uniform(tf.shape(images), seed)


def test_blocks_of_a_users_augmentation_have_the_same_seeds_on_every_worker():
    rng = np.random.default_rng(0)
    split = data.arrays(rng.integers(0, 256, (100, 6, 6, 3), dtype=np.uint8), np.arange(100))
    recipe = data.batches(split, global_batch_size=50, augment=[noisy])  # blocks from rows 0, 16, 32 and 48 on
    parts = [next(iter(recipe.dataset(input_context=context)))[0] for context in contexts(3, 1)]
    whole = next(iter(recipe.dataset()))[0]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    noise = whole - split.images[:50]
    assert not np.array_equal(noise[:16], noise[16:32]), "another seed for each block"


def test_a_map_sees_the_workers_own_rows_alone():
    split = data.arrays(np.zeros([12, 4, 4, 1], np.uint8), np.arange(12))
    seen: list[np.ndarray] = []

    def note(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        (y,) = tf.py_function(lambda value: seen.append(value.numpy()) or [value], [y], [y.dtype])
        return x, y

    recipe = data.batches(split, global_batch_size=6, map=note)
    recipe.dataset()  # looks at the map, once
    seen.clear()
    list(recipe.dataset(input_context=contexts(3, 1)[1]))
    assert sorted(np.concatenate(seen)) == [2, 3, 8, 9]
