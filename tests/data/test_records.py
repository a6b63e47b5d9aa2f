"""TFRecord shards: nothing lost on the way, written whole or not at all, the same recipe as batches."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorkit import data
from mirrorkit._keras import keras
from mirrorkit.errors import DataError

SPLIT = data.synthetic((16, 16, 3), train=53, test=1).train


def collect(dataset: tf.data.Dataset) -> list:
    return [tf.nest.map_structure(lambda t: t.numpy(), element) for element in dataset]


def joined(batches: list):
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches)


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


def write_foreign(path, images, labels, *, gzip=False, encode=tf.io.encode_png):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), "GZIP" if gzip else "") as writer:
        for image, label in zip(images, labels, strict=True):
            feature = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encode(image).numpy()])),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


@pytest.fixture(params=[False, True], ids=["plain", "gzip"])
def foreign(tmp_path, request):
    for i, part in enumerate((slice(0, 20), slice(20, 53))):
        path = tmp_path / "set" / f"train-{i:05d}-of-00002.tfrecord"
        write_foreign(path, SPLIT.images[part], SPLIT.labels[part], gzip=request.param)
    return tmp_path / "set"


def test_shards_from_elsewhere(foreign):
    recipe = data.records(foreign / "train-*", global_batch_size=20, shuffle=True, num_classes=10, one_hot=True)
    assert (recipe.num_examples, recipe.counts) == (53, (20, 33))
    x, y = joined(collect(recipe.dataset()))
    want = sorted(zip((image.tobytes() for image in SPLIT.images), SPLIT.labels, strict=True))
    assert sorted(zip((image.tobytes() for image in x), y.argmax(1), strict=True)) == want
    assert [t.shape.as_list() for t in recipe.element_spec] == [[None, 16, 16, 3], [None, 10]]
    assert data.records(foreign, global_batch_size=20, num_examples=53).steps_per_epoch == 3


def test_shards_from_elsewhere_with_a_decode_of_ones_own(foreign):
    def decode(serialized):
        spec = {"image/class/label": tf.io.FixedLenFeature([], tf.int64)}
        label = tf.io.parse_single_example(serialized, spec)["image/class/label"]
        return tf.cast(label, tf.float32), label

    x, y = joined(collect(data.records(foreign, global_batch_size=9, decode=decode).dataset()))
    np.testing.assert_array_equal(x, y)
    assert sorted(y) == sorted(SPLIT.labels)


def test_bad_shards_from_elsewhere_are_named(foreign):
    with pytest.raises(DataError, match=r"holds labels 0 \.\. 9; they must lie in 0 \.\. 4"):
        data.records(foreign, global_batch_size=5, num_classes=5)
    with pytest.raises(DataError, match="pass num_classes="):
        data.records(foreign, global_batch_size=5, one_hot=True)
    last = foreign / "train-00001-of-00002.tfrecord"
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.raises(DataError, match=rf"{last.name} is cut short or damaged after \d+ examples"):
        data.records(foreign, global_batch_size=5)
    last.unlink()
    with pytest.raises(DataError, match="train should have 2 shards; number 1 is missing"):
        data.records(foreign, global_batch_size=5)
    (foreign / "train-00000-of-00002.tfrecord").write_bytes(b"no records at all, just some text")
    with pytest.raises(DataError, match=r"train-00000-of-00002\.tfrecord is damaged"):
        data.records(foreign / "*", global_batch_size=5)


def test_several_sets_in_a_folder_are_told_apart(foreign):
    write_foreign(foreign / "test-00000-of-00001.tfrecord", SPLIT.images[:4], SPLIT.labels[:4])
    with pytest.raises(DataError, match="holds several sets: test, train"):
        data.records(foreign, global_batch_size=2)
    for prefix in ("a", "b"):
        data.write_records(SPLIT, foreign, prefix=prefix)
    with pytest.raises(DataError, match=r"several sets: a\.index\.json, b\.index\.json"):
        data.records(foreign, global_batch_size=2)
    assert data.records(foreign / "b.index.json", global_batch_size=2).num_examples == 53


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


CIFAR_SHARDS = os.environ.get("MIRRORKIT_CIFAR_SHARDS")


@pytest.mark.slow
@pytest.mark.skipif(not CIFAR_SHARDS, reason="needs CIFAR-10 as TFRecord shards: set MIRRORKIT_CIFAR_SHARDS")
def test_real_shards():
    recipe = data.records(f"{CIFAR_SHARDS}/train-*", global_batch_size=500, shuffle=True, num_classes=10)
    assert recipe.num_examples == 50_000
    x, y = joined(collect(recipe.dataset()))
    assert x.shape == (50_000, 32, 32, 3)
    assert (np.bincount(y) == 5000).all()
