"""What a step with tables does not do: read a table, hold a tensor of its size, change a row that may stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from step_helpers import traced_update
from table_helpers import BATCH, OPTIMIZERS, ROWS, SIZE, WIDTH, WORDS, fitted, net, words
from training_helpers import values_of

from mirrorkit.train.step import tables
from mirrorkit.train.step.global_batch import HostBatch
from mirrorkit.variables import copies

pytestmark = pytest.mark.usefixtures("small_tables")

_SPEC = tf.TensorSpec([BATCH, WORDS], tf.int64), tf.TensorSpec([BATCH, 1])


@pytest.mark.parametrize(
    ("name", "how", "stay"),
    [
        ("Adam", True, False),
        pytest.param("Adam", "lazy", True, marks=pytest.mark.slow),
        pytest.param("Adagrad", True, True, marks=pytest.mark.slow),
        pytest.param("RMSprop", "lazy", True, marks=pytest.mark.slow),
    ],
)
def test_rows_that_were_not_looked_up(name: str, how: Any, stay: bool, make_loop: Any) -> None:
    """Under Adam they move on, unless it is lazy; before, they were looked up, and row 0 and the last are among them.

    The last batch of one example leaves two of three shares empty.
    """
    rng = np.random.default_rng(2)
    loop = make_loop(("mirrored", 3), net, OPTIMIZERS[name], sparse_embeddings=how)
    fitted(loop, words(BATCH), epochs=1)
    before = values_of(loop)
    ids, y = rng.choice(ROWS[:10], (BATCH + 1, WORDS)), rng.normal(size=(BATCH + 1, 1)).astype("float32")
    fitted(loop, (ids, y), epochs=1)
    is_seen = np.isin(np.arange(SIZE), ids)
    pairs = [pair for pair in zip(before, values_of(loop), strict=True) if pair[0].shape == (SIZE, WIDTH)]
    assert len(pairs) == {"Adagrad": 2, "Adam": 3, "RMSprop": 4}[name]
    for old, new in pairs:
        assert np.array_equal(old[~is_seen], new[~is_seen]) is stay
        assert np.all(np.any(old[is_seen] != new[is_seen], 1))


def _graphs(make_loop: Any, name: str, **options: Any) -> list[Any]:
    """The graphs of a step of two replicas, of a test and of a prediction, and those of all that they call."""
    loop = make_loop(("mirrored", 2), net, OPTIMIZERS[name], **options)
    step = loop.step.for_loop(loop.strategy)
    graphs = [traced_update(loop, *_SPEC).graph]
    for function in (step.test, step.predict):
        run = tf.function(lambda *batch, f=function: loop.strategy.run(f, args=(HostBatch(batch),)), autograph=False)
        graphs.append(run.get_concrete_function(*_SPEC).graph)
    pure = [one for _, one in getattr(step.functions.optimizer, "_pure", {}).values()]
    functions = step.functions
    once = [*functions._traced.values(), functions._new_values, *pure]
    return [*graphs, *(trace.graph for one in once for trace in one._traces.values())]


def _operations(graphs: list[Any], smallest: int) -> Iterator[Any]:
    """The operations with a result of at least so many numbers."""
    for graph in graphs:
        for operation in graph.get_operations():
            if any(
                output.shape.rank is None or (output.shape.num_elements() or 0) >= smallest
                for output in operation.outputs
            ):
                yield operation


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("SGD", marks=pytest.mark.slow), "Adagrad"])
def test_no_tensor_is_as_large_as_a_table(name: str, make_loop: Any) -> None:
    smallest = SIZE * WIDTH // 8
    graphs = _graphs(make_loop, name, sparse_embeddings=True)
    assert [operation.name for operation in _operations(graphs, smallest)] == []
    dense = {operation.type for operation in _operations(_graphs(make_loop, name, sparse_embeddings=False), smallest)}
    assert "ReadVariableOp" in dense  # so the test sees them


@pytest.mark.parametrize(("device", "block"), [("CPU", "_BLOCK"), ("GPU", "_GPU_BLOCK")])
def test_blocks_are_the_largest_tensors_of_other_optimizers(
    make_loop: Any, monkeypatch: pytest.MonkeyPatch, device: str, block: str
) -> None:
    monkeypatch.setattr(tables, block, 1000 * WIDTH * 4)
    monkeypatch.setattr(tables, "replica_devices", lambda _: [f"/device:{device}:{i}" for i in range(2)])
    graphs = _graphs(make_loop, "Adam", sparse_embeddings=True)
    assert [operation.name for operation in _operations(graphs, 1001 * WIDTH)] == []
    assert [operation.name for operation in _operations(graphs, 1000 * WIDTH)] != []


@pytest.mark.cpu
def test_replicas_have_memory_of_their_own_before_an_update(make_loop: Any) -> None:
    """They would all copy what they share, at the same time. What is written by rows is copied when it is read."""
    loop = make_loop(("mirrored", 2), net, OPTIMIZERS["Adam"], sparse_embeddings=True)
    step = loop.step.for_loop(loop.strategy)
    step.prepare(_SPEC)
    of_table = [copies(v) for v in step.variables if tuple(v.shape) == (SIZE, WIDTH)]
    assert len(of_table) == 3
    assert all(_share_memory(*pair) for pair in of_table)
    traced_update(loop, *_SPEC)
    assert not any(_share_memory(one, one) for pair in of_table for one in pair)


def _share_memory(one: tf.Variable, other: tf.Variable) -> bool:
    """Whether the values that are read of two variables, or twice of one, lie in the same memory."""
    return np.shares_memory(*[np.asarray(tf.convert_to_tensor(variable)) for variable in (one, other)])


def test_the_message_is_the_largest_tensor(make_loop: Any) -> None:
    """Both replicas' rows, each with two numbers for its id."""
    largest = 2 * (BATCH // 2) * WORDS * (WIDTH + 2)
    graphs = _graphs(make_loop, "SGD", sparse_embeddings=True)
    assert list(_operations(graphs, largest))
    assert list(_operations(graphs, largest + 100)) == []  # beside it in the message: kernel, bias, totals
