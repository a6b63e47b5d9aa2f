"""Synchronized BatchNorm: the statistics of the whole global batch, on however many replicas, with empty shares too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import cut, train, train_by_hand
from training_helpers import THREE, keras_twin, largest_difference, plain_dataset, sequential

from mirrorkit._keras import keras
from mirrorkit.errors import StepError
from mirrorkit.train.ambient import ambient
from mirrorkit.train.keras_model import keras_operations
from mirrorkit.train.reduce.reduction import all_reduce
from mirrorkit.train.step.global_batch import HostBatch, OwnRows, weigh_copies

L = keras.layers


def _sgd() -> Any:
    return keras.optimizers.SGD(0.01)


def _net() -> Any:
    """The gradients of its convolution and max pooling fail on no rows."""
    return sequential(
        (4, 4, 1),
        L.Conv2D(3, 2, use_bias=False),
        L.BatchNormalization(momentum=0.5, synchronized=True),
        L.MaxPool2D(),
        L.Flatten(),
        L.Dense(1),
    )


@pytest.fixture(scope="module")
def images() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, 4, 4, 1)).astype("float32"), rng.normal(size=(40, 1)).astype("float32")


def test_equals_one_device_with_full_partial_and_empty_shares(
    make_loop: Any, images: Any, assert_replicas_equal: Any
) -> None:
    """On three replicas 14 is 5, 5, 4; 4 is 2, 2, 0; 1 is 1, 0, 0."""
    loop = make_loop(THREE, _net, _sgd, metrics=["mae"])
    model, batches = keras_twin(_net, loop), cut(*images, sizes=[14, 4, 16, 3, 1, 1])
    logs = train(loop, batches)
    losses = train_by_hand(model, _sgd(), batches)
    np.testing.assert_allclose([log["loss"] for log in logs], losses, rtol=1e-4)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-5
    assert_replicas_equal(loop)


@pytest.mark.parametrize("static", [pytest.param(True, marks=pytest.mark.slow), False])
def test_one_copy_counts_in_totals_and_a_part_of_each_in_gradients(static: bool, make_loop: Any, images: Any) -> None:
    """Three replicas, four images: 2, 2, 0. A sum of thirds need not be the whole number of examples that it should."""
    loop = make_loop(("mirrored", 3), _net, _sgd, metrics=["mae"])
    strategy, step = loop.strategy, loop.step.for_loop(loop.strategy)
    x, y = (tf.constant(part[:4]) for part in images)
    model = keras_twin(_net, loop)
    error = np.abs(model(x, training=True) - y)
    step.prepare((x, y))

    @tf.function(autograph=False)
    def sums(*batch: Any) -> Any:
        return strategy.run(lambda: step.sums(HostBatch(batch)))

    size = 4 if static else None
    of_replicas = sums.get_concrete_function(*[tf.TensorSpec([size, *part.shape[1:]]) for part in (x, y)])(x, y)
    totals, *gradients = (
        strategy.experimental_local_results(value)
        for value in (of_replicas["totals"], of_replicas["gradients"][0], of_replicas["state"][0])
    )
    assert [total[0] for total in totals] == [4, 0, 0]
    np.testing.assert_allclose(totals[0][-2] / totals[0][-1], np.mean(error), rtol=1e-4)
    for values in gradients:
        assert np.abs(values[0]).max() > 1e-4
        for other in values[1:]:
            np.testing.assert_allclose(other, values[0], rtol=1e-4, atol=1e-6)


def _assert_as_gathered(strategy: Any, global_batch: Any, spec: Any, batches: Any) -> None:
    """What the replicas cut from a global batch, and how it counts, is what they gather where shares were dealt out."""

    def without_size(rows: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.PlaceholderWithDefault(input=rows, shape=[None, *rows.shape[1:]])

    def on_replica(batch: Any) -> Any:
        cut = global_batch(batch)
        dealt = OwnRows(tf.nest.map_structure(without_size, cut.rows()))
        one = {"totals": tf.constant(1.0), "state": tf.constant(1.0)}
        ways = [(rows, weigh_copies(one, is_all)) for rows, is_all in (cut.rows_or_all(), dealt.rows_or_all())]
        return tf.nest.map_structure(tf.identity, ways)

    traced = tf.function(lambda batch: strategy.run(on_replica, args=(batch,)), autograph=False)
    traced = traced.get_concrete_function(spec)
    for batch in batches:
        found = [
            [part.numpy() for value in tf.nest.flatten(way) for part in strategy.experimental_local_results(value)]
            for way in traced(*tf.nest.flatten(batch))
        ]
        cut_here, gathered = ([(part.shape, part.tobytes()) for part in way] for way in found)
        assert cut_here == gathered


def test_rows_cut_from_the_global_batch_are_those_gathered(strategy_of: Any, images: Any) -> None:
    """Bit for bit, whether the size is known beforehand or not."""
    batches = [tuple(tf.constant(part[:size]) for part in images) for size in (1, 2, 5, 8)]
    for size, some in ((2, batches[1:2]), (None, batches)):
        spec = tuple(tf.TensorSpec([size, *part.shape[1:]]) for part in images)
        _assert_as_gathered(strategy_of(*THREE), HostBatch, spec, some)


def test_an_empty_share_of_static_size_is_refused(make_loop: Any, images: Any) -> None:
    """In a custom training loop no other replica knows: an error, not a replica that waits for the others for ever."""
    loop = make_loop(("mirrored", 2), _net, _sgd)
    strategy, step = loop.strategy, loop.step
    batch = tuple(
        strategy.experimental_distribute_values_from_function(
            lambda context, part=part: tf.constant(part[: 2 if context.replica_id_in_sync_group == 0 else 0])
        )
        for part in images
    )
    with pytest.raises(StepError, match="no example"):
        strategy.run(step.compute, args=(batch,))


def test_means_over_what_a_mask_leaves_in_the_first_trace_of_a_custom_loop(make_loop: Any) -> None:
    """Only that trace shows that replicas have to ask each other, also how many rows each has."""

    def net() -> Any:
        return sequential((3, 2), L.Masking(), L.Dense(1))

    x, y = np.random.default_rng(0).normal(size=(2, 5, 3, 2)).astype("float32")
    x[:3, 1] = 0
    found = []
    for where in (("mirrored", 2), ("one_device", 1)):
        loop = make_loop(where, net, _sgd)
        strategy, step = loop.strategy, loop.step
        data = tf.data.Dataset.from_tensor_slices((x, y[..., :1])).batch(4)  # the last share is empty
        data = strategy.experimental_distribute_dataset(data)

        @tf.function(input_signature=[data.element_spec])
        def trained(batch: Any, strategy: Any = strategy, step: Any = step) -> Any:
            return step.update(strategy, strategy.run(step.compute, args=(batch,)))

        for batch in data:
            trained(batch)
        found.append(step.model.get_weights())
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)


@pytest.mark.parametrize("where", [("one_device", 1), ("mirrored", 2)], ids=["1", "2"])
def test_batches_of_two_sizes_that_a_custom_loop_adds_up(where: tuple[str, int], make_loop: Any) -> None:
    """The update of both, with `accumulate`: Keras's of the examples in one batch."""

    def net() -> Any:
        return sequential((4,), L.Dense(1))

    loop = make_loop(where, net, _sgd, accumulate=2)
    x, y = np.random.default_rng(0).normal(size=(2, 18, 4)).astype("float32")
    twin = keras_twin(net, loop)
    twin.compile(_sgd(), "mse")
    twin.train_on_batch(x, y[:, :1])
    strategy, step = loop.strategy, loop.step
    step.build(strategy)
    parts = [tuple(map(tf.constant, (x[rows], y[rows, :1]))) for rows in (slice(12), slice(12, 18))]

    @tf.function
    def trained(*batches: Any) -> Any:
        def summed() -> Any:
            one, other = (step.compute(HostBatch(batch).rows()) for batch in batches)
            return tf.nest.map_structure(tf.add, one, other)

        return step.update(strategy, strategy.run(summed))

    trained(*parts)
    np.testing.assert_allclose(step.model.get_weights()[0], twin.get_weights()[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("whose", ["loop", "user"])
def test_examples_travel_only_where_nobody_knows_the_global_batch(whose: str, make_loop: Any) -> None:
    """A Loop cuts rows from the global batch; a custom training loop gathers those of unknown size."""
    loop = make_loop(("mirrored", 2), _net, _sgd)
    strategy, step = loop.strategy, loop.step.for_loop(loop.strategy)
    step.prepare((tf.TensorSpec([None, 4, 4, 1]), tf.TensorSpec([None, 1])))

    def of_loop(*batch: Any) -> Any:
        return step.train([HostBatch(batch)])

    def of_user(*batch: Any) -> Any:
        return strategy.run(lambda: loop.step.compute(HostBatch(batch).rows()))["totals"]

    traced = tf.function(of_loop if whose == "loop" else of_user, autograph=False)
    gathered = []
    for rows in (8, 7, None):
        spec = tf.TensorSpec([rows, 4, 4, 1]), tf.TensorSpec([rows, 1])
        joined = [
            o.outputs[0].shape for o in traced.get_concrete_function(*spec).graph.get_operations() if "Concat" in o.type
        ]
        gathered.append(any(shape.rank == 4 and shape[1:] == [4, 4, 1] for shape in joined))
    assert gathered == [False, False, whose == "user"]


def test_a_layer_sends_one_message_each_way(make_loop: Any, images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its sum, sum of squares and count Keras makes three."""
    sent: list[int] = []

    def count(message: tf.Tensor) -> tf.Tensor:
        sent.append(message.shape.num_elements())
        return all_reduce(message)

    monkeypatch.setattr(keras_operations, "all_reduce", count)
    train(make_loop(("mirrored", 2), _net, _sgd), cut(*images, sizes=[8]))
    assert sent.count(2 * 3 + 1) == sent.count(2 * 3)  # three channels, and forward the count
    assert len(sent) % 4 == 0  # forward and back on each replica, in each trace


def _derivatives(x: tf.Tensor, axes: list[int], keepdims: bool, weight: float) -> tuple[tf.Tensor, ...]:
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            mean, variance = keras.ops.moments(x, axes, keepdims=keepdims, synchronized=True)
            value = weight * tf.reduce_sum(tf.sin(mean) + variance**2)
        first = tape.gradient(value, x)
        cubes = tf.reduce_sum(first**3)
    return mean, variance, first, outer.gradient(cubes, x)


@pytest.mark.parametrize(("axes", "keepdims"), [([0, 1], False), ([0, -1], True)], ids=str)
def test_moments_and_both_derivatives_are_those_of_the_whole_batch(
    axes: list[int], keepdims: bool, strategy_of: Any
) -> None:
    """What replicas minimize adds up: 1 and 2 times the value, of 3 and 2 rows."""
    strategy = strategy_of("mirrored", 2)
    x = tf.constant(np.random.default_rng(0).normal(size=(5, 3, 4)))

    def on_replica() -> Any:
        number = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
        with ambient.set(on_device=True):
            return _derivatives([x[:3], x[3:]][number], axes, keepdims, number + 1)

    run = tf.function(lambda: strategy.run(on_replica), autograph=False)
    found = [strategy.experimental_local_results(value) for value in run()]
    for parts, expected in zip(found, _derivatives(x, axes, keepdims, 3), strict=True):
        values = [tf.concat(parts, 0)] if parts[0].shape[0] == 3 and expected.shape[0] == 5 else parts
        for value in values:
            np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-12)


def test_synchronized_moments_are_at_most_twice_the_operations_of_plain_ones(strategy_of: Any) -> None:
    """With their gradient, on each replica: the time to the first update follows from it."""
    strategy = strategy_of("mirrored", 2)

    def operations(synchronized: bool) -> int:
        def on_replica(x: tf.Tensor) -> tf.Tensor:
            with ambient.set(on_device=True), tf.GradientTape() as tape:
                tape.watch(x)
                moments = keras.ops.moments(x, [0, 1, 2], synchronized=synchronized)
            return tape.gradient(moments, x)

        run = tf.function(lambda x: strategy.run(on_replica, (x,)), autograph=False)
        return len(run.get_concrete_function(tf.TensorSpec([4, 3, 3, 2])).graph.get_operations())

    assert operations(True) <= 2 * operations(False)


def test_masked_inputs_are_refused(make_loop: Any) -> None:
    def net() -> Any:
        return sequential((3, 2), L.Masking(), L.BatchNormalization(synchronized=True), L.Flatten(), L.Dense(1))

    x = np.ones((12, 3, 2), "float32")
    with pytest.raises(StepError, match="mask"):
        make_loop(THREE, net).fit(plain_dataset(x, x[:, 0, :1], batch=6), verbose=0)


class Keeps(L.Layer):
    """Keeps, over a message, what it is to add afterwards: in a list, a dict, or by a counter."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.count, self.kept, self.same = kind, 0, {}, []
        self.first, self.norm = L.Dense(3), L.BatchNormalization(synchronized=True)

    def call(self, x: Any, training: bool | None = None) -> Any:
        own = self.first(x)
        self.count = 1
        self.kept = {"x": own} if self.kind == "dict" else [[own]]
        if self.kind == "list that stays":
            self.same.clear()
            self.same.append(own)
        if self.kind == "ragged":
            self.kept = tf.RaggedTensor.from_tensor(own)
        found = self.norm(own, training=training)
        self.count += 1
        if self.kind == "counter":
            return found * self.count
        if self.kind == "list that stays":
            return found + self.same[0]
        if self.kind == "ragged":
            return found + self.kept.to_tensor()
        return found + (self.kept["x"] if self.kind == "dict" else self.kept[0][0])


@pytest.mark.parametrize("kind", ["list", "list that stays", "dict", "counter", "ragged"])
def test_what_a_layer_keeps_over_a_message_is_its_replica_s(kind: str, make_loop: Any, images: Any) -> None:
    def net() -> Any:
        return sequential((4, 4, 1), L.Flatten(), Keeps(kind), L.Dense(1))

    loop = make_loop(("mirrored", 2), net, _sgd)
    model, batches = keras_twin(net, loop), cut(*images, sizes=[14, 10])
    losses = train_by_hand(model, _sgd(), batches)
    np.testing.assert_allclose([logs["loss"] for logs in train(loop, batches)], losses, rtol=1e-5)
    assert largest_difference(loop.step.model.get_weights(), model.get_weights()) < 1e-5
