"""What is switched off costs nothing: the operations of the traced step, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf
from step_helpers import traced_update
from training_helpers import adam, sequential, tanh_net

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.reduce import reduction
from mirrorkit.train.totals.totals import DIVISOR, EXAMPLES

L = keras.layers
SPEC = tf.TensorSpec([12, 4]), tf.TensorSpec([12, 1])


def _operations(graph: Any) -> Counter[str]:
    definition = graph.as_graph_def()
    return Counter(
        node.op for nodes in (definition.node, *(f.node_def for f in definition.library.function)) for node in nodes
    )


def _step_operations(make_loop: Any, **options: Any) -> tuple[Any, Counter[str]]:
    step, graph = _step_graph(make_loop, **options)
    return step, _operations(graph)


def _step_graph(make_loop: Any, **options: Any) -> tuple[Any, Any]:
    loop = make_loop(("mirrored", 2), tanh_net, adam, **options)
    traced = traced_update(loop, *SPEC)
    return loop.step.for_loop(loop.strategy), traced.graph


def _update_of(step: Any) -> Iterator[Any]:
    return iter(step.functions._new_values._traces.values())


def test_a_plain_step_holds_nothing_but_the_step(make_loop: Any) -> None:
    step, found = _step_operations(make_loop, loss_weights=[1.0])
    assert not {"If", "StatelessIf", "While", "IsFinite", "AssignAddVariableOp"} & set(found)
    # four weights, two slots of each, iterations: the learning rate stays as it is, so it is not written
    assert found["AssignVariableOp"] == 2 * (4 + 8 + 1)

    @tf.function(autograph=False)
    def by_hand(weights: Any, slots: Any, gradients: Any, totals: Any) -> Any:
        denominator, _ = totals[DIVISOR], totals[EXAMPLES]
        means = [tf.math.divide_no_nan(gradient, denominator) for gradient in gradients]
        return mk.optim.functional_apply(step.functions.optimizer._optimizer, weights, slots, means), totals

    groups = step.functions.variables.weights, step.functions.variables.slots
    weights, slots = ([tf.convert_to_tensor(v.value) for v in group] for group in groups)
    expected = _operations(by_hand.get_concrete_function(weights, slots, weights, tf.ones([4])).graph)
    (update,) = _update_of(step)
    found = _operations(update.graph)
    assert found.pop("Identity") == expected.pop("Identity") - 1  # one for each value returned
    assert found == expected


def test_no_branch_asks_the_device(make_loop: Any) -> None:
    """A branch is chosen on the host, which would wait for the device in every step."""

    def net() -> Any:
        return sequential((4,), L.Dense(5), L.BatchNormalization(synchronized=True), L.Dropout(0.5), L.Dense(1))

    options = {"loss_scale": "dynamic", "clip_norm": 1.0, "ema": 0.9, "accumulate": 2}
    loop = make_loop(("mirrored", 2), net, adam, **options)
    found = _operations(traced_update(loop, *SPEC, batches=2).graph)
    assert found["IsFinite"] == 1  # of all gradients, in the update that both replicas call
    assert not {"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"} & set(found)


@pytest.mark.parametrize(("size", "numbers"), [(2**20, [36]), (64, [20, 16])])
def test_messages_have_the_size_of_the_constant(
    make_loop: Any, monkeypatch: pytest.MonkeyPatch, size: int, numbers: list[int]
) -> None:
    """36 numbers of four bytes: all in one message, or the first kernel by itself and 64 bytes of the others."""
    monkeypatch.setattr(reduction, "message_size", lambda device: size)
    _, graph = _step_graph(make_loop)
    assert [op.outputs[0].shape.num_elements() for op in graph.get_operations() if op.type == "AddN"] == numbers


def test_collectives_leave_the_messages_apart(strategy_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On several GPUs and several workers; TensorFlow would pack them into one again."""
    strategy = strategy_of("mirrored", 2, "ring")
    sums = [tf.ones([8]), tf.ones([20]), tf.ones([3, 2])]
    for size, messages in ((2**20, 1), (64, 3)):
        monkeypatch.setattr(reduction, "message_size", lambda device, size=size: size)

        @tf.function(autograph=False)
        def reduced() -> Any:
            return strategy.run(lambda: mk.train.all_reduce(sums))

        traced = reduced.get_concrete_function()
        found = sum(op.type.startswith("CollectiveReduce") for op in traced.graph.get_operations())
        assert found == 2 * messages  # of two replicas
        assert sum(float(tf.reduce_sum(part)) for value in traced() for part in value.values) == 4 * (8 + 20 + 6)
