"""The update of a step joins small weights: the same bits as without, with fewer operations."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from step_helpers import cut, numbers_of, train, with_policy
from training_helpers import sequential

from mirrorkit._keras import keras
from mirrorkit.optim import packed

L = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:A global batch of")


def _net() -> Any:
    frozen = L.Dense(4, trainable=False)
    return sequential((4,), frozen, L.Dense(5, activation="tanh"), L.LayerNormalization(), L.Dense(3), L.Dense(1))


def _mixed() -> Any:
    with with_policy("mixed_float16"):
        return _net()


def _masked() -> Any:
    """The loss of an output under a mask has a divisor of its own; a penalty is divided by the number of examples."""
    inputs = keras.Input((4,))
    x = L.Masking(mask_value=9.0)(L.Reshape((4, 1))(inputs))
    for _ in range(3):
        x = L.Dense(3, bias_regularizer="l2")(x)
    return keras.Model(inputs, L.Dense(1)(x))


_CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "options": (_net, {"clip_value": 0.01, "ema": 0.7}),
    "two divisors": (_masked, {}),
    "loss_scale": (_mixed, {"loss_scale": 1024.0}),
}


def _adamw() -> Any:
    schedule = keras.optimizers.schedules.CosineDecay(0.05, 10)
    return keras.optimizers.AdamW(schedule, weight_decay=0.1)


def _trained(make_loop: Any, numbers: Any, net: Any, options: dict[str, Any]) -> tuple[Any, list[Any]]:
    x, y = numbers
    if net is _masked:
        y = np.repeat(y[:, np.newaxis], 4, axis=1)
    loop = make_loop(("mirrored", 2), net, _adamw, **options)
    train(loop, cut(x, y, sizes=[20, 9, 20]))
    return loop, numbers_of(loop.step.variables)


def _operations(loop: Any) -> int:
    (trace,) = loop.step.for_loop(loop.strategy).functions._new_values._traces.values()
    return sum(op.type not in ("Placeholder", "Const", "Identity") for op in trace.graph.get_operations())


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] * (c != "options")) for c in _CASES])
def test_same_bits_with_fewer_operations(
    case: str, make_loop: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, options = _CASES[case]
    joined, found = _trained(make_loop, numbers, net, options)
    monkeypatch.setattr(packed, "_SMALL", -1)
    apart, expected = _trained(make_loop, numbers, net, options)
    for want, got in zip(expected, found, strict=True):
        np.testing.assert_array_equal(want, got)
    assert _operations(joined) < 0.7 * _operations(apart)
    _assert_nothing_is_left_behind(joined)


def _assert_nothing_is_left_behind(loop: Any) -> None:
    """The optimizer's twin needs variables while the update is traced, and only then."""
    (trace,) = loop.step.for_loop(loop.strategy).functions._new_values._traces.values()
    assert not trace.variables
    assert not [v for v in loop.step.optimizer.variables if v.name == "joined"]
    assert not [o for o in gc.get_objects() if isinstance(o, keras.Variable) and o.name == "joined"]
