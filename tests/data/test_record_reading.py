"""Records on several workers: together they read what one process reads; each decodes its rows alone."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st
from recipe_helpers import assert_same, assert_workers_read_the_same, collect, contexts, order_of

from mirrorkit import data
from mirrorkit._keras import keras
from mirrorkit.data import own_rows
from mirrorkit.data.order import BlockOrder
from mirrorkit.errors import DataError, RecipeError


def number_of(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    number = tf.strings.to_number(serialized, tf.int64)
    return number, number % 7


def write_numbers(folder, counts, compression: str = "") -> None:
    """Files from elsewhere, whose examples are the numbers from 0 on, of several lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for file, count in enumerate(counts):
        with tf.io.TFRecordWriter(str(folder / f"{file:03}.tfrecord"), compression) as writer:
            for number in range(first, first + count):
                writer.write(f"{number:0{number % 5 + 4}}".encode())
        first += count


@pytest.mark.slow
def test_whole_batches_of_which_every_worker_has_all_rows_before_a_last_one_that_is_shared(tmp_path):
    # 9 rows are 3 for each of 3 replicas and none for the fourth; 4 are one for each
    write_numbers(tmp_path, [2, 11], "")
    recipe = data.records(tmp_path / "*", decode=number_of, global_batch_size=9, shuffle=True)
    assert_workers_read_the_same(recipe, 0, 0, 4, 1)


@settings(max_examples=3, deadline=None)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    size=st.integers(1, 40),
    buffer=st.integers(1, 200),
    gzip=st.booleans(),
    shuffle=st.booleans(),
    drop=st.booleans(),
    workers=st.integers(1, 4),
    each=st.integers(1, 2),
    epoch=st.integers(0, 3),
    draws=st.data(),
)
def test_workers_together_read_what_one_process_reads(
    tmp_path_factory, counts, size, buffer, gzip, shuffle, drop, workers, each, epoch, draws
):
    folder = tmp_path_factory.mktemp("uneven")
    write_numbers(folder, counts, "GZIP" if gzip else "")
    recipe = data.records(
        folder / "*",
        decode=number_of,
        num_examples=counts,
        global_batch_size=min(size, sum(counts)),
        shuffle=shuffle,
        shuffle_buffer=buffer,
        drop_remainder=drop,
    )
    assert recipe.counts == tuple(counts)
    whole = collect(recipe.dataset(epoch))
    assert [len(y) for _, y in whole] == list(recipe.batch_sizes())
    read = sorted(np.concatenate([x for x, _ in whole]))
    assert (read == np.arange(sum(counts))).all() if len(read) == sum(counts) else len(set(read)) == len(read)
    start = draws.draw(st.integers(0, recipe.steps_per_epoch))
    assert_same(assert_workers_read_the_same(recipe, epoch, start, workers, each), whole[start:])


@pytest.mark.parametrize(("shuffle", "gzip"), [(False, False), (True, True)])
def test_each_worker_decodes_its_rows_alone(tmp_path, shuffle, gzip):
    write_numbers(tmp_path, [30, 17, 50, 9], "GZIP" if gzip else "")
    decoded: list[int] = []

    def decode(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        number, label = number_of(serialized)
        return tf.numpy_function(lambda n: (decoded.append(int(n)), n)[1], [number], tf.int64), label

    recipe = data.records(
        tmp_path, decode=decode, num_examples=[30, 17, 50, 9], global_batch_size=12, shuffle=shuffle, shuffle_buffer=36
    )
    every = []
    for context in contexts(3):
        decoded.clear()
        given_out = [int(n) for n, _ in collect(recipe.dataset(2, input_context=context)) for n in n]
        assert sorted(decoded) == sorted(given_out)
        assert len(decoded) == sum(end - first for first, end in (own_rows(n, context) for n in recipe.batch_sizes()))
        every += decoded
    assert sorted(every) == list(range(106))


def test_a_worker_opens_the_files_of_its_lanes_alone(tmp_path):
    """The other files are missing: whoever opened one would fail."""
    write_numbers(tmp_path, [20] * 8, "GZIP")
    recipe = data.records(tmp_path / "*", decode=number_of, num_examples=[20] * 8, global_batch_size=16, shuffle=True)
    own, _ = contexts(2)
    (window,) = BlockOrder([20] * 8, 16, (0, 0)).windows(0, 10, 10)
    others = set(window[:, 8:].ravel() // 20)
    assert len(others) == 4
    for file in others:
        (tmp_path / f"{file:03}.tfrecord").unlink()
    assert sum(len(y) for _, y in recipe.dataset(input_context=own)) == 80
    with pytest.raises(tf.errors.OpError, match="No such file"):
        list(recipe.dataset())


def test_a_start_reads_nothing_of_what_comes_before(tmp_path):
    """The bytes before are damaged: whoever read them would fail."""
    write_numbers(tmp_path, [400])
    recipe = data.records(tmp_path, decode=number_of, global_batch_size=10)
    whole = collect(recipe.dataset())
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[8] ^= 1  # in the header of the first example
    recipe.dataset(0, 20)  # looks at the headers
    file.write_bytes(content)
    assert_same(collect(recipe.dataset(0, 20)), whole[20:])
    with pytest.raises(tf.errors.OpError, match=f"{file} is cut short or damaged, at example 0 or"):
        list(recipe.dataset())


def test_what_the_order_depends_on(tmp_path):
    write_numbers(tmp_path, [40, 60, 80])

    def order(epoch=1, seed=4, size=20, buffer=90):
        options = {"global_batch_size": size, "shuffle_buffer": buffer, "seed": seed}
        return order_of(data.records(tmp_path, decode=number_of, shuffle=True, **options), epoch)

    first = order()
    keras.utils.set_random_seed(99)
    assert order() == first != sorted(first)
    assert order(buffer=40) != first
    write_numbers(tmp_path / "one stream", [30], "GZIP")
    options = {"decode": number_of, "num_examples": 30, "global_batch_size": 1, "shuffle": True}
    orders = [
        order_of(data.records(tmp_path / "one stream", seed=seed, **options), epoch)
        for seed, epoch in ((0, 1), (0, 2), (1, 1))
    ]
    assert len(set(map(tuple, orders))) == 3


def test_tensorflow_logs_nothing(tmp_path, capfd):
    """Such as "Tensor RefCount not reliable", for each slice of a vector that another operation takes apart."""
    write_numbers(tmp_path, [40, 65])
    list(data.records(tmp_path, decode=number_of, global_batch_size=10, shuffle=True).dataset())
    assert "RefCount" not in capfd.readouterr().err


def test_fewer_examples_than_was_said(tmp_path):
    write_numbers(tmp_path, [20, 20], "GZIP")
    recipe = data.records(tmp_path, decode=number_of, num_examples=[20, 30], global_batch_size=8, shuffle=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="fewer examples"):
        list(recipe.dataset())
    write_numbers(tmp_path / "plain", [20, 20])
    with pytest.raises(DataError, match="found 40"):
        data.records(tmp_path / "plain", decode=number_of, num_examples=41, global_batch_size=8, shuffle=True)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_file_that_was_cut_between_two_records_is_named(tmp_path, shuffle):
    write_numbers(tmp_path, [40, 60])
    recipe = data.records(tmp_path, decode=number_of, global_batch_size=8, shuffle=shuffle)
    write_numbers(tmp_path / "other", [40, 45])
    (tmp_path / "other" / "001.tfrecord").rename(tmp_path / "001.tfrecord")
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{tmp_path}/001.tfrecord ends before example"):
        list(recipe.dataset())


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_files_from_elsewhere_come_one_after_the_other(tmp_path, compression):
    write_numbers(tmp_path, [3, 7, 0, *[2] * 12, 5, 9, 1, 4], compression)
    recipe = data.records(tmp_path, decode=number_of, global_batch_size=6)
    for start in (0, 3, 7, 8, 9):  # the last batch holds five, and after it there is none
        assert order_of(recipe, 0, start) == list(range(6 * start, 53))


def test_examples_that_are_drawn_by_weights_are_read_by_their_numbers(tmp_path):
    write_numbers(tmp_path, [300, 0, 250])
    weights = np.linspace(0, 1, 550)
    options = {"global_batch_size": 32, "weights": weights, "examples_per_epoch": 700}
    recipe = data.records(tmp_path, decode=number_of, **options)
    assert_workers_read_the_same(recipe, 2, 3, 2, 1)
    assert order_of(recipe, 2) == data.source(np.arange(550), **options).order(2).tolist()
    write_numbers(tmp_path / "packed", [20], "GZIP")
    with pytest.raises(RecipeError, match="read one by one"):
        data.records(tmp_path / "packed", decode=number_of, num_examples=20, global_batch_size=4, weights=np.ones(20))


@pytest.mark.parametrize(("length", "most"), [(2, 32), (900, 17), (8000, 2), (100_000, 1)])
def test_of_large_examples_little_is_read_that_lies_between(tmp_path, monkeypatch, length, most):
    data.write_records(data.arrays(np.zeros((200, length), "uint8")), tmp_path, num_files=1)
    recipe = data.records(tmp_path, global_batch_size=8)
    held = []
    of_spans = recipe._reader._of_spans
    monkeypatch.setattr(recipe._reader, "_of_spans", lambda spans: held.extend(spans) or of_spans(spans))
    for gap in (most, most + 1):
        numbers = np.array([0, 1, 1 + gap])
        held.clear()
        (found,) = recipe._reader.read(numbers)
        assert len(found) == 3
        assert [size for *_, size in held] == ([2 + gap] if gap == most else [2, 1])


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_an_epoch_goes_on_within_a_block(tmp_path, compression):
    write_numbers(tmp_path, [60, 43], compression)
    options = {"decode": number_of, "num_examples": [60, 43], "shuffle": True, "shuffle_buffer": 80}
    recipe = data.records(tmp_path, global_batch_size=10, **options)  # blocks of 4 batches
    whole = collect(recipe.dataset(1))
    for start in (2, 4, 7, 10):
        assert_same(collect(recipe.dataset(1, start)), whole[start:])


def test_the_batch_size_stays_static_where_all_batches_have_the_same(tmp_path):
    write_numbers(tmp_path, [12])
    (context, _) = contexts(2)

    def shape(size, start=0, **options):
        recipe = data.records(tmp_path, decode=number_of, global_batch_size=size, shuffle=True, **options)
        return recipe.dataset(0, start, input_context=context).element_spec[1].shape.as_list()

    assert (shape(6), shape(5), shape(5, drop_remainder=True), shape(6, 2)) == ([3], [None], [3], [3])


LEFT = """
import tensorflow as tf
import mirrorkit as mk

with tf.io.TFRecordWriter("numbers.tfrecord") as writer:
    for number in range(4000):
        writer.write(b"%d" % number)
options = {"decode": tf.strings.to_number, "global_batch_size": 16, "shuffle": True, "shuffle_buffer": 64}
recipe = mk.data.records("numbers.tfrecord", **options)
left = [iter(recipe.dataset(epoch)) for epoch in range(4)]
print([next(batches)[0].shape[0] for batches in left])
"""


@pytest.mark.slow
def test_python_ends_while_iterators_are_alive(run_python):
    """TensorFlow's threads, which ask for the next batches, would wait for ever for a Python that has ended."""
    assert run_python(LEFT, timeout=40).stdout.strip() == "[16, 16, 16, 16]"
