from __future__ import annotations

import pytest
import tensorflow as tf

import mirrorkit as mk


@pytest.mark.parametrize(
    ("kind", "replicas"),
    [("one_device", 1), ("mirrored", 2), ("mirrored", 4), ("central_storage", 2), ("auto", 4), ("auto", 1)],
)
def test_every_replica_computes_on_its_own_device(strategy_of, kind, replicas):
    strategy = strategy_of(kind, replicas)
    assert strategy.num_replicas_in_sync == replicas

    def replica():
        return tf.identity(tf.constant(1.0)), tf.distribute.get_replica_context().replica_id_in_sync_group

    ones, _ = strategy.run(replica)
    values = strategy.experimental_local_results(ones)
    assert [v.device.rpartition(":")[2] for v in values] == [str(i) for i in range(replicas)]
    assert float(strategy.reduce("SUM", ones, axis=None)) == replicas


def test_unknown_kind_names_the_known_ones():
    with pytest.raises(mk.errors.StrategyError, match="'mirrored'"):
        mk.strategy.create("horovod")
