"""parquet: the rows of a table, once each, on any number of workers; columns as tensors."""

from __future__ import annotations

import datetime
import decimal
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from recipe_helpers import assert_same, assert_workers_read_the_same, collect, contexts, joined, order_of
from table_files import lists, pa, pq, write_tables

from mirrorkit import data
from mirrorkit.data import parquet_reading
from mirrorkit.errors import DataError, RecipeError

# --- parquet: the rows of a table, once each, the same on any number of workers; what cannot be read is named


SIZE = {"global_batch_size": 8}


def test_columns_are_chosen_by_name(tmp_path):
    write_tables(tmp_path, [20], flag=lambda n: n % 2 == 0, weight=lambda n: n / 2, list=lists)
    (x,) = next(iter(data.parquet(tmp_path, x="list", **SIZE).dataset()))
    assert x.shape == (8, 3)
    x, y, weight = next(iter(data.parquet(tmp_path, x=["number"], y="flag", sample_weight="weight", **SIZE).dataset()))
    assert (list(x), y.dtype, weight.dtype) == (["number"], tf.int64, tf.float32)
    np.testing.assert_array_equal(weight, np.arange(8) / 2)
    x, y = next(iter(data.parquet(tmp_path, y=["flag", "label"], **SIZE).dataset()))
    assert (sorted(x), sorted(y), y["flag"].dtype) == (["list", "number", "weight"], ["flag", "label"], tf.bool)
    x, y, weight = next(iter(data.parquet(tmp_path, x=["flag"], y="flag", sample_weight="number", **SIZE).dataset()))
    assert (x["flag"].dtype, y.dtype, weight.dtype) == (tf.bool, tf.int64, tf.float32)
    x, *_, weight = next(iter(data.parquet(tmp_path, x="number", y="flag", sample_weight="number", **SIZE).dataset()))
    assert (x.dtype, weight.dtype) == (tf.int64, tf.float32)
    mapped = data.parquet(
        tmp_path, y="label", one_hot=True, num_classes=7, map=lambda x, y: (x["list"] + 1, (y + 1) % 7), **SIZE
    )
    x, y = joined(collect(mapped.dataset()))
    np.testing.assert_array_equal(x[:, 0], np.arange(20) + 1)
    np.testing.assert_array_equal(y, data.one_hot((np.arange(20) + 1) % 7, 7))


def test_names_may_hold_dots(tmp_path):
    write_tables(tmp_path, [20], **{"a.b": lambda n: n + 0.5, "a.c": lists})
    recipe = data.parquet(tmp_path, x="a.b", y="a.c", **SIZE)
    assert recipe._reader.row_bytes >= 8 + 3 * 4
    x, y = joined(collect(recipe.dataset()))
    assert (x.tolist(), y.shape) == ([i + 0.5 for i in range(20)], (20, 3))


def test_files_are_a_file_a_folder_a_pattern_or_a_list(tmp_path):
    write_tables(tmp_path / "a [1]", [5, 6, 7])
    files = sorted((tmp_path / "a [1]").iterdir())
    for given_files, numbers in (
        (files[1], range(5, 11)),
        (str(tmp_path / "a [1]"), range(18)),
        (tmp_path / "a [1]" / "0[02].parquet", [*range(5), *range(11, 18)]),
        ([files[2], files[0]], [*range(11, 18), *range(5)]),
    ):
        recipe = data.parquet(given_files, x="number", **SIZE)
        assert order_of(recipe) == list(numbers)
    assert recipe.files == (str(files[2]), str(files[0]))


@pytest.mark.parametrize(("shuffle", "workers"), [(True, 3), (False, 2)])
def test_workers_together_read_every_row_once_from_any_position(tmp_path, monkeypatch, shuffle, workers):
    """With pieces and row groups of which several are open; what lanes hold is tested in test_order.py."""
    monkeypatch.setattr(parquet_reading, "_PIECE", 100)
    monkeypatch.setattr(parquet_reading, "_OPEN", 2000)
    write_tables(tmp_path, [37, 60, 1, 14])
    recipe = data.parquet(tmp_path, y="label", shuffle=shuffle, shuffle_buffer=40, **SIZE)
    whole = collect(recipe.dataset(1))
    x, y = joined(whole)
    assert sorted(x["number"]) == list(range(112))
    np.testing.assert_array_equal(x["number"] % 7, y)
    assert_same(assert_workers_read_the_same(recipe, 1, 5, workers, 1), whole[5:])
    with pytest.raises(RecipeError, match=r"start in 0 \.\. 14"):
        recipe.dataset(0, 15)


def test_a_batch_has_rows_of_many_row_groups_in_a_drawn_order(tmp_path):
    write_tables(tmp_path, [200, 200], 20)
    recipe = data.parquet(tmp_path, x="number", global_batch_size=40, shuffle=True, shuffle_buffer=400)
    batches = [x.ravel() for (x,) in collect(recipe.dataset(2))]
    assert all(len(set(batch // 20)) == 20 for batch in batches)
    within = {tuple(np.concatenate(batches)[np.concatenate(batches) // 20 == group] % 20) for group in range(20)}
    assert len(within) == 20, "each row group is shuffled in an order of its own"


def test_the_order_in_words_tells_how_many_row_groups_are_read_side_by_side(tmp_path, monkeypatch):
    write_tables(tmp_path, [200], 20, weight=lambda n: n / 2)

    def told(**options):
        recipe = data.parquet(tmp_path, x="number", y="label", shuffle=True, **options, **SIZE)
        return recipe.order_in_words, recipe.order(0).tolist()

    alone, same = told(), told(sample_weight="weight")
    assert alone == same
    monkeypatch.setattr(parquet_reading, "_OPEN", 2000)  # a larger row, fewer row groups in memory
    fewer = [told(), told(sample_weight="weight")]
    for one, other in ((alone, fewer[0]), fewer):
        assert one[0] != other[0]
        assert one[1] != other[1]


def test_seed_and_epoch_draw_the_order_within_a_row_group(tmp_path):
    write_tables(tmp_path, [50], 50)
    recipes = [data.parquet(tmp_path, x="number", shuffle=True, seed=seed, **SIZE) for seed in (0, 1)]
    assert len({tuple(order_of(recipe, epoch)) for recipe in recipes for epoch in (1, 2)}) == 4


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_worker_reads_the_row_groups_of_its_lanes_alone(tmp_path, shuffle, monkeypatch):
    opened: list[int] = []
    original = parquet_reading.Table._opened

    def noted(table: Any, group: int) -> Iterator[Any]:
        opened.append(group)
        return original(table, group)

    monkeypatch.setattr(parquet_reading.Table, "_opened", noted)
    write_tables(tmp_path, [80, 80], 20)
    recipe = data.parquet(tmp_path, x="number", global_batch_size=16, shuffle=shuffle, shuffle_buffer=64)
    groups = []
    for context in contexts(2):
        opened.clear()
        list(recipe.dataset(input_context=context))
        assert len(opened) == len(set(opened)), "each one once"
        groups.append(set(opened))
    assert [len(found) for found in groups] == ([4, 4] if shuffle else [8, 8])
    assert set.union(*groups) == {*range(8)}
    opened.clear()
    list(recipe.dataset(0, 9))
    assert len(opened) == (8 if shuffle else 1), "not those before"


def test_files_of_different_schemas_are_refused_by_name(tmp_path):
    write_tables(tmp_path, [5, 5])
    pq.write_table(pa.table({"number": np.arange(3) / 2, "label": [0, 1, 2]}), tmp_path / "02.parquet")
    with pytest.raises(DataError, match=r"02.*'number', of type int64 .*00.* found double"):
        data.parquet(tmp_path, y="label", **SIZE)
    pq.write_table(pa.table({"label": [0, 1, 2]}), tmp_path / "02.parquet")
    with pytest.raises(DataError, match=r"02.*'number'.* found none among label"):
        data.parquet(tmp_path, y="label", **SIZE)
    assert data.parquet(tmp_path, x="label", **SIZE).num_examples == 13


def test_columns_of_one_name_are_refused(tmp_path):
    write_tables(tmp_path, [20, 20])
    pq.write_table(pa.table([[1], [2], [3]], names=["number", "number", "label"]), tmp_path / "01.parquet")
    for options in ({}, {"x": "number"}, {"y": "number"}, {"x": ["label", "number"]}):
        with pytest.raises(DataError, match=r"01.*'number'.* found int64, int64"):
            data.parquet(tmp_path, **options, **SIZE)
    assert data.parquet(tmp_path, x="label", **SIZE).num_examples == 21


def test_a_damaged_file_is_named(tmp_path):
    write_tables(tmp_path, [500, 500], 250, real=lambda n: np.random.default_rng(0).normal(size=len(n)))
    recipe = data.parquet(tmp_path, y="label", **SIZE)
    path = tmp_path / "01.parquet"
    content = bytearray(path.read_bytes())
    content[20:3000] = bytes(2980)
    path.write_bytes(content)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{path} .* row group 0"):
        list(recipe.dataset())
    path.write_bytes(content[:-20])
    with pytest.raises(DataError, match=f"{path} is damaged"):
        data.parquet(tmp_path, y="label", **SIZE)


def test_a_page_that_is_not_what_was_written_is_refused(tmp_path):
    file = tmp_path / "file.parquet"
    table = pa.table({"x": np.arange(1000.0), "y": np.arange(1000) % 3})
    pq.write_table(table, file, use_dictionary=False, compression="none", write_page_checksum=True)
    content = bytearray(file.read_bytes())
    place = content.index(np.arange(400.0, 410.0).tobytes())
    content[place : place + 8] = np.float64(-1).tobytes()  # a number like any other
    file.write_bytes(content)
    with pytest.raises(tf.errors.OpError, match=r"DataError.*file\.parquet"):
        list(data.parquet(file, y="y", global_batch_size=100).dataset())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"x": ["nothing"]}, "'nothing'.* found none among number"),
        ({"x": []}, r"x must .* found \[\]"),
        ({"x": [1]}, r"x must .* found \[1\]"),
        ({"sample_weight": "number"}, "sample_weight .* y"),
        ({"y": ["label"], "one_hot": True}, "one_hot"),
        ({"y": "label", "one_hot": True}, "one_hot"),
        ({"y": "label", "num_classes": 0}, "num_classes"),
        ({"num_classes": 7}, "num_classes=7 .* y"),
        ({"shuffle_buffer": 0}, "shuffle_buffer"),
        ({"x": "number", "augment": [data.augment.flip()]}, "augment"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, options, words):
    write_tables(tmp_path, [20])
    with pytest.raises(DataError, match=words):
        data.parquet(tmp_path, **{**SIZE, **options})


def test_what_is_no_table_is_refused(tmp_path, monkeypatch):
    write_tables(tmp_path / "set" / "day=1", [20])
    write_tables(tmp_path / "empty", [0])
    for files, words in (
        (tmp_path / "nothing", "no parquet file"),
        (tmp_path / "set", r"pattern, such as .*/set/\*/\*\.parquet"),
        ([], "empty list"),
        (tmp_path / "empty", "no example"),
    ):
        with pytest.raises(DataError, match=words):
            data.parquet(files, **SIZE)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(RecipeError, match="pip install pyarrow"):
        data.parquet(tmp_path / "empty", **SIZE)


def test_what_workers_compare(tmp_path):
    first = data.parquet(write_tables(tmp_path / "a", [20]), **SIZE).identity(0, 0)
    assert data.parquet(write_tables(tmp_path / "b", [20]), **SIZE).identity(0, 0) == first
    assert data.parquet(write_tables(tmp_path / "c", [21]), **SIZE).identity(0, 0) != first
    assert data.parquet(tmp_path / "a", x="number", **SIZE).identity(0, 0) != first
    assert data.parquet(tmp_path / "a", shuffle_buffer=9, **SIZE).identity(0, 0) != first


# --- columns of Parquet files as tensors: their dtypes, missing values, values outside the classes


def test_columns_become_tensors_of_their_dtypes(tmp_path):
    made = {
        "flag": lambda n: n % 2 == 0,
        "small": lambda n: n.astype(np.int8),
        "half": lambda n: n.astype(np.float16),
        "real": lambda n: n / 4,
        "text": lambda n: [f"\u00e4{i}" for i in n],
        "bytes": lambda n: [bytes([i]) for i in n],
        "long": lambda n: pa.array([str(i) for i in n], pa.large_string()),
        "category": lambda n: pa.array([f"c{i % 3}" for i in n]).dictionary_encode(),
        "list": lists,
        "square": lambda n: pa.FixedSizeListArray.from_arrays(lists(np.repeat(n, 2)), 2),
    }
    write_tables(tmp_path, [20, 9], **made)
    recipe = data.parquet(tmp_path, y="label", **SIZE)
    assert (recipe.num_examples, recipe.steps_per_epoch, recipe.num_classes) == (29, 4, None)
    x, y = joined(collect(recipe.dataset()))
    numbers = np.arange(29)
    np.testing.assert_array_equal(y, numbers % 7)
    assert y.dtype == np.int64
    for name in ("number", "flag", "small", "half", "real"):
        wanted = made[name](numbers) if name in made else numbers
        np.testing.assert_array_equal(x[name], wanted)
        assert x[name].dtype == wanted.dtype
    assert x["text"].tolist() == [f"\u00e4{i}".encode() for i in numbers]
    assert x["bytes"].tolist() == [bytes([i]) for i in numbers]
    assert x["long"].tolist() == [str(i).encode() for i in numbers]
    assert x["category"].tolist() == [f"c{i % 3}".encode() for i in numbers]
    np.testing.assert_array_equal(x["list"], np.repeat(numbers, 3).reshape(29, 3).astype(np.float32))
    np.testing.assert_array_equal(x["square"], np.repeat(numbers, 6).reshape(29, 2, 3).astype(np.float32))
    assert recipe.element_spec[0]["square"].shape.as_list() == [None, 2, 3]


def test_missing_values_are_refused_by_name(tmp_path):
    write_tables(tmp_path, [20, 20], hole=lambda n: pa.array([None if i == 25 else float(i) for i in n], pa.float64()))
    words = r"01\.parquet: 1 .*'hole'.*fill="
    assert len(order_of(data.parquet(tmp_path, x="number", y="label", **SIZE))) == 40
    recipe = data.parquet(tmp_path, y="label", **SIZE)
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        list(recipe.dataset())


def test_missing_values_are_filled_as_asked(tmp_path):
    holes = {
        "real": lambda n: pa.array([None if i % 5 == 0 else float(i) for i in n], pa.float32()),
        "text": lambda n: pa.array([None if i % 5 == 1 else str(i) for i in n]),
        "kind": lambda n: pa.array([None if i % 5 == 2 else "k" for i in n]).dictionary_encode(),
        "flag": lambda n: pa.array([None if i % 5 == 3 else True for i in n]),
    }
    write_tables(tmp_path, [20], **holes)
    fill = {"real": -1, "text": "none", "kind": "?", "flag": False}
    x, _ = joined(collect(data.parquet(tmp_path, y="label", fill=fill, **SIZE).dataset()))
    assert x["real"].tolist() == [-1 if i % 5 == 0 else i for i in range(20)]
    assert x["text"].tolist() == [b"none" if i % 5 == 1 else str(i).encode() for i in range(20)]
    assert x["kind"].tolist() == [b"?" if i % 5 == 2 else b"k" for i in range(20)]
    assert x["flag"].tolist() == [i % 5 != 3 for i in range(20)]
    one = data.parquet(tmp_path, x=["real", "number"], fill=0, **SIZE)
    assert joined(collect(one.dataset()))[0]["real"].tolist() == [0 if i % 5 == 0 else i for i in range(20)]
    for wrong, column in (({"number": 0.5}, "number"), ({"number": "none"}, "number"), ({"number": 2**70}, "number")):
        with pytest.raises(RecipeError, match=re.escape(f"fill={wrong[column]!r}") + f".*{column}"):
            data.parquet(tmp_path, fill=wrong, **SIZE)
    with pytest.raises(RecipeError, match="fill names the columns nothing"):
        data.parquet(tmp_path, y="label", fill={**fill, "nothing": 0}, **SIZE)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (datetime.datetime(2024, 1, 1), "timestamp"),
        (datetime.date(2024, 1, 1), "date32"),
        (decimal.Decimal("1.5"), "decimal128"),
        ({"a": 1}, "struct"),
        ([1, 2], "list"),
    ],
)
def test_types_that_are_no_tensors_are_refused_by_name(tmp_path, value, kind):
    write_tables(tmp_path, [5], odd=lambda n: pa.array([value] * len(n)))
    with pytest.raises(DataError, match=rf"00\.parquet: .*'odd' .*{kind}"):
        data.parquet(tmp_path, **SIZE)
    assert data.parquet(tmp_path, x="number", **SIZE).num_examples == 5


def test_labels_outside_the_classes_are_named(tmp_path):
    write_tables(tmp_path, [20], below=lambda n: n - 3, city=lambda n: ["a"] * len(n))
    with pytest.raises(RecipeError, match=r"'city' of .*00\.parquet holds string"):
        data.parquet(tmp_path, y="city", num_classes=5, **SIZE)
    for name, words in (("label", "'label' holds 5"), ("below", "'below' holds -3")):
        recipe = data.parquet(tmp_path, y=name, num_classes=5, **SIZE)
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"00\.parquet: .*{words}"):
            list(recipe.dataset())
