"""The order of examples that lie in blocks: every one once, each batch its rows, well mixed, from any position on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from mirrorkit.data.order import BlockOrder

counts_of_blocks = st.lists(st.integers(0, 60), min_size=1, max_size=90).filter(sum)


def batches(counts, size, key=(0, 0), *, start=0, together=4, most=64, last=True) -> list[np.ndarray]:
    order = BlockOrder(counts, size, key, most)
    whole, rest = divmod(sum(counts), size)
    windows = order.windows(start, together, whole + (last and rest > 0))
    return [numbers for window in windows for numbers in window]


@settings(deadline=None)
@given(counts_of_blocks, st.integers(1, 200), st.integers(1, 9), st.integers(1, 70), st.booleans(), st.data())
def test_every_example_comes_once_from_any_position_on(counts, size, together, most, last, draws):
    total = sum(counts)
    size = min(size, total)
    options = {"key": (3, 1), "together": together, "most": most, "last": last}
    found = batches(counts, size, **options)
    assert [len(numbers) for numbers in found] == [size] * (total // size) + [total % size] * (
        last and total % size > 0
    )
    everything = np.concatenate(found)
    assert len(set(everything)) == len(everything)
    assert set(everything) <= set(range(total))
    start = draws.draw(st.integers(0, len(found)))
    rest = batches(counts, size, start=start, **options)
    np.testing.assert_array_equal(np.concatenate([[], *rest]), np.concatenate([[], *found[start:]]))


@settings(deadline=None)
@given(counts_of_blocks, st.integers(1, 200), st.integers(1, 4))
def test_rows_of_batches_read_each_block_from_its_beginning_on(counts, size, together):
    """What a row of all whole batches needs of a block lies behind what its windows before needed of it."""
    size = min(size, sum(counts))
    order = BlockOrder(counts, size, (0, 0))
    firsts = np.cumsum(counts)
    reached: dict[int, int] = {}
    for window in order.windows(0, together, sum(counts) // size):
        for block in set(np.searchsorted(firsts, window.ravel(), side="right")):
            own = window[np.searchsorted(firsts, window, side="right") == block]
            assert own.min() > reached.get(block, -1)
            reached[block] = own.max()


def test_lanes_are_as_many_as_was_said_at_most():
    assert BlockOrder([10] * 100, 32, (0, 0)).lanes <= 64
    assert BlockOrder([10] * 100, 32, (0, 0), 5).lanes <= 5
    assert BlockOrder([1000], 32, (0, 0)).lanes == 1


def test_large_sets_do_not_overflow():
    total = 2_000_000_011
    order = BlockOrder([total // 256] * 255 + [total - total // 256 * 255], 64, (0, 0))
    (window,) = order.windows(total // 64 - 1, 4, total // 64)
    assert window.shape == (1, 64)
    assert len(set(window.ravel())) == 64
    assert window.min() >= 0
    assert window.max() < total


def test_seed_and_epoch_draw_the_order():
    orders = {
        tuple(np.concatenate(batches([50, 70, 90], 16, (seed, epoch)))) for seed in range(3) for epoch in range(3)
    }
    assert len(orders) == 9


def test_a_batch_has_examples_from_all_lanes_and_a_window_is_shuffled():
    found = batches([100] * 256, 64, together=8)
    assert np.mean([len(set(numbers // 100)) for numbers in found]) > 50
    neighbours = np.diff(np.stack(found[:8]).ravel())
    assert np.mean(np.abs(neighbours) == 1) < 0.05


def test_blocks_of_one_example_are_a_full_shuffle():
    """The place of an example is uniform over 1,000 seeds."""
    places = [np.concatenate(batches([1] * 40, 8, (seed, 0))).tolist().index(7) for seed in range(1000)]
    assert stats.chisquare(np.bincount(places, minlength=40)).pvalue > 1e-3


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_need_other_blocks(workers):
    found = np.stack(batches([100] * 256, 64, together=16))
    shares = np.split(found, workers, axis=1)
    needed = [len(set(share.ravel() // 100)) for share in shares]
    assert sum(needed) < 1.1 * 256
