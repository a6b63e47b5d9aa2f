from __future__ import annotations

import tensorflow as tf

import mirrorkit as mk


def test_one_process_has_one_worker_and_is_its_chief(strategy_of):
    for strategy in (strategy_of("mirrored", 2), tf.distribute.get_strategy()):
        assert mk.strategy.num_workers(strategy) == 1
        assert mk.strategy.worker_index(strategy) == 0
        assert mk.strategy.is_chief(strategy)
        assert mk.strategy.of_all_workers(strategy, 7) == [7.0]
