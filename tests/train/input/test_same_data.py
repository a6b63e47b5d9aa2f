"""Comparing the first batch of all workers; with real ones in tests/multiworker/test_differing_data.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.errors import DataError
from mirrorkit.train.input import input as input_module, same_data, source
from mirrorkit.train.input.input import Input

X = np.zeros((4, 2), np.float32)


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`compare((first, steps), ...)` of three workers, as each of them sees it; a `sample` may come third."""

    def compare(*seen: tuple[Any, ...]) -> None:
        values: list[np.ndarray] = []

        def alone(first: Any, steps: int | None, sample: Any = None) -> None:
            same_data.require_same_data(None, first, steps, sample=sample)

        monkeypatch.setattr(
            same_data, "arrays_of_all_workers", lambda strategy, value: (values.append(value), value[np.newaxis])[1]
        )
        monkeypatch.setattr(same_data, "addresses", lambda strategy: ["chief"])
        for one in seen:
            alone(*one)
        monkeypatch.setattr(same_data, "arrays_of_all_workers", lambda strategy, value: np.stack(values))
        monkeypatch.setattr(same_data, "addresses", lambda strategy: ["chief", "worker 0", "worker 1"])
        alone(*seen[0])

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
    with pytest.raises(DataError, match=re.escape(f"; but {says}.")):
        compare(*seen)


def _set(change: int | None = None, *, inputs: Any = None, size: int = 1000) -> mk.data.Batches:
    """A set in memory whose example `change` has another input or, without `inputs`, another label."""
    x = np.random.default_rng(0).normal(size=(size, 3)).astype("float32") if inputs is None else inputs.copy()
    y = np.arange(size) % 7
    if change is not None:
        (y if inputs is None else x)[change] += 1
    return mk.data.batches(mk.data.arrays({"x": x}, y, num_classes=9), global_batch_size=8)


def _identity(data: mk.data.Batches, epoch: int, start: int) -> Any:
    return source.source_of(data).identity(epoch, start)


def _three(data: mk.data.Batches, of_last: mk.data.Batches) -> list[tuple[Any, ...]]:
    return [(_identity(one, 0, 0), 5, same_data.sample_of(one)) for one in (data, data, of_last)]


@pytest.mark.parametrize(
    ("data", "of_last"),
    [
        (_set(), _set(999)),  # a label of the last example
        (_set(inputs=X[:1].repeat(1000, 0).astype("uint8")), _set(999, inputs=X[:1].repeat(1000, 0).astype("uint8"))),
        (_set(), _set(inputs=_set().split.inputs["x"][::-1])),  # the files of each label in another order
        (_set(), _set(size=1001)),
    ],
    ids=["label", "pixel", "order of inputs", "size"],
)
def test_sets_in_memory_that_differ_after_the_first_batch(compare: Any, data: Any, of_last: Any) -> None:
    with pytest.raises(DataError, match=r"the set in memory .*another on worker 1"):
        compare(*_three(data, of_last))


def test_a_sample_of_a_set_is_small_and_leaves_rounding_out_of_account(compare: Any) -> None:
    """Also in a feature that holds nothing else, as the last components of a PCA."""
    rng = np.random.default_rng(1)
    x = _set().split.inputs["x"]
    ours, others = (np.concatenate([x, 1e-7 * rng.normal(size=(1000, 2))], 1, dtype=np.float32) for _ in range(2))
    compare(*_three(_set(inputs=ours), _set(inputs=np.nextafter(others, np.float32(9)))))
    (_, inputs, labels), levels = same_data.sample_of(_set())
    assert (inputs, len(labels), levels.shape) == ([], 64, (1, 65))


@pytest.mark.parametrize("change", [lambda x: 2 * x, lambda x: x + 0.1], ids=["scale", "mean"])
def test_inputs_that_were_prepared_in_another_way_are_seen(change: Any, compare: Any) -> None:
    x = _set().split.inputs["x"]
    with pytest.raises(DataError, match=r"the set in memory .*another on worker 1"):
        compare(*_three(_set(inputs=x), _set(inputs=change(x))))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the `Input` of one of two workers compares: the first batch, what it says of the data, and any sample."""
    seen: list[Any] = []

    def require(_: Any, first: Any, steps: int | None, of: str, sample: Any) -> None:
        seen.append((first, of, *([] if sample is None else [sample])))

    monkeypatch.setattr(source.Source, "require", staticmethod(require))
    monkeypatch.setattr(input_module, "num_workers", lambda strategy: 2)
    return seen


_KINDS: dict[str, tuple[Callable[[tf.data.Dataset], tf.data.Dataset], int, int | None]] = {
    "known length": (lambda data: data, 1, None),
    "accumulated": (lambda data: data, 2, None),
    "unknown length": (lambda data: data.filter(lambda x: True), 1, None),
    "endless": (lambda data: data.repeat(), 1, 3),
}


@pytest.mark.parametrize(("change", "together", "steps"), _KINDS.values(), ids=_KINDS)
def test_data_that_all_workers_read_whole_are_compared_in_each_epoch(
    change: Any, together: int, steps: int | None, strategy_of: Any, compared: list[Any]
) -> None:
    """And each batch that was looked at is still taken."""
    expected = iter(change(_shuffled()).repeat(3).as_numpy_iterator())
    data = Input(strategy_of("one_device", 1), change(_shuffled()), steps=steps, carry_on=True)
    for epoch in range(3):
        wanted = [next(expected).tolist() for _ in range(steps or 5)]
        batches, taken = data.epoch(epoch, look_at=together), []
        for calls in (together, (steps or 5) - together):
            for part in batches.parts(calls, together):
                taken += [batches.read(0).numpy().tolist() for _ in range(part.batches)]
            batches.position += calls
        assert taken == wanted
        of = f" in epoch {epoch} (counted from 0)" if epoch else ""
        assert [(first.numpy().tolist(), said) for first, said in compared] == [(wanted[0], of)]
        compared.clear()


def _shuffled() -> tf.data.Dataset:
    tf.random.set_seed(1)
    return tf.data.Dataset.range(10).shuffle(10, seed=1).batch(2)


def test_what_each_worker_reads_by_itself_is_compared_once(strategy_of: Any, compared: list[Any]) -> None:
    recipe = mk.data.batches(mk.data.arrays(X, np.arange(4)), global_batch_size=2)
    data = Input(strategy_of("one_device", 1), recipe)
    for epoch in range(3):
        data.epoch(epoch, look_at=1)
    ((first, _, (exact, levels)),) = compared
    assert (first[1].tolist(), sorted({*exact[-1].tolist()}), levels.shape) == ([0, 1], [0, 1, 2, 3], (1, 65))


def test_rows_of_a_set_in_memory_are_those_of_its_batch() -> None:
    split = mk.data.arrays({"a": np.arange(10)}, np.arange(10) % 3)
    recipe = mk.data.batches(split, global_batch_size=4, shuffle=True)
    for start in range(3):
        expected = next(iter(recipe.dataset(3, start)))
        tf.nest.map_structure(np.testing.assert_array_equal, _identity(recipe, 3, start), expected)
    assert _identity(recipe, 3, 3) is None
