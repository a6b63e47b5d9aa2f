"""Joined weights, and the names that optimizers see."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from optim_helpers import OPTIONS, gradients_of, made, named, tensors, variables_of

import mirrorkit as mk
from mirrorkit import optim
from mirrorkit._keras import keras
from mirrorkit.optim import packed, slots as slots_
from mirrorkit.optim.packed import Packed

_SHAPES = [(5,), (2, 4), (3,), (), (7,), (1, 4), (3, 3), (6, 4)]  # 3 vectors, 3 matrices [n, 4], and two alone
_JOINED = [[0, 2, 4], [1, 5, 7], [3], [6]]

_OPTIONS = [*((cls.__name__, {}) for cls in slots_._SLOTS), *OPTIONS]


def _variables(*dtypes: str) -> list[Any]:
    return variables_of(_SHAPES, dtypes or ("float32",))


def _all(variables: list[Any]) -> list[list[bool]]:
    return [[True] * len(variables)]


def _groups(optimizer: Any, variables: list[Any], has_gradient: Any = None) -> list[list[int]]:
    """The groups as they show from outside: what becomes of a different value for each weight."""
    joint = Packed(optimizer, has_gradient or _all(variables))
    numbers = [tf.fill(v.shape[:1] if v.ndim else [1], i) for i, v in enumerate(variables)]
    return sorted(sorted(set(part.numpy().tolist())) for part in joint.join(numbers))


def _train(optimizer: Any, variables: list[Any], *, joined: bool) -> list[np.ndarray]:
    """Weights and slots after two steps of `functional_apply`, from the variables' values; in a step's graph:
    tests/train/step/test_facts.py.
    """
    joint = Packed(optimizer, _all(variables))

    def update(weights: Any, slots: Any, gradients: Any) -> Any:
        if not joined:
            return optim.functional_apply(optimizer, weights, slots, gradients)
        values = joint.join(weights), joint.slots.join(slots), joint.join(gradients)
        new_weights, new_slots = optim.functional_apply(joint.optimizer, *values)
        return joint.split(new_weights), joint.slots.split(new_slots)

    weights, slots = tensors(variables), tensors(optimizer.variables)
    for step in range(2):
        weights, slots = update(weights, slots, gradients_of(variables, step))
    return [value.numpy() for value in (*weights, *slots)]


def _assert_same(optimizer: Any, variables: list[Any]) -> None:
    apart, joined = (_train(optimizer, variables, joined=joined) for joined in (False, True))
    for want, got in zip(apart, joined, strict=True):
        assert want.dtype == got.dtype
        np.testing.assert_array_equal(want, got)
    assert not np.array_equal(joined[0], variables[0].numpy()), "the optimizer moved nothing: the test is empty"


@pytest.mark.parametrize(("name", "options"), _OPTIONS, ids=named(_OPTIONS))
def test_same_as_one_by_one(name: str, options: dict[str, Any]) -> None:
    variables = _variables()
    optimizer = made(name, options, variables)
    assert _groups(optimizer, variables) == _JOINED
    _assert_same(optimizer, variables)


def test_a_constraint_of_a_weight_beside_joined_ones_is_kept() -> None:
    variables = _variables()
    variables[0].constraint = keras.constraints.MaxNorm(0.01)
    optimizer = made("Adam", {}, variables)
    assert optimizer.variables, "not built"
    assert any(0 not in group for group in _groups(optimizer, variables))
    assert float(np.max(np.linalg.norm(_train(optimizer, variables, joined=True)[0], axis=0))) < 0.011
    _assert_same(optimizer, variables)


def test_weights_of_different_dtypes_are_not_mixed() -> None:
    variables = _variables("float32", "bfloat16")
    optimizer = made("AdamW", {"weight_decay": 0.2}, variables)
    n = len(_SHAPES)
    assert _groups(optimizer, variables) == sorted([*_JOINED, *[[i + n for i in group] for group in _JOINED]])
    _assert_same(optimizer, variables)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(
            (name, {})
            for name, cls in sorted(vars(keras.optimizers).items())
            if inspect.isclass(cls)
            and issubclass(cls, keras.optimizers.Optimizer)
            and name not in {cls.__name__ for cls in slots_._SLOTS}
            and name not in {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}
        ),
        ("Adam", {"clipnorm": 0.1}),
        ("SGD", {"global_clipnorm": 0.1}),
        ("Adam", {"use_ema": True}),
    ],
)
def test_nothing_is_joined_for_an_optimizer_that_looks_at_whole_weights(name: str, options: dict[str, Any]) -> None:
    variables = _variables()
    optimizer = made(name, options, variables)
    assert _groups(optimizer, variables) == [[i] for i in range(len(variables))]
    assert Packed(optimizer, _all(variables)).optimizer is optimizer


def test_nothing_is_joined_for_a_subclass_or_where_slots_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later Keras may give an optimizer another slot: its index would be that of a group."""

    class ByNorm(keras.optimizers.SGD):
        pass

    monkeypatch.setitem(slots_._SLOTS, keras.optimizers.Adam, ("_momentums",))
    variables = _variables()
    for optimizer in (ByNorm(0.1), keras.optimizers.Adam()):
        optimizer.build(variables)
        assert len(_groups(optimizer, variables)) == len(variables)


def test_large_and_constrained_weights_stay_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = _variables()
    variables[0].constraint = keras.constraints.NonNeg()
    assert _groups(made("SGD", {}, variables), variables) == [[0], [1, 5, 7], [2], [3], [4], [6]]
    monkeypatch.setattr(packed, "_SMALL", 4 * 7)  # bytes: the matrices have 8, 4 and 24 numbers
    assert _groups(made("SGD", {}, _variables()), _variables()) == [[0, 2, 4], [1], [3], [5], [6], [7]]


def test_weights_with_gradients_of_different_parts_are_not_joined() -> None:
    variables = _variables()
    second = [i == 5 for i in range(8)]  # a part of the loss that depends on one of the matrices alone
    groups = _groups(made("SGD", {}, variables), variables, [[True] * 8, second])
    assert groups == [[0, 2, 4], [1], [3], [5], [6], [7]]
    none = [i not in (0, 2, 4) for i in range(8)]  # Keras warns of these by name
    assert _groups(made("SGD", {}, variables), variables, [none]) == [[0], [1, 5, 7], [2], [3], [4], [6]]


def test_exclusions_from_weight_decay_hold() -> None:
    variables = _variables()
    optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[variables[1], variables[5], variables[7]], var_names=["v4"])
    optimizer.build(variables)
    assert _groups(optimizer, variables) == [[0], [1, 5, 7], [2], [3], [4], [6]]
    _assert_same(optimizer, variables)


def test_a_none_for_a_group_is_one_for_each_weight() -> None:
    variables = _variables()
    joint = Packed(made("SGD", {}, variables), _all(variables))
    assert joint.split([None] * len(_JOINED)) == [None] * len(variables)


# --- an optimizer sees the weights' names as it does in Keras's `fit`: by TensorFlow's, which are paths


_X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
_Y = _X[:, :1] ** 2


class SlowEncoder(keras.optimizers.SGD):  # type: ignore[misc, name-defined]
    """Layers whose name says so learn at a tenth of the rate."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        factor = 0.1 if "encoder/" in variable.name else 1.0
        super().update_step(gradient * factor, variable, learning_rate)


def _decaying() -> Any:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["encoder", "bias"])
    return optimizer


def _model(optimizer: Callable[[], Any]) -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, name="encoder"), *(keras.layers.Dense(4) for _ in range(3)), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(optimizer(), "mse")
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (_decaying, {}),
        pytest.param(_decaying, {"shard_optimizer": True}, marks=pytest.mark.slow),
        (lambda: SlowEncoder(0.1), {}),
    ],
    ids=["weight decay", "weight decay, sharded", "update_step"],
)
def test_names_are_paths(strategy_of: Any, optimizer: Callable[[], Any], options: dict[str, Any]) -> None:
    expected = _model(optimizer)
    expected.fit(_X, _Y, batch_size=12, epochs=2, shuffle=False, verbose=0)
    strategy = strategy_of("mirrored", 2)
    with strategy.scope():
        model = _model(optimizer)
    data = mk.data.batches(mk.data.arrays(_X, _Y), global_batch_size=12, shuffle=False)
    mk.train.Loop(strategy, mk.train.Step.from_compiled(model, **options)).fit(data, epochs=2, verbose=0)
    for want, found in zip(expected.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    assert {weight.name for weight in model.weights} == {"kernel", "bias"}  # as before
