"""Comparing the first batch of all workers; with real ones in tests/multiworker/test_differing_data.py."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.errors import DataError
from mirrorkit.train.input import same_data
from mirrorkit.train.input.epoch import HostIterator

X = np.zeros((4, 2), np.float32)


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`compare((first, steps), ...)` of three workers, as each of them sees it."""

    def compare(*seen: tuple[Any, int | None]) -> None:
        values: list[float] = []
        monkeypatch.setattr(same_data, "of_all_workers", lambda strategy, value: [values.append(value)])
        for first, steps in seen:
            same_data.require_same_data(None, first, steps)
        gathered = [values[::2], values[1::2]]
        monkeypatch.setattr(same_data, "of_all_workers", lambda strategy, value: gathered.pop(0))
        same_data.require_same_data(None, *seen[0])

    monkeypatch.setattr(same_data, "num_workers", lambda strategy: 3)
    monkeypatch.setattr(same_data, "addresses", lambda strategy: dict.fromkeys(("chief", "worker 0", "worker 1")))
    return compare


def _batch(*labels: Any, x: Any = X) -> Any:
    return x, np.array(labels)


def test_equal_data_pass(compare: Any) -> None:
    compare((_batch(1, 2), 5), (_batch(1, 2, x=X + 1), 5), ((tf.constant(X), tf.constant([1, 2], tf.int64)), 5))
    compare((None, None), (None, None), (None, None))  # nobody has any: that is said elsewhere
    texts = tf.constant(["a", "bc"])
    compare((texts, 5), (texts, 5), (np.array([b"a", b"bc"], object), 5))


_LAST_DIFFERS = "the first batch is one on chief, worker 0, and another on worker 1"


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (
            [(_batch(1, 2), 5), (_batch(2, 1), 5), (_batch(1, 2), 5)],
            "the first batch is one on chief, worker 1, and another on worker 0",
        ),
        (
            [(_batch(1), 5), (_batch(2), 5), (_batch(3), 5)],
            "the first batch is one on chief, and another on worker 0, and another on worker 1",
        ),
        ([(_batch(1), 5), (None, 5), (_batch(1), 5)], "worker 0 found no batch, and the others did"),
        (
            [(_batch(1), 5), (_batch(1), 5), (_batch(1), None)],
            "an epoch's number of batches is one on chief, worker 0, and another on worker 1",
        ),
        ([(X, 5), (X, 5), (X + 1, 5)], _LAST_DIFFERS),  # nothing but inputs
        ([((*_batch(1), [w]), 5) for w in (1.0, 1.0, 2.0)], _LAST_DIFFERS),
        ([(_batch(1), 5), (_batch(1), 5), (_batch(1.0), 5)], _LAST_DIFFERS),
        ([(np.array([b"a", t], object), 5) for t in (b"b", b"b", b"c")], _LAST_DIFFERS),
    ],
)
def test_other_data_are_refused_by_name(compare: Any, seen: Any, says: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"; but {says}. Set the same seed")):
        compare(*seen)


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("batch", [4, 5])
def test_what_was_looked_at_is_trained_on_too(batch: int, together: int) -> None:
    def dataset() -> tf.data.Dataset:
        return tf.data.Dataset.range(10).shuffle(10, seed=1).batch(batch)

    expected = [part.numpy().tolist() for part in dataset()]
    stream = HostIterator(dataset(), look_at=together, steps=len(expected), size=None, whole=0)
    assert stream.first.numpy().tolist() == expected[0]
    assert stream.element_spec == dataset().element_spec
    got = []
    for steps in (together, len(expected) - together):
        for part in stream.parts(steps, together):
            got += [next(stream.source).numpy().tolist() for _ in range(part.batches)]
        stream.advance(steps)
    assert got == expected
    assert stream.left == 0


def test_data_of_unknown_length_are_looked_at_too() -> None:
    stream = HostIterator(tf.data.Dataset.range(6).batch(4), look_at=1, steps=None, size=None, whole=0)
    assert next(stream.source).numpy().tolist() == [0, 1, 2, 3]
    assert not stream.source.get_next_as_optional().has_value()  # a call ends here
    stream.advance(1)
    assert next(stream.source).numpy().tolist() == [4, 5]
    assert HostIterator(tf.data.Dataset.range(0), look_at=1, steps=None, size=None, whole=0).first is None


def test_rows_of_a_set_in_memory_are_those_of_its_batch() -> None:
    split = mk.data.arrays({"a": np.arange(10)}, np.arange(10) % 3)
    recipe = mk.data.batches(split, global_batch_size=4, shuffle=True)
    for start in range(3):
        expected = next(iter(recipe.dataset(3, start)))
        tf.nest.map_structure(np.testing.assert_array_equal, same_data.first_rows(recipe, 3, start), expected)
    assert same_data.first_rows(recipe, 3, 3) is None
