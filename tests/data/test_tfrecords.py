"""records: nothing is lost on the way, the same recipe as batches, from mirrorkit's own files and from other ones."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st
from recipe_helpers import SPLIT, assert_workers_read_the_same, collect, joined, write_foreign

from mirrorkit import data
from mirrorkit.errors import DataError, FileError, RecipeError


@pytest.mark.parametrize(("num_files", "gzip"), [(8, True), (60, False)])
def test_no_pixel_is_lost(tmp_path, num_files, gzip):
    index = data.write_records(SPLIT, tmp_path, num_files=num_files, gzip=gzip)
    recipe = data.records(tmp_path, global_batch_size=10)
    got = collect(recipe.dataset())
    assert [len(y) for _, y in got] == [10, 10, 10, 10, 10, 3]
    assert (recipe.num_examples, recipe.steps_per_epoch, recipe.num_classes) == (53, 6, 10)
    x, y = joined(got)
    assert (x.dtype, y.dtype) == (np.uint8, np.int64)
    if num_files <= 16:
        np.testing.assert_array_equal(x, SPLIT.images)
        np.testing.assert_array_equal(y, SPLIT.labels)
    else:
        assert {image.tobytes() for image in x} == {image.tobytes() for image in SPLIT.images}
    written = sorted(path.name for path in tmp_path.iterdir())
    assert len(written) == min(num_files, 53) + 1
    assert index.name in written


@settings(max_examples=4, deadline=None)
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
    labels = None if weight is None and draws.draw(st.booleans()) else rng.standard_normal((count, 2))
    split = data.arrays(x, labels, sample_weight=weight)
    folder = tmp_path_factory.mktemp("any")
    data.write_records(split, folder, num_files=3)
    recipe = data.records(folder, global_batch_size=draws.draw(st.integers(1, count)))
    got = joined(collect(recipe.dataset()))
    tf.nest.map_structure(np.testing.assert_array_equal, got, split.as_element())
    assert [t.dtype for t in tf.nest.flatten(got)] == [t.dtype for t in tf.nest.flatten(split.as_element())]


def test_a_generator_is_written_as_it_comes(tmp_path):
    examples = ((np.full((2, 2), i, np.float32), i % 3) for i in range(7))
    data.write_records(examples, tmp_path, num_files=2, prefix="train")
    recipe = data.records(tmp_path / "train*", global_batch_size=7, one_hot=True)
    ((x, y),) = collect(recipe.dataset())
    np.testing.assert_array_equal(x[:, 0, 0], range(7))
    np.testing.assert_array_equal(y, data.one_hot(np.arange(7) % 3, 3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shuffle_buffer": 0}, "shuffle_buffer"),
        ({"augment": [data.augment.flip()]}, "augment"),
        ({"num_examples": 5}, "decode"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, options, words):
    data.write_records(data.arrays(np.arange(9)), tmp_path)
    with pytest.raises(RecipeError, match=words):
        data.records(tmp_path, global_batch_size=8, **options)


@pytest.fixture
def foreign(tmp_path, request):
    for i, part in enumerate((slice(0, 20), slice(20, 53))):
        path = tmp_path / "set" / f"train-{i:05d}-of-00002.tfrecord"
        write_foreign(path, SPLIT.images[part], SPLIT.labels[part], gzip=getattr(request, "param", False))
    return tmp_path / "set"


both = pytest.mark.parametrize("foreign", [False, True], ids=["plain", "gzip"], indirect=True)


@both
def test_files_from_elsewhere(foreign):
    recipe = data.records(foreign / "train-*", global_batch_size=20, shuffle=True, num_classes=10, one_hot=True)
    assert (recipe.num_examples, recipe.counts) == (53, (20, 33))
    x, y = joined(collect(recipe.dataset()))
    want = sorted(zip((image.tobytes() for image in SPLIT.images), SPLIT.labels, strict=True))
    assert sorted(zip((image.tobytes() for image in x), y.argmax(1), strict=True)) == want
    assert [t.shape.as_list() for t in recipe.element_spec] == [[None, 16, 16, 3], [None, 10]]
    assert data.records(foreign, global_batch_size=20, num_examples=53).steps_per_epoch == 3
    # Of a last batch of 3 rows each of 4 workers reads all: the last worker more than its one row of the others.
    assert_workers_read_the_same(data.records(foreign, global_batch_size=10, shuffle=True), 0, 3, 4, 1)


@both
def test_a_first_file_without_examples_tells_nothing(foreign):
    packed = data.records(foreign, global_batch_size=20).compression
    write_foreign(foreign / "train-00000-of-00002.tfrecord", SPLIT.images[:0], SPLIT.labels[:0], gzip=bool(packed))
    recipe = data.records(foreign, global_batch_size=20)
    assert recipe.counts == (0, 33)
    np.testing.assert_array_equal(joined(collect(recipe.dataset()))[1], SPLIT.labels[20:])
    write_foreign(foreign / "train-00001-of-00002.tfrecord", SPLIT.images[:0], SPLIT.labels[:0], gzip=bool(packed))
    with pytest.raises(DataError, match="hold no example"):
        data.records(foreign, global_batch_size=20)


def test_fewer_classes_than_were_written_are_refused(tmp_path):
    data.write_records(data.arrays(np.zeros((9, 2)), np.arange(9)), tmp_path)
    with pytest.raises(RecipeError, match=r"num_classes=3 .* says 9"):
        data.records(tmp_path, global_batch_size=8, num_classes=3, one_hot=True)
    assert data.records(tmp_path, global_batch_size=8, num_classes=12).num_classes == 12


def test_the_order_in_words_tells_compressed_files_from_others(tmp_path):
    recipes = []
    for gzip in (False, True):
        data.write_records(data.arrays(np.arange(512)), tmp_path / str(gzip), num_files=4, gzip=gzip)
        recipes.append(data.records(tmp_path / str(gzip), global_batch_size=32, shuffle=True))
    plain, packed = recipes
    assert plain.order(0).tolist() != packed.order(0).tolist()
    assert plain.order_in_words != packed.order_in_words
    assert plain.as_written().order_in_words == packed.as_written().order_in_words


def test_files_from_elsewhere_with_a_decode_of_ones_own(foreign):
    def decode(serialized):
        spec = {"image/class/label": tf.io.FixedLenFeature([], tf.int64)}
        label = tf.io.parse_single_example(serialized, spec)["image/class/label"]
        return tf.cast(label, tf.float32), label

    x, y = joined(collect(data.records(foreign, global_batch_size=9, decode=decode).dataset()))
    np.testing.assert_array_equal(x, y)
    assert sorted(y) == sorted(SPLIT.labels)
    alone = data.records(foreign, global_batch_size=9, decode=lambda serialized: decode(serialized)[0])
    (x,) = joined(collect(alone.dataset()))
    np.testing.assert_array_equal(x, y)
    no_labels = data.records(foreign, global_batch_size=9, decode=alone.decode, num_classes=10, one_hot=True)
    with pytest.raises(Exception, match=r"one_hot.*no labels"):
        no_labels.dataset()


@both
def test_bad_files_from_elsewhere_are_named(foreign):
    with pytest.raises(DataError, match="pass num_classes="):
        data.records(foreign, global_batch_size=5, one_hot=True)
    last = foreign / "train-00001-of-00002.tfrecord"
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.raises(DataError, match=rf"{last.name} is cut short"):
        data.records(foreign, global_batch_size=5)
    last.unlink()
    with pytest.raises(DataError, match="number 1 is missing"):
        data.records(foreign, global_batch_size=5)
    (foreign / "train-00000-of-00002.tfrecord").write_bytes(b"no records at all, just some text")
    with pytest.raises(DataError, match=r"train-00000-of-00002\.tfrecord is damaged"):
        data.records(foreign / "*", global_batch_size=5)
    (foreign / "a-folder.tfrecord").mkdir()
    with pytest.raises(FileError, match=r"a-folder\.tfrecord cannot be read"):
        data.records(foreign / "a-*", global_batch_size=2)
    with pytest.raises(DataError, match="nothing-here"):
        data.records(foreign / "nothing-here", global_batch_size=2)


def test_verify_names_a_damaged_file(tmp_path):
    data.write_records(SPLIT, tmp_path, num_files=2)
    recipe = data.records(tmp_path, global_batch_size=4)
    recipe.verify()
    file = tmp_path / "data-00001-of-00002.tfrecord"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=rf"{file.name} is cut short"):
        recipe.verify()


def test_verify_names_a_copy_of_another_file(tmp_path):
    data.write_records(data.arrays(np.arange(20, dtype="float32")), tmp_path, num_files=2)
    first, second = sorted(tmp_path.glob("*.tfrecord"))
    second.write_bytes(first.read_bytes())  # of the same size, so that the index sees no difference
    with pytest.raises(DataError, match=rf"{second.name} is whole, but not"):
        data.records(tmp_path, global_batch_size=4).verify()


@both
def test_num_examples_of_several_files_are_compared_one_by_one(foreign):
    compression = data.records(foreign, global_batch_size=10).compression
    for wrong in ([33, 20], [20, 32]):
        with pytest.raises(DataError, match=r"found 53 \(\[20, 33\]\)" if compression else "found 53: 20, 33"):
            data.records(foreign, global_batch_size=10, num_examples=wrong).verify()
    data.records(foreign, global_batch_size=10, num_examples=[20, 33]).verify()
    data.records(foreign, global_batch_size=10, num_examples=53).verify()


def test_num_examples_of_gzip_files_is_taken_at_its_word(tmp_path):
    write_foreign(tmp_path / "one.tfrecord", SPLIT.images, SPLIT.labels, gzip=True)
    recipe = data.records(tmp_path, global_batch_size=10, num_examples=40)
    assert (recipe.num_examples, recipe.counts, recipe.steps_per_epoch) == (40, (40,), 4)
    for start in (0, 1, 4):
        assert len(collect(recipe.dataset(0, start))) == 4 - start


def test_num_examples_that_are_none_are_refused(foreign):
    for wrong in (0, -1, 1.5, "53", [53], [20, -1], [20, 33, 0]):
        with pytest.raises(RecipeError, match=r"num_examples=.* 2 files"):
            data.records(foreign, global_batch_size=10, num_examples=wrong)


def test_a_label_outside_the_classes_is_found_when_it_is_read(foreign):
    recipe = data.records(foreign, global_batch_size=5, num_classes=5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"label outside 0 \.\. 4"):
        collect(recipe.dataset())


@pytest.mark.slow
def test_memory_does_not_grow_with_the_set(tmp_path, run_python):
    code = """
        import resource
        import mirrorkit as mk
        import numpy as np

        image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        mk.data.write_records(((image, i % 10) for i in range(COUNT)), FOLDER, num_files=4)
        recipe = mk.data.records(FOLDER, global_batch_size=100, shuffle=True, shuffle_buffer=500, prefetch=2)
        assert sum(len(y) for epoch in range(2) for _, y in recipe.dataset(epoch)) == 2 * COUNT
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    """
    peaks = []
    for count in (2_000, 25_000):  # 25 MB and 307 MB of pixels
        result = run_python(code.replace("COUNT", str(count)).replace("FOLDER", repr(str(tmp_path / str(count)))))
        peaks.append(int(result.stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 150, peaks


@pytest.mark.slow
def test_real_files(cifar_shards):
    recipe = data.records(str(cifar_shards / "train-*"), global_batch_size=500, shuffle=True, num_classes=10)
    assert recipe.num_examples == 50_000
    x, y = joined(collect(recipe.dataset()))
    assert x.shape == (50_000, 32, 32, 3)
    assert (np.bincount(y) == 5000).all()
