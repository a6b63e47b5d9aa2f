"""What workers compare around a fit; real ones are in tests/multiworker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mirrorkit import reproducible
from mirrorkit._keras import keras
from mirrorkit.errors import OutOfSyncError
from mirrorkit.train.first_batch.fingerprints import fingerprints
from mirrorkit.train.loop import same_workers
from mirrorkit.train.loop.same_workers import require_same_values
from mirrorkit.variables import mark_sharded


@pytest.fixture
def others(other_workers: Any) -> Callable[..., None]:
    """`others(values, ...)`: let more workers hold these values, in place of the own ones."""

    def holding(values: list[Any]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda own: fingerprints(values, exact=reproducible.is_enabled())

    return lambda *of_workers: other_workers(same_workers, *map(holding, of_workers))


KERNEL = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
SEED = np.array([2**32 - 1, 7], np.uint32)


def compare(*more: Any) -> None:
    variables = [keras.Variable(KERNEL, name="kernel"), keras.Variable(SEED, dtype="uint32", name="seed"), *more]
    require_same_values(tf.distribute.get_strategy(), variables, "after epoch 3")


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([[KERNEL * np.float32(1 + 1e-6), SEED]], None),
        ([[KERNEL, SEED], [KERNEL + 1e-3, SEED + np.uint32(1)]], "'kernel' .*worker 2 than on worker 0, worker 1"),
        ([[KERNEL, SEED - np.array([1, 0], np.uint32)]], "'seed'"),
        ([[KERNEL * 2, SEED]] * 2, "on worker 0 than on worker 1, worker 2"),
    ],
    ids=["rounding", "the first variable", "an integer counts fully", "a chief apart"],
)
def test_another_value_is_named_with_its_worker(others, values, match):
    others(*values)
    with contextlib.nullcontext() if match is None else pytest.raises(OutOfSyncError, match=match):
        compare()


def test_in_reproducible_mode_every_bit_counts(others, monkeypatch):
    monkeypatch.setattr(reproducible, "_enabled", True)
    others([KERNEL, SEED])
    compare()
    others([KERNEL * np.float32(1 + 1e-6), SEED])
    with pytest.raises(OutOfSyncError, match=r"'kernel' .*after epoch 3"):
        compare()


def test_what_is_meant_to_differ_is_left_out(others):
    pieces = keras.Variable(KERNEL[:1], name="pieces")
    mark_sharded(pieces)
    on_read = tf.Variable(1.0, synchronization=tf.VariableSynchronization.ON_READ)
    others([KERNEL, SEED])
    compare(pieces, on_read, tf.Variable("text"))
