"""What tracing finds out about a model: the same whatever is called first, and refused where it is not there yet."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from training_helpers import sequential

from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train.reduce.sparse_gradient import SparseGradient
from mirrorkit.train.step import facts as facts_
from mirrorkit.train.step.facts import ShardSums
from mirrorkit.train.totals.totals import FIXED

L = keras.layers


def _net() -> Any:
    model = sequential((4,), L.Dense(3), L.BatchNormalization(), L.Dropout(0.5), L.Dense(3), L.Dense(1))
    model.layers[3].trainable = False
    return model


def _batch(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    return rng.normal(size=(size, 4)).astype("float32"), rng.normal(size=(size, 1)).astype("float32")


def _compute(loop: Any, batch: Any, *, static: bool = True) -> Any:
    """Run the step's `compute` in a trace of its own, on rows whose number the trace knows or does not."""
    specs = [tf.TensorSpec(part.shape if static else [None, *part.shape[1:]], part.dtype) for part in batch]
    run = tf.function(
        lambda *batch: loop.strategy.run(loop.step.compute, args=(batch,)), input_signature=specs, autograph=False
    )
    return run(*batch)


def _functions(loop: Any) -> Any:
    return loop.step.for_loop(loop.strategy).functions


@pytest.fixture
def make(make_loop: Any) -> Callable[..., Any]:
    """`make(net, replicas=1, **Step's options)`: a loop whose step is built."""

    def make(net: Any = _net, replicas: int = 1, **options: Any) -> Any:
        return make_loop(("mirrored", replicas) if replicas > 1 else ("one_device", 1), net, **options)

    return make


def test_nothing_is_known_before_a_batch_was_seen(make: Any) -> None:
    loop = make()
    step = loop.step.for_loop(loop.strategy)
    for ask in (step.totals_size, lambda: step.modes, lambda: loop.step.logs(tf.zeros([5]))):
        with pytest.raises(StepError, match="seen a batch"):
            ask()
    step.prepare((tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])))
    assert step.totals_size() == FIXED + 2
    assert step.modes == {"loss": "min"}


def test_update_before_compute_says_what_to_call(make: Any) -> None:
    loop, other = make(), make()
    sums = _compute(loop, _batch(6))
    with pytest.raises(StepError, match=r"before step\.update"):
        other.step.update(other.strategy, sums)
    _compute(other, _batch(6))
    assert other.step.update(other.strategy, sums)["loss"] == loop.step.update(loop.strategy, sums)["loss"]


def test_the_first_replica_has_nothing(make: Any) -> None:
    """Each replica is traced for itself, the first one first; what it lacks it must find out all the same."""
    alone, loop = make(), make(replicas=2)
    rows = _batch(6)
    share = [tuple(part[:0] for part in rows), rows]

    def values(index: int) -> Any:
        return loop.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(share[context.replica_id_in_sync_group][index])
        )

    train = tf.function(
        lambda *batch: loop.step.update(loop.strategy, loop.strategy.run(loop.step.compute, args=(batch,))),
        autograph=False,
    )
    logs = train(values(0), values(1))
    expected = alone.step.update(alone.strategy, _compute(alone, rows))
    assert np.isfinite(logs["loss"])
    for kept in (0, 1, -1):  # Dropout draws by replica, so only what is before it is the same; the rest is finite
        assert np.isfinite(loop.step.model.get_weights()[kept]).all()
    mean = loop.step.model.layers[1].moving_mean.value.numpy()
    np.testing.assert_allclose(mean, alone.step.model.layers[1].moving_mean.value.numpy(), rtol=1e-5)
    assert set(logs) == set(expected)


def test_a_trace_that_finds_something_else_is_refused(make: Any) -> None:
    class Fickle(L.Dense):
        def call(self, x: Any, training: bool | None = None) -> Any:
            return tf.stop_gradient(super().call(x)) if x.shape[0] == 2 else super().call(x)

    loop = make(lambda: sequential((4,), Fickle(3), L.Dense(1)))
    _compute(loop, _batch(6))
    facts = _functions(loop).facts
    with pytest.raises(StepError, match="other weights"):
        _compute(loop, _batch(2))
    assert _functions(loop).facts is facts


@pytest.mark.parametrize(("replicas", "always"), [(1, False), (2, False), (2, True), (3, False)])
def test_tables_are_sent_by_rows_where_that_is_less(replicas: int, always: bool, strategy_of: Any) -> None:
    """A batch of 1024 looks up one row of each; the message is below 1 MB, where dense gradients have 154 MB."""
    shapes, width = [(1_000_000, 32), (200_000, 32), (40, 32), (32, 1)], 32
    share = -(-1024 // replicas)
    weights = [SimpleNamespace(shape=shape, path="table") for shape in shapes]
    strategy = strategy_of("mirrored", replicas)

    def sent() -> Any:
        rows = SparseGradient(tf.zeros([share], tf.int64), tf.zeros([share, width]))
        sums = ShardSums({0: [rows, rows, rows, tf.zeros(shapes[-1])]}, [None], tf.zeros([3]))
        return facts_.sent_by_rows(sums, sums, weights, always=always)["gradients"]

    (first, *_) = strategy.experimental_local_results(strategy.run(sent))
    by_rows = [replicas, share, width + 2]
    assert [one.shape.as_list() for one in first] == [by_rows, by_rows, by_rows if always else [40, 32], [32, 1]]
    assert sum(int(tf.size(one)) * 4 for one in first) < 1_000_000
