"""`sparse_embeddings="lazy"`: rows change where they are looked up, as in plain NumPy; and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from step_helpers import numbers_of, train_by_hand
from table_helpers import BATCH, SIZE, UNEVEN, WORDS, fitted, line_on, net, tied, words
from training_helpers import keras_twin, largest_difference, plain_dataset

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L, o = keras.layers, keras.optimizers
pytestmark = pytest.mark.usefixtures("small_tables")

_RATE, _BETA_1, _BETA_2, _EPSILON = 0.02, 0.9, 0.999, 1e-7


def _adam() -> Any:
    return o.Adam(_RATE, _BETA_1, _BETA_2, _EPSILON)


def _by_numpy(start: list[np.ndarray], x: np.ndarray, y: np.ndarray, *, lazy: bool) -> list[np.ndarray]:
    """Table, kernel and bias, then first and second moments of each, after two epochs of Adam, in float64."""
    weights = [value.astype("float64") for value in start]
    first, second = ([np.zeros_like(w) for w in weights] for _ in range(2))
    updates = 0
    for _ in range(2):
        for begin in range(0, len(x), BATCH):
            ids, target = x[begin : begin + BATCH] % SIZE, y[begin : begin + BATCH]
            rows, kernel, bias = weights
            pooled = rows[ids].mean(1)
            error = 2 * (pooled @ kernel + bias - target) / len(ids)
            of_rows = np.zeros_like(rows)
            np.add.at(of_rows, ids, (error @ kernel.T / WORDS)[:, None])
            updates += 1
            step = _RATE * np.sqrt(1 - _BETA_2**updates) / (1 - _BETA_1**updates)
            for i, gradient in enumerate((of_rows, pooled.T @ error, error.sum(0))):
                own = np.unique(ids) if lazy and i == 0 else slice(None)
                g = gradient[own]
                first[i][own] = _BETA_1 * first[i][own] + (1 - _BETA_1) * g
                second[i][own] = _BETA_2 * second[i][own] + (1 - _BETA_2) * g**2
                weights[i][own] -= step * first[i][own] / (np.sqrt(second[i][own]) + _EPSILON)
    return [*weights, *first, *second]


def _state(model: Any, optimizer: Any) -> list[np.ndarray]:
    """Weights, and their moments."""
    moments = [v for kind in ("_momentum", "_velocity") for v in optimizer.variables if v.path.endswith(kind)]
    return [*model.get_weights(), *numbers_of(moments)]


@pytest.mark.slow
def test_as_plain_numpy(make_loop: Any, assert_replicas_equal: Any) -> None:
    """The control is how far Keras's own Adam, on dense gradients, is from its arithmetic in float64."""
    x, y = words(UNEVEN)
    loop = make_loop(("mirrored", 3), net, _adam, sparse_embeddings="lazy")
    model, optimizer = keras_twin(net, loop), _adam()
    start = model.get_weights()
    whole = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]
    train_by_hand(model, optimizer, whole * 2)
    control = largest_difference(_state(model, optimizer), _by_numpy(start, x, y, lazy=False))
    fitted(loop, (x, y))
    found = _state(loop.step.model, loop.step.optimizer)
    assert largest_difference(found, _by_numpy(start, x, y, lazy=True)) <= 3 * control
    assert largest_difference(found, _by_numpy(start, x, y, lazy=False)) > 1e-3  # which is another result
    assert_replicas_equal(loop)


# --- refusals


@pytest.mark.parametrize("make_net", [tied, line_on(embeddings_regularizer="l2")], ids=["tied", "regularized"])
def test_tables_that_are_used_otherwise_too_are_refused(make_net: Any, make_loop: Any) -> None:
    loop = make_loop(("mirrored", 2), make_net, _adam, sparse_embeddings="lazy")
    with pytest.raises(StepError, match=r"table/embeddings.* is not by rows"):
        fitted(loop, words(BATCH))


def test_synchronized_layers_are_refused(make_loop: Any) -> None:
    make_net = line_on(lambda: L.BatchNormalization(synchronized=True))
    with pytest.raises(StepError, match=r"'lazy' .*synchronized layers"):
        make_loop(("mirrored", 2), make_net, _adam, sparse_embeddings="lazy")


def test_batches_of_no_known_size_are_refused(make_loop: Any) -> None:
    """Of a dataset, and by hand."""
    loop = make_loop(("mirrored", 2), net, _adam, sparse_embeddings="lazy")
    data = plain_dataset(*words(BATCH), batch=BATCH).filter(lambda x, y: True)
    with pytest.raises(StepError, match=r"size of the batch is not known.*known sizes"):
        loop.fit(data, verbose=0)
    batch = loop.strategy.experimental_distribute_values_from_function(lambda context: words(4))
    with pytest.raises(StepError, match=r"size of the batch is not known.*from a Loop"):
        loop.strategy.run(loop.step.compute, args=(batch,))


def test_accumulation_and_a_loss_of_the_whole_batch_are_refused() -> None:
    with pytest.raises(StepError, match=r"'lazy' .*accumulate=2"):
        mk.train.Step(net(), _adam(), loss="mse", accumulate=2, sparse_embeddings="lazy")
    model = net()

    def values(batch: Any, training: bool) -> Any:
        return mk.train.all_gather(model(batch[0], training=training))[:, 0]

    with pytest.raises(StepError, match=r"'lazy' .*whole_batch=True"):
        mk.train.Step.from_loss(model, _adam(), values, whole_batch=True, sparse_embeddings="lazy")
