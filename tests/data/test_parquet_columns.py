"""Columns of Parquet files as tensors: their dtypes, missing values, values outside the classes."""

from __future__ import annotations

import datetime
import decimal
import re

import numpy as np
import pytest
import tensorflow as tf
from recipe_helpers import collect, joined, order_of
from table_files import lists, pa, pq, write_tables

from mirrorkit import data
from mirrorkit.errors import DataError, RecipeError

SIZE = {"global_batch_size": 8}


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
    with pytest.raises(DataError, match=words):
        data.parquet(tmp_path, y="label", **SIZE)
    assert len(order_of(data.parquet(tmp_path, x="number", y="label", **SIZE))) == 40
    # a file that does not tell
    table = pq.read_table(tmp_path / "01.parquet")
    pq.write_table(table, tmp_path / "01.parquet", write_statistics=False)
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
    refused = ((0, "text"), ({"number": 0.5}, "number"), ({"flag": 1}, "flag"), ({"real": True}, "real"))
    for wrong, column in (*refused, ({"number": 2**70}, "number"), ({"real": 1e300}, "real")):
        value = wrong[column] if isinstance(wrong, dict) else wrong
        with pytest.raises(RecipeError, match=re.escape(f"fill={value}") + f".*{column}"):
            data.parquet(tmp_path, **{"fill": wrong, **SIZE})
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
    write_tables(tmp_path, [20], below=lambda n: n - 3)
    for name, words in (("label", "'label' holds 5"), ("below", "'below' holds -3")):
        recipe = data.parquet(tmp_path, y=name, num_classes=5, **SIZE)
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"00\.parquet: .*{words}"):
            list(recipe.dataset())
