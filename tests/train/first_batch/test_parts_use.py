"""When the first batch is checked, what is left out, and what the check cannot compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from first_batch_helpers import BINARY, TWO, AddsInTraining, X, binary_net, check, class_net, f1, rng
from training_helpers import Keeps, largest_difference, line_net, plain_dataset, sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import DataError, StepError
from mirrorkit.train.first_batch import check as check_module
from mirrorkit.train.first_batch.check import first_batch_check

L = keras.layers
M = keras.metrics
ops = keras.ops
pytestmark = [
    pytest.mark.filterwarnings("ignore:A global batch of", "ignore:The loss .* does not fit the model"),
]


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _counted(x: Any) -> Any:
    """Return `x`, whose gradient is multiplied by the number of rows."""
    return tf.identity(x), lambda upstream: upstream * tf.cast(tf.shape(x)[0], x.dtype)


def test_fit_refuses_before_the_first_step(make_loop: Any) -> None:
    loop = make_loop(TWO, binary_net, loss="mse", metrics=[f1])
    before = loop.step.model.get_weights()
    for _ in range(2):  # a second try is no way around
        with pytest.raises(StepError, match="The metric 'f1'"):
            loop.fit(plain_dataset(X, BINARY, batch=8), verbose=0)
    assert largest_difference(loop.step.model.get_weights(), before) == 0.0
    assert int(loop.step.optimizer.iterations.numpy()) == 0


def test_one_device_has_no_parts(make_loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "compare_parts", None)
    loop = make_loop(("one_device", 1), binary_net, loss="mse", metrics=[f1])
    loop.fit(plain_dataset(X, (X[:, :1] > 0).astype("float32"), batch=8), verbose=0)


def test_a_name_that_is_not_checked(make_loop: Any) -> None:
    with pytest.raises(StepError, match=r"\['f1'\] .*add_loss, loss, mae, rows, state"):
        check(make_loop(TWO, line_net, metrics=["mae"], unchecked="f1"), X, X[:, :1])


@pytest.mark.cannot_compare
def test_a_function_that_cannot_be_checked_names_the_way_out(make_loop: Any) -> None:
    def of_pairs(y: Any, y_pred: Any) -> Any:  # right where each share is even
        apart = y_pred[0::2] - y_pred[1::2]
        return ops.mean(ops.square(ops.concatenate([apart, apart], 0) - y), -1)

    with pytest.raises(StepError, match=r"cannot be run on 22 rows.*InvalidArgumentError.*unchecked"):
        check(make_loop(TWO, line_net, loss=of_pairs), X[:22], X[:22, :1])
    loop = make_loop(TWO, line_net, loss=of_pairs, unchecked=("loss",))
    loop.fit(plain_dataset(X, X[:, :1], batch=8), verbose=0)
    with pytest.raises(StepError, match="The metric 'f1'"):  # which the loss does not hide
        check(make_loop(TWO, binary_net, loss=of_pairs, metrics=[f1], unchecked=("loss",)), X[:22], BINARY[:22])


def test_the_loss_of_an_output_that_is_not_checked(make_loop: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((4,))
        return keras.Model(inputs, {name: L.Dense(1, name=name)(inputs) for name in ("mood", "rest")})

    options = {"loss": "mse", "metrics": {"mood": "mae", "rest": "mae"}, "unchecked": ("mood_loss",)}
    check(make_loop(TWO, net, **options), X, {"mood": X[:, :1], "rest": X[:, 1:2]})


@pytest.mark.slow
def test_a_metric_that_is_not_checked_hides_no_layer(make_loop: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((4,))
        return keras.Model(inputs, L.Dense(1, activation="sigmoid")(inputs - ops.mean(inputs, axis=0)))

    for names in (("f1",), ("f1", "loss")):
        with pytest.raises(StepError, match="other examples of its batch"):
            check(make_loop(TWO, net, loss="mse", metrics=[f1], unchecked=names), X, BINARY)


@pytest.mark.cannot_compare
def test_what_fails_on_all_rows_is_left_to_the_training(make_loop: Any, caplog: Any) -> None:
    def in_graphs_only(y: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y - y_pred), -1) + 0 * tf.gradients(y_pred, y_pred)[0][:, 0]

    make_loop(TWO, line_net, loss=in_graphs_only).fit(plain_dataset(X, X[:, :1], batch=8), verbose=0)
    assert "could not be compared: RuntimeError: tf.gradients is not supported" in caplog.text
    loop = make_loop(TWO, class_net, loss="sparse_categorical_crossentropy")
    with pytest.raises(DataError, match="is 7;"):
        loop.fit(plain_dataset(X, np.full(24, 7), batch=24), verbose=0)


@pytest.mark.cannot_compare
def test_a_model_that_takes_no_other_number_of_rows_is_told_of(make_loop: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((4,))
        return keras.Model(inputs, L.Dense(1)(ops.reshape(inputs, (4, 4))))

    data = plain_dataset(X[:16], X[:16, :1], batch=8)
    for run in (make_loop(TWO, net).fit, make_loop(TWO, net).evaluate, make_loop(TWO, net).predict):
        with pytest.raises(StepError, match=r"(?s)cannot be run on 16 rows.*unchecked=.*rows"):
            run(data)
    make_loop(TWO, net, unchecked=("rows",)).fit(data, verbose=0)


def test_a_static_batch_size_is_no_way_around(make_loop: Any) -> None:
    def net() -> Any:
        inputs = keras.Input(batch_shape=(24, 4))
        return keras.Model(inputs, L.Dense(1, activation="sigmoid")(inputs))

    with pytest.raises(StepError, match="The metric 'f1'"):
        check(make_loop(TWO, net, loss="mse", metrics=[f1]), X, BINARY)


@pytest.mark.slow
@pytest.mark.parametrize("length", [6, 128])
def test_recurrent_layers_are_checked_and_over_many_steps_traced(length: int, make_loop: Any) -> None:
    traced: list[bool] = []

    class Mixing(L.Layer):  # type: ignore[name-defined]
        def call(self, x: Any) -> Any:
            traced.append(tf.inside_function())
            return x - ops.mean(x, axis=0, keepdims=True)

    def net() -> Any:
        return sequential((length,), L.Embedding(5, 2, mask_zero=True), L.GRU(3), Mixing(), L.Dense(1))

    loop = make_loop(TWO, net)
    loop.step.for_loop(loop.strategy)
    traced.clear()
    with pytest.raises(StepError, match="depends on the other examples"):
        check(loop, rng.integers(0, 5, (24, length)), X[:, :1])
    *of_check, _, _, _ = traced[2:]  # the first calls are for shapes, the last ones name the layer
    assert set(of_check) == {length > 100}
    assert len(traced) <= 14


def test_warm_up_pays_for_the_check_of_a_recipe(make_loop: Any) -> None:
    recipe = mk.data.batches(mk.data.arrays(X, BINARY), global_batch_size=8)
    loop = make_loop(TWO, binary_net, loss="mse", metrics=["mae"])
    loop.warm_up(recipe)
    assert first_batch_check(loop.step.for_loop(loop.strategy)) is None
    with pytest.raises(StepError, match="The metric 'f1'"):
        make_loop(TWO, binary_net, loss="mse", metrics=[f1]).warm_up(recipe)


def test_evaluation_does_not_mind_what_training_alone_does(make_loop: Any) -> None:
    def net() -> Any:
        return sequential((4,), Keeps(lambda old, x: old + ops.sum(x)), AddsInTraining(ops.sum), L.Dense(1))

    make_loop(TWO, net, metrics=["mae"]).evaluate(plain_dataset(X, X[:, :1], batch=8))


def test_a_function_that_asks_for_more_than_other_predictions_give(make_loop: Any) -> None:
    def of_positive(y: Any, y_pred: Any) -> Any:
        tf.debugging.assert_positive(y_pred)
        return ops.mean(ops.square(y - ops.log(y_pred)), -1)

    net = sequential((4,), L.Dense(1, activation="softplus"), L.Rescaling(5.0))
    check(make_loop(TWO, lambda: keras.models.clone_model(net), loss=of_positive), X, X[:, :1])


def test_outputs_whose_rows_are_no_examples(make_loop: Any) -> None:
    def per_token(y: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(ops.reshape(y_pred, (-1, 6)) - y), -1)

    def net() -> Any:
        inputs = keras.Input((6, 2))
        return keras.Model(inputs, ops.reshape(L.Dense(1)(inputs), (-1, 1)))

    x = rng.normal(size=(24, 6, 2)).astype("float32")
    check(make_loop(TWO, net, loss=per_token), x, rng.normal(size=(24, 6)).astype("float32"))


def test_a_model_that_has_converged_is_not_refused(make_loop: Any) -> None:
    loop = make_loop(TWO, lambda: sequential((4,), L.Dense(1)), loss="mse")
    draws = np.random.default_rng(1)
    for _ in range(4):  # the gradients are what rounding leaves: they differ by as much as they are large
        loop.step.model.set_weights([draws.normal(size=(4, 1)), draws.normal(size=1)])
        x = np.repeat(draws.normal(size=(1, 4)), 24, axis=0).astype("float32")
        loop.step.for_loop(loop.strategy).checked.clear()
        check(loop, x, np.asarray(loop.step.model(x[:1])).repeat(24, axis=0))


@pytest.mark.usefixtures("small_tables")
@pytest.mark.parametrize("gradient", ["of a kernel", "of a large kernel", "of a table"])
def test_gradients_alone_that_differ_by_more_than_rounding_are_refused(
    gradient: str, make_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones are compared in few rows, to which all others are added."""
    if gradient == "of a large kernel":
        monkeypatch.setattr("mirrorkit.train.first_batch.running._LARGE", 8)  # numbers; the kernel has 12
        monkeypatch.setattr("mirrorkit.train.reduce.sparse_gradient._FOLDED", 4)
    of_table = gradient == "of a table"

    def net(*layers: Any) -> Any:
        first = [L.Embedding(8192, 32), L.GlobalAveragePooling1D()] if of_table else [L.Dense(3, use_bias=False)]
        return sequential((4,), *first, *layers, L.Dense(1))

    x = rng.integers(8192, size=(24, 4)) if of_table else X
    check(make_loop(TWO, net), x, X[:, :1])
    loop = make_loop(TWO, lambda: net(L.Lambda(_counted)))
    with pytest.raises(StepError, match=r"gradients of '\S+'"):
        check(loop, x, X[:, :1])
