"""What each kind of data answers to an Input, its order, and the runs of updates of an epoch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.errors import StepError
from mirrorkit.train.input.epoch import EpochIterator, UpdateRun
from mirrorkit.train.input.source import Source, source_of


class Numbers(mk.data.Recipe):
    """A user's own recipe, of which each worker reads its own rows."""

    global_batch_size, drop_remainder, reads_own_rows = 4, False, True

    @property
    def num_examples(self) -> int:
        return 10

    def dataset(self, epoch: int = 0, start: int = 0, *, input_context: Any = None) -> tf.data.Dataset:
        rows = slice(2, 4) if input_context else slice(4)
        return tf.data.Dataset.range(10).batch(4).skip(start).map(lambda batch: (batch[rows],))


def _split() -> mk.data.Split:
    return mk.data.arrays(np.arange(10.0), np.arange(10))


def test_a_recipe_of_a_users_own_is_compared_by_a_batch_that_all_workers_can_read() -> None:
    source = source_of(Numbers())
    assert type(source) is Source
    assert source.has_identity
    np.testing.assert_array_equal(source.identity(0, 1)[0], [0, 1, 2, 3])
    (first,) = next(iter(source.batches(0, 1, 5, tf.distribute.InputContext(2, 1, 2))))
    np.testing.assert_array_equal(first, [6, 7])


def test_a_dataset_tells_what_it_can() -> None:
    dataset = tf.data.Dataset.range(10).batch(4)
    source = source_of(dataset)
    assert (source.steps, source.num_examples, source.global_batch_size) == (3, None, None)
    assert (source.is_endless, source.has_known_end, source.can_be_read_twice) == (False, True, False)
    assert source.starts_over
    assert not source.has_identity
    assert source.order == "3 batches of a tf.data.Dataset"
    np.testing.assert_array_equal(next(iter(source.batches(5, 0, 2, None))), [8, 9])
    unknown = source_of(dataset.filter(lambda batch: True))
    assert (unknown.steps, unknown.is_endless, unknown.has_known_end, unknown.order) == (None, False, False, None)
    again = source_of(dataset, repeats=True)
    assert (again.steps, again.is_endless, again.has_known_end) == (None, True, True)
    assert source_of(dataset.batch(1, drop_remainder=True)).global_batch_size == 1
    assert not source_of(dataset.repeat()).starts_over


def test_what_decides_the_order() -> None:
    for make in (mk.data.batches, mk.data.resident):
        recipe = make(_split(), global_batch_size=5, shuffle=True, seed=3)
        assert source_of(recipe).order == "shuffle seed=3"
        assert not source_of(recipe).starts_over
        assert source_of(recipe.as_written()).order == "no shuffle"


@pytest.mark.parametrize("data", [np.ones((4, 2)), [1, 2], None])
def test_what_is_no_data(data: Any) -> None:
    with pytest.raises(StepError, match=r"arrays.*mk\.data\.batches.*mk\.data\.source"):
        source_of(data)


# --- an epoch is not finished on the same examples in other files, whose order is another one


_X = np.arange(80, dtype=np.float32).reshape(40, 2)
_SPLIT = mk.data.arrays(_X, np.arange(40) % 2)


def _records(folder: Path, layout: int, **options: Any) -> mk.data.Recipe:
    mk.data.write_records(_SPLIT, folder, num_files=[2, 4][layout])
    return mk.data.records(folder, global_batch_size=8, **options)


def _parquet(folder: Path, layout: int, **options: Any) -> mk.data.Recipe:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"a": _X[:, 0], "b": _X[:, 1], "y": np.arange(40) % 2})
    folder.mkdir()
    pytest.importorskip("pyarrow.parquet").write_table(table, folder / "all.parquet", row_group_size=[20, 10][layout])
    return mk.data.parquet(folder / "all.parquet", y="y", global_batch_size=8, **options)


def _images(folder: Path, layout: int, **options: Any) -> mk.data.Recipe:
    for number in range(8):
        name = ["{}", "of_{}"][layout].format([number, 7 - number][layout])
        path = folder / "ab"[number % 2] / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(np.full([2, 2, 1], number, np.uint8)).numpy())
    return mk.data.image_folder(folder, image_size=(2, 2), color_mode="grayscale", global_batch_size=4, **options)


KINDS: dict[str, Callable[..., mk.data.Recipe]] = {"records": _records, "parquet": _parquet, "images": _images}


def _order(recipe: mk.data.Recipe) -> str | None:
    return source_of(recipe).order


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_knows_the_files(kind: str, tmp_path: Path) -> None:
    first, other = (_order(KINDS[kind](tmp_path / str(n), n, shuffle=True)) for n in (0, 1))
    assert first != other
    shutil.move(tmp_path / "0", tmp_path / "elsewhere")
    assert _order(KINDS[kind](tmp_path / "0", 0, shuffle=True)) == first  # written again, as they were


def test_files_of_other_sizes_are_read_in_the_same_order_without_a_shuffle(tmp_path: Path) -> None:
    assert _order(_records(tmp_path / "0", 0)) == _order(_records(tmp_path / "1", 1))


# --- how the batches of an epoch are divided into runs of updates that are alike


def _iterator(steps: int | None = 6, position: int = 0) -> EpochIterator:
    """Five batches of 8, and one of 3."""
    return EpochIterator(None, steps=steps, size_of=lambda batch: 8 if batch < 5 else 3, position=position)


@pytest.mark.parametrize(
    ("position", "steps", "accumulate", "expected"),
    [
        (0, 5, 1, [UpdateRun(0, 5, (8,))]),
        (0, 6, 1, [UpdateRun(0, 5, (8,)), UpdateRun(5, 1, (3,))]),  # the last batch is a smaller one
        (2, 2, 1, [UpdateRun(2, 2, (8,))]),
        (5, 1, 1, [UpdateRun(5, 1, (3,))]),
        (0, 6, 2, [UpdateRun(0, 2, (8, 8)), UpdateRun(4, 1, (8, 3))]),
        (0, 5, 2, [UpdateRun(0, 2, (8, 8)), UpdateRun(4, 1, (8,))]),
        (0, 6, 3, [UpdateRun(0, 1, (8, 8, 8)), UpdateRun(3, 1, (8, 8, 3))]),
        (0, 6, 4, [UpdateRun(0, 1, (8,) * 4), UpdateRun(4, 1, (8, 3))]),
        (4, 2, 4, [UpdateRun(4, 1, (8, 3))]),
        (0, 0, 1, []),
    ],
)
def test_runs_of_like_updates(position: int, steps: int, accumulate: int, expected: list[UpdateRun]) -> None:
    data = _iterator(position=position)
    parts = list(data.parts(steps, accumulate))
    assert parts == expected
    assert sum(part.batches for part in parts) == steps


def test_updates_of_batches_of_unknown_size_are_made_in_one_call() -> None:
    data = EpochIterator(None, steps=5, size_of=lambda batch: None)
    assert list(data.parts(5, 2)) == [UpdateRun(0, 2, (None, None)), UpdateRun(4, 1, (None,))]


@pytest.mark.parametrize(("examples", "sizes"), [(43, [8, 8, 8, 8, 8, 3]), (16, [8, 8]), (3, [3])])
def test_the_sizes_of_batches(examples: int, sizes: list[int]) -> None:
    data = source_of(mk.data.batches(mk.data.arrays(np.arange(examples), np.arange(examples)), global_batch_size=8))
    assert [data.size_of(batch) for batch in range(data.steps or 0)] == sizes
    assert source_of(tf.data.Dataset.range(16).batch(8)).size_of(0) is None
