"""TFRecord shards: nothing lost on the way, written whole or not at all, the same recipe as batches."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from record_helpers import SPLIT, collect, joined

from mirrorkit import data
from mirrorkit._keras import keras
from mirrorkit.errors import DataError


def assert_same(one: list, two: list) -> None:
    assert len(one) == len(two)
    tf.nest.map_structure(np.testing.assert_array_equal, one, two)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """100 examples whose x is their own number, in 5 shards."""
    folder = tmp_path_factory.mktemp("numbers")
    data.write_records(data.arrays(np.arange(100), np.arange(100) % 7), folder, shards=5)
    return folder


def order_of(recipe: data.Recipe, epoch: int = 0, start: int = 0) -> list[int]:
    return [int(i) for x, _ in recipe.dataset(epoch, start) for i in x.numpy().ravel()]


@pytest.mark.parametrize("gzip", [False, True])
@pytest.mark.parametrize("shards", [1, 8, 60])
def test_no_pixel_is_lost(tmp_path, shards, gzip):
    index = data.write_records(SPLIT, tmp_path, shards=shards, gzip=gzip)
    recipe = data.records(tmp_path, global_batch_size=10)
    got = collect(recipe.dataset())
    assert [len(y) for _, y in got] == [10, 10, 10, 10, 10, 3]
    assert (recipe.num_examples, recipe.steps_per_epoch, recipe.num_classes) == (53, 6, 10)
    x, y = joined(got)
    assert (x.dtype, y.dtype) == (np.uint8, np.int64)
    if shards <= 16:
        np.testing.assert_array_equal(x, SPLIT.images)
        np.testing.assert_array_equal(y, SPLIT.labels)
    else:
        assert {image.tobytes() for image in x} == {image.tobytes() for image in SPLIT.images}
    written = sorted(path.name for path in tmp_path.iterdir())
    assert len(written) == min(shards, 53) + 1
    assert index.name in written


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_dtype_and_structure_comes_back_bit_for_bit(tmp_path_factory, draws):
    rng = np.random.default_rng(draws.draw(st.integers(0, 99)))
    dtypes = st.sampled_from(["uint8", "int8", "uint16", "int32", "int64", "float16", "float32", "float64", "bool"])
    count = draws.draw(st.integers(1, 12))

    def array() -> np.ndarray:
        shape = (count, *draws.draw(st.lists(st.integers(1, 3), max_size=3)))
        return (rng.standard_normal(shape) * 50).astype(draws.draw(dtypes))

    x = {"a": array(), "b": array()} if draws.draw(st.booleans()) else array()
    weight = rng.random(count) if draws.draw(st.booleans()) else None
    split = data.arrays(x, rng.standard_normal((count, 2)), sample_weight=weight)
    folder = tmp_path_factory.mktemp("any")
    data.write_records(split, folder, shards=3)
    recipe = data.records(folder, global_batch_size=draws.draw(st.integers(1, count)))
    got = joined(collect(recipe.dataset()))
    tf.nest.map_structure(np.testing.assert_array_equal, got, split.as_element())
    assert [t.dtype for t in tf.nest.flatten(got)] == [t.dtype for t in tf.nest.flatten(split.as_element())]


def test_a_generator_is_written_as_it_comes(tmp_path):
    examples = ((np.full((2, 2), i, np.float32), i % 3) for i in range(7))
    data.write_records(examples, tmp_path, shards=2, prefix="train")
    recipe = data.records(tmp_path / "train*", global_batch_size=7, one_hot=True)
    ((x, y),) = collect(recipe.dataset())
    np.testing.assert_array_equal(x[:, 0, 0], range(7))
    np.testing.assert_array_equal(y, data.one_hot(np.arange(7) % 3, 3))


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 100), st.integers(1, 120), st.booleans(), st.integers(0, 3), st.integers(0, 30), st.booleans())
def test_every_example_once_and_start_equals_skip(numbers, size, buffer, shuffle, epoch, start, drop):
    recipe = data.records(numbers, global_batch_size=size, shuffle=shuffle, shuffle_buffer=buffer, drop_remainder=drop)
    batches = collect(recipe.dataset(epoch))
    kept = 100 // size * size if drop else 100
    assert len(batches) == recipe.steps_per_epoch
    x, y = joined(batches)
    assert len(set(x)) == len(x) == kept
    np.testing.assert_array_equal(y, x % 7)
    start = min(start, recipe.steps_per_epoch)
    assert_same(collect(recipe.dataset(epoch, start)), batches[start:])


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else(numbers):
    def order(epoch=1, seed=3):
        return order_of(data.records(numbers, global_batch_size=9, shuffle=True, shuffle_buffer=30, seed=seed), epoch)

    first = order()
    keras.utils.set_random_seed(99)
    assert order() == first
    assert order(epoch=0) != first
    assert order(seed=4) != first
    assert first != sorted(first)


def test_epochs_do_not_mix_the_same_neighbours_only(numbers):
    recipe = data.records(numbers, global_batch_size=20, shuffle=True, shuffle_buffer=20)
    firsts = {frozenset(order_of(recipe, epoch)[:20]) for epoch in range(6)}
    assert len(firsts) > 3


def test_each_block_is_shuffled_in_its_own_way(tmp_path):
    data.write_records(data.arrays(np.arange(100), np.zeros(100)), tmp_path, shards=1)
    order = order_of(data.records(tmp_path, global_batch_size=10, shuffle=True, shuffle_buffer=50))
    assert sorted(order[:50]) == list(range(50))
    assert [i + 50 for i in order[:50]] != order[50:]


def test_it_gives_what_batches_gives(tmp_path):
    data.write_records(SPLIT, tmp_path, shards=4)
    options = {
        "global_batch_size": 10,
        "map": lambda x, y: (255 - x, (y + 1) % 10),
        "one_hot": True,
    }
    shards, memory = data.records(tmp_path, **options), data.batches(SPLIT, **options)
    assert isinstance(shards, data.Recipe)
    assert isinstance(memory, data.Recipe)
    assert shards.element_spec == memory.element_spec
    assert shards.steps_per_epoch == memory.steps_per_epoch
    assert_same(collect(shards.dataset(2, start=1)), collect(memory.dataset(2, start=1)))


@pytest.mark.parametrize("shuffle", [False, True])
def test_augmentation_depends_on_seed_epoch_and_position_alone(tmp_path, shuffle):
    data.write_records(SPLIT, tmp_path, shards=4)

    def made(seed=1, pixels=4, **position):
        augment = [data.augment.pad_and_crop(pixels)] if pixels else []
        recipe = data.records(tmp_path, global_batch_size=10, augment=augment, seed=seed, shuffle=shuffle)
        return collect(recipe.dataset(**position))

    first = made(epoch=2)
    keras.utils.set_random_seed(123)
    assert_same(made(epoch=2), first)
    assert_same(made(epoch=2, start=3), first[3:])
    for other in (made(epoch=3), made(seed=2, epoch=2), made(epoch=2, pixels=0)):
        assert (other[0][0] != first[0][0]).any()


def test_two_batches_draw_different_numbers(tmp_path):
    image = SPLIT.images[0]
    data.write_records(((image, i) for i in range(32)), tmp_path)
    recipe = data.records(tmp_path, global_batch_size=16, augment=[data.augment.pad_and_crop(4)])
    one, two = (x for x, _ in collect(recipe.dataset()))
    assert (one != two).any()


def test_an_interrupted_writer_leaves_no_set(tmp_path):
    def examples():
        for i in range(20):
            yield np.zeros(3), i
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.write_records(examples(), tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="no TFRecord shards"):
        data.records(tmp_path, global_batch_size=4)


def test_a_writer_killed_before_its_index_leaves_no_set_that_reads_as_whole(tmp_path):
    data.write_records(SPLIT, tmp_path, shards=2).unlink()
    with pytest.raises(DataError, match="need their index"):
        data.records(tmp_path, global_batch_size=4)
    data.write_records(SPLIT, tmp_path, shards=3)  # and it does not stand in the way of the next
    assert data.records(tmp_path, global_batch_size=4).num_examples == 53


def test_a_set_is_not_overwritten(tmp_path):
    index = data.write_records(SPLIT, tmp_path, shards=2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DataError, match="is there already"):
        data.write_records(SPLIT[:5], tmp_path, shards=2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert index in before


@pytest.mark.parametrize(
    ("examples", "options", "words"),
    [
        ([], {}, "no examples"),
        ([(np.zeros(3), 0), (np.zeros(4), 0)], {}, "example 1 is"),
        ([(np.zeros(3), 0), (np.zeros(3, np.float32), 0)], {}, "example 1 is"),
        ([(np.zeros(3), 0), (np.zeros(3), 5)], {"num_classes": 5}, "example 1 has the label 5"),
        ([(np.zeros(3), -1)], {}, "example 0 has the label -1"),
        ([np.zeros(3)], {}, "should be a tuple"),
        ([("text", 0)], {}, "use one of uint8"),
        ([(np.zeros(3), 0)], {"shards": 0}, "at least 1"),
    ],
)
def test_bad_examples_are_refused_and_leave_nothing(tmp_path, examples, options, words):
    with pytest.raises(DataError, match=words):
        data.write_records(examples, tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_damage_to_a_set_is_named(tmp_path):
    index = data.write_records(SPLIT, tmp_path, shards=2)
    shard = tmp_path / "data-00001-of-00002.tfrecord"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(DataError, match=rf"{shard.name} should hold {len(content)} bytes; found {len(content) - 1}"):
        data.records(tmp_path, global_batch_size=4)
    shard.unlink()
    with pytest.raises(DataError, match=rf"{shard.name} should hold .* missing"):
        data.records(tmp_path, global_batch_size=4)
    index.write_text(index.read_text()[:50])
    with pytest.raises(DataError, match=rf"{index.name} is damaged"):
        data.records(tmp_path, global_batch_size=4)
    index.write_text(json.dumps({"format": 99}))
    with pytest.raises(DataError, match="format 99"):
        data.records(tmp_path, global_batch_size=4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"global_batch_size": 0}, "at least 1"),
        ({"global_batch_size": 101}, "the set holds 100"),
        ({"seed": -1}, "seed=-1"),
        ({"shuffle_buffer": 0}, "shuffle_buffer=0"),
        ({"augment": [data.augment.flip()]}, r"images \[N, H, W, C\]"),
        ({"num_examples": 5}, "leave decode"),
    ],
)
def test_bad_arguments_are_refused(numbers, options, words):
    with pytest.raises(DataError, match=words):
        data.records(numbers, **{"global_batch_size": 8, **options})


def test_missing_places_are_named(tmp_path):
    with pytest.raises(DataError, match="nothing-here"):
        data.records(tmp_path / "nothing-here", global_batch_size=2)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_set(tmp_path, run_python):
    code = """
        import resource
        import mirrorkit as mk
        import numpy as np

        image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        mk.data.write_records(((image, i % 10) for i in range(COUNT)), FOLDER, shards=4)
        recipe = mk.data.records(FOLDER, global_batch_size=100, shuffle=True, shuffle_buffer=500, prefetch=2)
        assert sum(len(y) for epoch in range(2) for _, y in recipe.dataset(epoch)) == 2 * COUNT
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    """
    peaks = []
    for count in (2_000, 25_000):  # 25 MB and 307 MB of pixels
        result = run_python(code.replace("COUNT", str(count)).replace("FOLDER", repr(str(tmp_path / str(count)))))
        peaks.append(int(result.stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 150, peaks
