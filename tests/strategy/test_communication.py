"""The all-reduces between the devices of one machine."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.strategy import communication


@pytest.mark.parametrize(
    ("kind", "replicas", "how"),
    [
        *(("mirrored", 4, "auto"), ("central_storage", 2, "auto")),
        *(("mirrored", 2, how) for how in ("ring", "hierarchical", "one_device")),
    ],
)
def test_all_reduce_in_a_compiled_loop_is_exact_and_equal_on_all_replicas(strategy_of, kind, replicas, how):
    strategy = strategy_of(kind, replicas, how)
    shares = np.random.default_rng(0).integers(-100, 100, (replicas, 1000)).astype(np.float32)

    def replica(total):
        context = tf.distribute.get_replica_context()
        mine = tf.gather(tf.constant(shares), context.replica_id_in_sync_group)
        return total + context.all_reduce(tf.distribute.ReduceOp.SUM, mine)

    @tf.function
    def three_times():
        total = strategy.run(lambda: tf.zeros([1000]))
        for _ in tf.range(3):
            total = strategy.run(replica, args=(total,))
        return total

    for total in strategy.experimental_local_results(three_times()):
        np.testing.assert_array_equal(total.numpy(), 3 * shares.sum(axis=0))


def test_virtual_devices_reduce_on_one_device_and_real_gpus_by_default(strategy_of, monkeypatch):
    # TensorFlow's own choice for virtual devices is right but several times slower, so no result would show a relapse.
    chosen = []
    original = tf.distribute.MirroredStrategy

    def spy(names, cross_device_ops):
        chosen.append(cross_device_ops)
        return original(names, cross_device_ops=cross_device_ops)

    monkeypatch.setattr(tf.distribute, "MirroredStrategy", spy)
    mk.strategy.create("mirrored", devices="cpu:2")
    assert isinstance(chosen[-1], tf.distribute.ReductionToOneDevice)
    monkeypatch.setattr(communication, "share_physical_device", lambda names: False)
    mk.strategy.create("mirrored", devices="cpu:2")
    assert chosen[-1] is None
