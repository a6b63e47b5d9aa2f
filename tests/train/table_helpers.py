"""The same training without tables and with them: nets with a table, data, and how far two trainings are apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from training_helpers import set_values, values_of

import mirrorkit as mk
from mirrorkit._keras import keras

L, o = keras.layers, keras.optimizers
SIZE, WIDTH = 8192, 32  # 1 MiB: the smallest table
BATCH, WORDS = 12, 5
ROWS = np.unique(np.random.default_rng(7).integers(1, SIZE - 1, 30))  # what is looked up, beside the first and the last
OPTIMIZERS: dict[str, Callable[[], Any]] = {  # all of them: tests/equivalence, and tests/optim/test_by_rows.py
    "SGD": lambda: o.SGD(0.5),
    "Adagrad": lambda: o.Adagrad(0.1),
    "Adam": lambda: o.Adam(0.02),
    "AdamW": lambda: o.AdamW(0.02, weight_decay=0.1),
    "RMSprop": lambda: o.RMSprop(0.01, momentum=0.5, centered=True),
}
UNEVEN, LONELY = 3 * BATCH + 7, 3 * BATCH + 1  # examples; the last batch has 7, or 1 and leaves shares empty


def table(name: str = "table", **options: Any) -> Any:
    """An Embedding that is just large enough."""
    return L.Embedding(SIZE, WIDTH, name=name, **options)


def net() -> Any:
    """The mean of the rows of some words, and a line."""
    words = keras.Input((WORDS,), dtype="int64")
    return keras.Model(words, L.Dense(1)(L.GlobalAveragePooling1D()(table()(words))))


def words_input() -> Any:
    """An Input of the words of examples."""
    return keras.Input((WORDS,), dtype="int64")


def line_on(*between: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    """A net: rows of a table with these options, the layers, a mean over the words where they leave any, and a line."""

    def make_net() -> Any:
        x = words_input()
        h = table(**options)(x)
        for make in between:
            h = make()(h)
        return keras.Model(x, L.Dense(1)(h if len(h.shape) == 2 else L.GlobalAveragePooling1D()(h)))

    return make_net


class Tied(L.Layer):
    """Scores each row of a table, and takes the mean."""

    def __init__(self, shared: Any) -> None:
        super().__init__()
        self.shared = shared

    def call(self, x: Any) -> Any:
        scores = keras.ops.matmul(x, keras.ops.transpose(self.shared.embeddings))
        return keras.ops.logsumexp(scores, -1, keepdims=True)


def tied() -> Any:
    """A net that multiplies with the table whose rows it looks up."""
    x, shared = words_input(), table()
    return keras.Model(x, Tied(shared)(L.GlobalAveragePooling1D()(shared(x))))


def words(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ids [count, 5], which repeat within examples, batches and replicas, and targets [count, 1]."""
    rng = np.random.default_rng(seed)
    ids = rng.choice([0, *ROWS, SIZE - 1, -1], (count, WORDS))  # -1 is the last row in Keras
    return ids, rng.normal(size=(count, 1)).astype("float32")


def batches(*parts: Any) -> mk.data.Batches:
    """A recipe whose batches have the examples in the order of the arrays."""
    return mk.data.batches(
        mk.data.arrays(*parts[:2], sample_weight=parts[2] if len(parts) > 2 else None),
        global_batch_size=BATCH,
        shuffle=False,
    )


def _within_batches(parts: Sequence[Any], seed: int) -> list[Any]:
    """The same batches with their examples in another order."""
    rng = np.random.default_rng(seed)
    count = len(parts[0])
    order = np.concatenate([i + rng.permutation(min(BATCH, count - i)) for i in range(0, count, BATCH)])
    return tf.nest.map_structure(lambda part: part[order], list(parts))


Outcome = dict[str, np.ndarray]


def fitted(loop: Any, parts: Sequence[Any], epochs: int = 2) -> Outcome:
    """Values of all variables by path, and logs, after a fit."""
    history = loop.fit(batches(*parts), epochs=epochs, verbose=0).history
    values = {variable.path.rpartition("/")[0] + f"/{i}": v for i, (variable, v) in enumerate(_valued(loop))}
    return values | {name: np.asarray(value) for name, value in history.items()}


def _valued(loop: Any) -> list[tuple[Any, np.ndarray]]:
    return list(zip(loop.step.variables, values_of(loop), strict=True))


def apart(one: Outcome, other: Outcome) -> float:
    """The largest difference, relative where values are above 1; integers are equal, or nothing is."""
    assert one.keys() == other.keys()
    worst = 0.0
    for name, value in other.items():
        found = np.asarray(one[name])
        if not np.issubdtype(value.dtype, np.floating):
            np.testing.assert_array_equal(found, value, err_msg=name)
            continue
        difference = np.max(np.abs(found.astype("float64") - value), initial=0) / max(
            1, np.max(np.abs(value), initial=0)
        )
        worst = float(np.maximum(worst, difference))  # NumPy's, as Python's would pass over a NaN
    return worst


def dense_and_by_rows(
    make_loop: Any,
    where: tuple[str, int],
    make_net: Callable[[], Any],
    optimizer: Callable[[], Any],
    parts: Sequence[Any],
    *,
    bits: bool = False,
    by_rows: Any = True,
    **options: Any,
) -> tuple[Any, Any]:
    """Train both ways and compare all variables and logs: within three times a control, or every bit.

    The control is the dense training with the examples of each batch in another order.
    """
    loops, found = [], []
    for asked in (False, by_rows):
        keras.utils.clear_session(free_memory=False)
        loop = make_loop(where, make_net, optimizer, sparse_embeddings=asked, **options)
        loop.step.build(loop.strategy)
        start = values_of(loop)
        found.append(fitted(loop, parts))
        assert any(not np.array_equal(a, b) for a, b in zip(start, values_of(loop), strict=True))
        loops.append((loop, start))
    (dense, start), (sparse, _) = loops
    assert dense.step.for_loop(dense.strategy).functions.tables == ()
    assert len(sparse.step.for_loop(sparse.strategy).functions.tables) > 0
    difference = apart(found[1], found[0])
    if bits:
        assert difference == 0, f"{difference:.1e} apart"
        return dense, sparse
    trained = values_of(dense)
    controls = []
    for seed in range(3):
        set_values(dense, start)
        controls.append(apart(fitted(dense, _within_batches(parts, seed)), found[0]))
    set_values(dense, trained)
    assert difference <= 3 * max(controls), f"{difference:.1e} apart, where another order gives {max(controls):.1e}"
    return dense, sparse
