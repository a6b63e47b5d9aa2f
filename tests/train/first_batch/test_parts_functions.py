"""The check of the first batch names losses and metrics that look at more than one row."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from first_batch_helpers import BINARY, CLASSES, ONE_HOT, TWO, AddsInTraining, X, binary_net, check, f1
from training_helpers import line_net, sequential

from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L = keras.layers
M = keras.metrics
ops = keras.ops
pytestmark = [
    pytest.mark.filterwarnings("ignore:A global batch of", "ignore:The loss .* does not fit the model"),
]


class _MeanOfBatches(M.Metric):
    def __init__(self) -> None:
        super().__init__(name="of_batches")
        self.total, self.count = self.add_variable((), "zeros"), self.add_variable((), "zeros")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(ops.mean(ops.abs(y - y_pred)))
        self.count.assign_add(1.0)

    def result(self) -> Any:
        return self.total / self.count


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "name"), [(f1, "f1"), (_MeanOfBatches(), "of_batches")], ids=["function", "class"])
def test_a_metric_of_whole_batches(metric: Any, name: str, make_loop: Any) -> None:
    loop = make_loop(TWO, binary_net, loss="mse", metrics=[metric, "mae"])
    with pytest.raises(StepError, match=rf"The metric '{name}'.*8 \+ 16 rows.*unchecked=\('{name}',\)"):
        check(loop, X, BINARY)
    again = make_loop(TWO, binary_net, loss="mse", metrics=[metric, "mae"], unchecked=(name,))
    check(again, X, BINARY)


def test_a_metric_of_a_model_that_the_user_compiled(loop_over: Any) -> None:
    def compiled() -> Any:
        net = binary_net()
        net.compile("sgd", "mse", metrics=[f1])
        return net

    with pytest.raises(StepError, match=r"The metric 'f1'.*unchecked=\('f1',\)"):
        check(loop_over(compiled), X, BINARY)


def test_a_metric_that_shows_no_fault_with_these_predictions(make_loop: Any) -> None:
    def net() -> Any:  # all predictions on one side of 0.5: F1 is 0 for the batch and for its parts
        return sequential((4,), L.Dense(1, activation="sigmoid", bias_initializer=keras.initializers.Constant(-9.0)))

    @keras.saving.register_keras_serializable("tests")
    def f1_as_rows(y: Any, y_pred: Any) -> Any:  # of [batch], so that its count adds up
        return f1(y, y_pred) * ops.ones_like(y[:, 0])

    with pytest.raises(StepError, match="The metric 'f1_as_rows'"):
        check(make_loop(TWO, net, loss="mse", metrics=[f1_as_rows]), X, BINARY)


def _pairs(y: Any, y_pred: Any) -> Any:
    similarity = ops.matmul(y_pred, ops.transpose(y_pred))
    return ops.logsumexp(similarity, axis=1) - ops.sum(y_pred * y_pred, axis=1)


@pytest.mark.parametrize("loss", [_pairs, keras.losses.Circle()], ids=["function", "Circle"])
def test_a_loss_over_pairs(loss: Any, make_loop: Any) -> None:
    def net() -> Any:
        return sequential((4,), L.Dense(3), L.UnitNormalization())

    with pytest.raises(StepError, match=r"\((_pairs|circle)\)"):
        check(make_loop(TWO, net, loss=loss), X, CLASSES)


def test_a_mean_over_targets_that_are_padded_later(make_loop: Any) -> None:
    def masked(y: Any, y_pred: Any) -> Any:
        counts = ops.cast(ops.not_equal(y, 0), "float32")
        each = keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)
        return ops.sum(counts * each) / ops.sum(counts)

    y = 1 + np.arange(24 * 5).reshape(24, 5) % 3  # the first batch has no padding
    loop = make_loop(TWO, lambda: sequential((5, 4), L.Dense(4)), loss=masked)
    with pytest.raises(StepError, match=r"\(masked\)"):
        check(loop, np.random.default_rng(0).normal(size=(24, 5, 4)).astype("float32"), y)


def test_an_accumulated_update_is_cut_too(make_loop: Any) -> None:
    loop = make_loop(
        ("one_device", 1), lambda: sequential((4,), L.Dense(3)), loss=_pairs, metrics=["mae"], accumulate=2
    )
    with pytest.raises(StepError, match=r"2 shards.*\(_pairs\)"):
        check(loop, X, ONE_HOT)
    # A metric sees batches there, as in Keras.
    check(make_loop(("one_device", 1), binary_net, metrics=[f1], accumulate=2), X, BINARY)


def test_a_rare_label_that_alone_shows_it(make_loop: Any) -> None:
    def balanced(y: Any, y_pred: Any) -> Any:
        rare = ops.cast(ops.equal(y, 1), "float32")
        return ops.mean(ops.square(y - y_pred), -1) + ops.max(rare)

    y = np.zeros((24, 1), "float32")
    y[7] = 1  # not among the rows that are seen
    with pytest.raises(StepError, match=r"\(balanced\)"):
        check(make_loop(TWO, binary_net, loss=balanced), X, y)


def _from(first: int) -> Any:
    """Return a function of rows: 2 from so many on, else 1."""
    return lambda x: ops.where(ops.shape(x)[0] >= first, 2.0, 1.0)


def _net_with(layer: Any) -> Any:
    return lambda: sequential((4,), layer, L.Dense(1))


def _adds_from(first: int) -> Any:
    return AddsInTraining(lambda x: _from(first)(x) * ops.mean(x))


def _squares(first: int) -> Any:
    return lambda y, y_pred: _from(first)(y) * ops.mean(ops.square(y - y_pred), -1)


KINDS: dict[str, tuple[Any, str]] = {
    "loss": (lambda first: (line_net, {"loss": _squares(first)}), "The loss"),
    "metric": (lambda first: (line_net, {"metrics": [_squares(first)]}), "The metric"),
    "layer": (lambda first: (_net_with(L.Lambda(lambda x: x * _from(first)(x))), {}), "on how many there are"),
    "added": (lambda first: (_net_with(_adds_from(first)), {}), "adds"),
}


@pytest.mark.parametrize(("kind", "replicas", "first"), [*zip(KINDS, (2, 2, 2, 4), (33, 64, 40, 17), strict=True)])
def test_what_begins_at_a_number_of_rows_between_a_share_and_the_batch(
    kind: str, replicas: int, first: int, make_loop: Any
) -> None:
    (of, match), x = KINDS[kind], np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    for number in (first, 65):
        net, options = of(number)
        with pytest.raises(StepError, match=match) if number < 65 else contextlib.nullcontext():
            check(make_loop(("mirrored", replicas), net, **options), x, x[:, :1])


def test_losses_are_compared_on_more_rows_than_a_large_model_sees(
    make_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirrorkit.train.first_batch.sampled_rows.ENOUGH", 200)
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    with pytest.raises(StepError, match=r"The loss.* for 21 \+ 43 rows"):
        check(make_loop(TWO, line_net, loss=_squares(40)), x, x[:, :1])
    check(make_loop(TWO, _net_with(_adds_from(40))), x, x[:, :1])  # a layer is not
