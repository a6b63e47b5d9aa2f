"""batches: every example once per epoch, the order a pure function of (seed, epoch, position), start, map, cache."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st
from recipe_helpers import assert_same, collect, contexts, numbered, order_of

from mirrorkit import data
from mirrorkit.errors import DataError, RecipeError


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_every_example_comes_once_in_batches_of_the_size_asked_for(draws):
    count = draws.draw(st.integers(1, 40))
    size = draws.draw(st.integers(1, count))
    shuffle, drop = draws.draw(st.booleans()), draws.draw(st.booleans())
    seed, epoch = draws.draw(st.integers(0, 5)), draws.draw(st.integers(0, 3))
    split = numbered(count)
    recipe = data.batches(split, global_batch_size=size, shuffle=shuffle, seed=seed, drop_remainder=drop)
    got = collect(recipe.dataset(epoch))
    sizes = [len(x) for x, _ in got]
    seen = np.concatenate([x.ravel() for x, _ in got])
    kept = count // size * size if drop else count
    assert len(sizes) == recipe.steps_per_epoch == recipe.dataset(epoch).cardinality()
    assert sizes[:-1] == [size] * (len(sizes) - 1)
    assert sum(sizes) == kept
    assert len(set(seen)) == kept
    assert recipe.num_examples == count
    np.testing.assert_array_equal(np.concatenate([y for _, y in got]), split.labels[seen])
    np.testing.assert_array_equal(seen, recipe.order(epoch)[:kept])
    if not shuffle:
        np.testing.assert_array_equal(seen, np.arange(kept))
    start = draws.draw(st.integers(0, recipe.steps_per_epoch))
    assert_same(collect(recipe.dataset(epoch, start)), got[start:])


@pytest.mark.parametrize(("count", "drop", "batch"), [(40, False, 8), (41, True, 8), (41, False, None)])
def test_batches_of_equal_size_have_a_static_one(count, drop, batch):
    for shuffle in (False, True):
        recipe = data.batches(numbered(count), global_batch_size=8, drop_remainder=drop, shuffle=shuffle)
        x, y = recipe.element_spec
        assert (x.shape.as_list(), y.shape.as_list()) == ([batch, 1], [batch])
        _, y = recipe.dataset(input_context=contexts(2)[0]).element_spec
        assert y.shape.as_list() == [batch and batch // 2]


def test_map_is_run_on_batches_and_cache_runs_it_once_with_the_same_result():
    calls = []

    def double(x, y):
        tf.py_function(lambda part: calls.extend(part.numpy().ravel().tolist()), [x], [])
        return 2.0 * tf.cast(x, tf.float32), y + 1

    plain, cached = (
        data.batches(numbered(10), global_batch_size=4, shuffle=True, map=double, cache=cache)
        for cache in (False, True)
    )
    plain.dataset()  # looks at the map, once
    calls.clear()
    want = [collect(plain.dataset(epoch)) for epoch in (0, 1)]
    assert sorted(calls) == sorted(2 * list(range(10)))
    calls.clear()
    cached._check_map()
    calls.clear()
    assert cached.element_spec == cached.dataset().element_spec, "as a Loop asks for it, before the first epoch"
    for epoch in (0, 1):
        assert_same(collect(cached.dataset(epoch)), want[epoch])
    assert sorted(calls) == list(range(10))
    x, y = want[0][0]
    np.testing.assert_array_equal((x / 2).ravel() % 7, y - 1)


def test_map_may_use_python_control_flow_as_in_dataset_map():
    def sign(x, y):
        if tf.shape(x)[1] == 1:
            x = -x
        return x, y

    assert order_of(data.batches(numbered(6), global_batch_size=3, map=sign)) == [0, -1, -2, -3, -4, -5]


SMALL = data.synthetic((16, 16, 3), train=50, test=1).train
AUGMENT = [data.augment.pad_and_crop(4)]


@pytest.mark.parametrize(
    ("split", "options", "words"),
    [
        ((SMALL.images, SMALL.labels), {}, "found tuple"),
        (numbered(5), {"augment": AUGMENT}, r"found shape \[5, 1\]"),
        (data.arrays(SMALL.images, (SMALL.labels,)), {"one_hot": True}, "one_hot"),
        (data.arrays(SMALL.images, np.zeros(50)), {"one_hot": True}, "one_hot"),
    ],
)
def test_what_does_not_fit_together_is_refused(split, options, words):
    with pytest.raises(RecipeError, match=words):
        data.batches(split, global_batch_size=5, **options).dataset()


@pytest.mark.slow  # a process of its own
def test_an_iterator_does_not_copy_the_set(run_python):
    """tf.data's rewrites would: once for each dataset in a pipeline."""
    result = run_python(
        """
        import json, re
        from pathlib import Path
        import numpy as np
        import mirrorkit as mk
        recipe = mk.data.batches(mk.data.arrays(np.ones((100, 2**20), np.uint8), np.ones(100)), global_batch_size=1)
        recipe.element_spec  # makes the tensors

        def megabytes(what):
            return int(re.search(what + r":\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1e3

        grown = []
        for dataset in (recipe.dataset(1), recipe.epochs(8)):
            Path("/proc/self/clear_refs").write_text("5")  # measure the peak from here on
            before = megabytes("VmRSS")
            next(iter(dataset))
            grown.append(megabytes("VmHWM") - before)
        print(json.dumps(grown))
        """
    )
    assert max(result.json()) < 50  # of the set's 105


def test_host_tensors_are_the_whole_split_and_made_once():
    recipe = data.batches(SMALL, global_batch_size=8)
    tf.nest.map_structure(np.testing.assert_array_equal, recipe.host_tensors, SMALL.as_element())
    assert recipe.host_tensors[0] is recipe.host_tensors[0]
    mapped = data.batches(SMALL, global_batch_size=8, map=lambda x, y: (255 - x, y), cache=True)
    np.testing.assert_array_equal(mapped.host_tensors[0], 255 - SMALL.images)


def test_the_data_stays_on_the_host_inside_a_strategy_or_device_scope():
    recipe = data.batches(SMALL, global_batch_size=8, shuffle=True)
    with tf.device("CPU:1"):
        got = collect(recipe.dataset())
    assert "CPU:0" in recipe.host_tensors[0].device
    assert_same(got, collect(data.batches(SMALL, global_batch_size=8, shuffle=True).dataset()))


def test_a_set_larger_than_the_memory_is_refused_at_once(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**42)  # no block of it is on the disk
    large = np.memmap(path, np.uint8, "r", shape=(64, 2**36))
    split = data.arrays(large, np.zeros(64, np.int64))
    for recipe in (data.batches, data.resident):
        with pytest.raises(DataError, match=r"4,096\.0 GiB"):
            recipe(split, global_batch_size=2).dataset()
    assert len(split[:3].inputs) == 3
