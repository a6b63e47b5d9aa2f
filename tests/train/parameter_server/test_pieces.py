"""How a call is cut into pieces for the workers, without a cluster: every batch once and in order, whoever reads it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.errors import StepError
from mirrorkit.train.input.epoch import EpochIterator, HostIterator
from mirrorkit.train.input.resident import SentIterator
from mirrorkit.train.parameter_server.calls import RemoteCalls, pieces, specs

Cut = tuple[int, int, tuple[Any, ...], list[list[list[int]]]]  # first batch, updates, sizes, the batches of each update


def _cut(data: EpochIterator, steps: int, accumulate: int, at_once: int) -> list[Cut]:
    """The pieces of one call, in plain numbers."""
    found = []
    for part, columns in pieces(data, steps, accumulate, at_once):
        for spec, column in zip(specs(data, part, columns), columns, strict=True):
            assert spec.is_compatible_with(column)
        updates = [[column[i].numpy().tolist() for column in columns] for i in range(part.updates)]
        found.append((part.first, part.updates, part.sizes, updates))
    return found


def _read(examples: int, *, size: int | None = 4, steps: int | None = None, **options: Any) -> HostIterator:
    """Batches of 4 that the chief reads: those of a recipe, or with `size=None` of a user's dataset."""
    dataset = tf.data.Dataset.range(examples).batch(4)
    return HostIterator(dataset, steps=steps, size_of=lambda batch: size, **options)


def _sent(recipe: mk.data.Batches, epoch: int, **place: Any) -> SentIterator:
    """Batches of a set that the workers hold."""
    return SentIterator(recipe, epoch, size_of=lambda batch: recipe.global_batch_size, **place)


def _batches(examples: int) -> list[list[int]]:
    return [list(range(first, min(first + 4, examples))) for first in range(0, examples, 4)]


def _all_of(cut: Sequence[Cut]) -> list[list[int]]:
    return [batch for *_, updates in cut for update in updates for batch in update]


@pytest.mark.parametrize("at_once", [1, 5])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("examples", [4, 22])
@pytest.mark.parametrize("kind", ["read", "sent"])
def test_every_batch_is_in_one_piece(kind: str, examples: int, accumulate: int, at_once: int) -> None:
    batches = _batches(examples)
    if kind == "read":
        data: EpochIterator = _read(examples, steps=len(batches))
    else:
        recipe = mk.data.batches(mk.data.arrays(np.arange(examples), np.arange(examples)), global_batch_size=4)
        data = _sent(recipe, 0, steps=len(batches))
    cut = _cut(data, len(batches), accumulate, at_once)
    assert _all_of(cut) == batches
    position = 0
    for first, updates, sizes, held in cut:
        assert first == position
        assert 1 <= updates <= at_once
        assert all(len(update) == len(sizes) <= accumulate for update in held)
        position += updates * len(sizes)
    assert all(len(sizes) == accumulate for _, _, sizes, _ in cut[:-1]), "only the last update may be a smaller one"


def test_a_piece_holds_updates_of_one_shape() -> None:
    cut = _cut(_read(22, steps=6), 6, 1, 10)
    assert [(first, updates, sizes) for first, updates, sizes, _ in cut] == [(0, 5, (4,)), (5, 1, (None,))]


def test_sent_rows_are_those_of_the_epochs_order() -> None:
    recipe = mk.data.batches(mk.data.arrays(np.arange(9), np.arange(9)), global_batch_size=4, shuffle=True, seed=1)
    rows = _all_of(_cut(_sent(recipe, 2, steps=3, position=1), 2, 1, 8))
    assert rows == [y.numpy().tolist() for _, y in recipe.dataset(epoch=2, start=1)]


def test_the_end_of_data_of_unknown_length_ends_the_call() -> None:
    data = _read(10, size=None)
    assert _all_of(_cut(data, 8, 2, 4)) == _batches(10)
    data.position += 3
    assert _cut(data, 8, 2, 4) == []


def test_data_that_end_early_are_named() -> None:
    data = _read(12, steps=5, position=0)
    data.position += 1
    with pytest.raises(StepError, match="5 batches, but ended after 4"):
        _cut(data, 4, 1, 2)


def test_a_worker_tells_the_step_the_place_of_a_batch() -> None:
    """By it differ what workers draw that compute at the same time, and so at the same count of steps."""
    calls = object.__new__(RemoteCalls)  # without a cluster
    calls._step = SimpleNamespace(train=lambda batches, first_part: first_part)  # type: ignore[assignment]
    assert calls._run("train")([], tf.constant(0), tf.constant(7)) == 7
