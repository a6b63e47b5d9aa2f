"""Tables that are updated in place train as they do where Keras's optimizer is given a dense gradient.

With every option and every use of a table. On one replica each bit is the same, except with the
options of `_ROUNDED_OTHERWISE`; on several, two trainings are apart by at most three times what another order of the
examples changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from table_helpers import (
    BATCH,
    OPTIMIZERS,
    SIZE,
    UNEVEN,
    WIDTH,
    dense_and_by_rows,
    fitted,
    line_on,
    net,
    table,
    tied,
    words,
    words_input,
)
from training_helpers import plain_dataset, values_of

from mirrorkit._keras import keras
from mirrorkit.errors import MirrorkitError
from mirrorkit.train.reduce import reduction
from mirrorkit.train.step import tables
from mirrorkit.train.step.loss_scale import LossScale

L, o = keras.layers, keras.optimizers
pytestmark = pytest.mark.usefixtures("small_tables")

ONE = ("one_device", 1)
_HUGE = 2.0**120  # a loss scale near float32's end: the gradient of an example that is far off overflows


@pytest.fixture(autouse=True)
def _blocks_and_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two whole blocks, of 3000 rows, and a rest of 2192."""
    monkeypatch.setattr(tables, "_BLOCK", 3000 * WIDTH * 4)


def _slow_but(fast: Any, every: Any) -> list[Any]:
    return [one if one in fast else pytest.param(*one, marks=pytest.mark.slow) for one in every]


@pytest.mark.parametrize("name", [pytest.param("Adagrad", marks=pytest.mark.slow), "Adam"])
def test_the_same_bits_on_one_replica(name: str, make_loop: Any) -> None:
    """By rows (Adagrad) and by blocks (Adam); every optimizer on several replicas: tests/equivalence."""
    dense_and_by_rows(make_loop, ONE, net, OPTIMIZERS[name], words(UNEVEN), bits=True)


# --- options of a step


def _far(count: int) -> tuple[np.ndarray, np.ndarray]:
    """One example of the second batch is far off."""
    x, y = words(count)
    y[2 * BATCH - 1] = 1e4
    return x, y


class _With(NamedTuple):
    options: dict[str, Any]
    optimizer: str = "Adam"
    parts: Callable[[int], Any] = words
    message: int | None = None  # bytes of a message between replicas


_OPTIONS = {
    "clip_norm": _With({"clip_norm": 0.01}, "SGD"),
    "accumulate": _With({"accumulate": 2}),
    "loss_scale": _With({"loss_scale": 1000.0}),
    "skipped": _With({"loss_scale": LossScale(_HUGE, 2)}, parts=_far),
    "skipped, clip_norm": _With({"loss_scale": LossScale(_HUGE, 2), "clip_norm": 0.01}, "SGD", parts=_far),
    "small messages": _With({}, message=64),
}
# The norm in another order; a scale or a share of an update is multiplied before rows add up.
_ROUNDED_OTHERWISE = {"clip_norm", "loss_scale", "accumulate"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "replicas"),
    _slow_but(
        [("clip_norm", 2)],
        [*((name, 2) for name in _OPTIONS), *((name, 1) for name in ("accumulate", "skipped"))],
    ),
)
def test_options(name: str, replicas: int, make_loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case, where = _OPTIONS[name], ONE if replicas == 1 else ("mirrored", replicas)
    if case.message:
        monkeypatch.setattr(reduction, "message_size", lambda device: case.message)
    bits = replicas == 1 and not _ROUNDED_OTHERWISE & case.options.keys()
    both = dense_and_by_rows(
        make_loop, where, net, OPTIMIZERS[case.optimizer], case.parts(UNEVEN), bits=bits, **case.options
    )
    skips = case.parts is _far
    assert all((loop.step.skipped_steps > 0) is skips for loop in both)


@pytest.mark.parametrize("name", ["Adagrad", pytest.param("Adam", marks=pytest.mark.slow)])
def test_a_skipped_step_leaves_every_bit(name: str, make_loop: Any) -> None:
    """By rows (Adagrad) and by blocks (Adam): of the table and of its slots, which have values by then."""
    loop = make_loop(("mirrored", 2), net, OPTIMIZERS[name], sparse_embeddings=True, loss_scale=LossScale(_HUGE))
    fitted(loop, words(BATCH), epochs=1)
    before = values_of(loop)
    x, y = words(BATCH, seed=1)
    y[:] = 1e4
    fitted(loop, (x, y), epochs=1)
    assert loop.step.skipped_steps == 1
    same = [np.array_equal(a, b) for a, b in zip(before, values_of(loop), strict=True)]
    changed = [v.path for v, kept in zip(loop.step.variables, same, strict=True) if not kept]
    assert changed
    assert all("loss_scale" in path for path in changed)


# --- uses of a table


def _two_lookups() -> Any:
    x, shared = words_input(), table()
    mean = L.GlobalAveragePooling1D()(shared(x))
    return keras.Model(x, L.Dense(1)(L.Concatenate()([mean, shared(x[:, 0])])))


def _two_tables() -> Any:
    """Of the same shape, whose slots must not be taken for each other's, and one that is no table."""
    x = words_input()
    first, second = table("first")(x), L.Embedding(SIZE, WIDTH, "ones", name="second")((x + 1) % SIZE)
    small = L.Embedding(7, 3)(x % 7)
    return keras.Model(x, L.Dense(1)(L.GlobalAveragePooling1D()(L.Concatenate()([first, small, second * 2]))))


def _outputs() -> Any:
    x = words_input()
    h = L.GlobalAveragePooling1D()(table()(x))
    return keras.Model(x, {"one": L.Dense(1, name="one")(h), "other": L.Dense(1, name="other")(h)})


def _targets_by_name(count: int) -> tuple[Any, ...]:
    x, y = words(count)
    return x, {"one": y, "other": -y}, np.random.default_rng(3).uniform(0, 2, count).astype("float32")


_NETS = {
    "two lookups": (_two_lookups, {}),
    "two tables": (_two_tables, {}),
    "tied weights": (tied, {}),
    "mask_zero": (line_on(lambda: L.GRU(4), mask_zero=True), {}),
    "a regularizer": (line_on(embeddings_regularizer="l2"), {}),
    "several outputs": (_outputs, {"loss": {"one": "mse", "other": "mae"}}),
    "synchronized": (line_on(L.GlobalAveragePooling1D, lambda: L.BatchNormalization(synchronized=True)), {}),
    "mixed_float16": (line_on(dtype="mixed_float16"), {"loss_scale": 1024.0}),
}


@pytest.mark.parametrize(
    ("name", "optimizer", "replicas"),
    _slow_but(
        [("two tables", "Adagrad", 1)],
        [  # by rows and by blocks, on one replica and on several
            *((n, "Adagrad", 1 if i % 2 == 1 else 2) for i, n in enumerate(_NETS)),
            *((n, "Adam", 1 if i % 2 == 0 else 3) for i, n in enumerate(_NETS)),
        ],
    ),
)
def test_uses_of_a_table(name: str, optimizer: str, replicas: int, make_loop: Any) -> None:
    make_net, options = _NETS[name]
    where = ONE if replicas == 1 else ("mirrored", replicas)
    bits = replicas == 1 and not _ROUNDED_OTHERWISE & options.keys()
    parts = _targets_by_name(UNEVEN) if name == "several outputs" else words(UNEVEN)
    dense_and_by_rows(make_loop, where, make_net, OPTIMIZERS[optimizer], parts, bits=bits, **options)


def test_data_whose_batches_have_no_known_size(make_loop: Any) -> None:
    """The gradient is dense then, and the table is updated in place all the same."""
    found = []
    data = plain_dataset(*words(UNEVEN), batch=BATCH).filter(lambda x, y: True)
    for asked in (False, True):
        loop = make_loop(ONE, net, OPTIMIZERS["Adam"], sparse_embeddings=asked)
        loop.fit(data, epochs=1, verbose=0)
        found.append(values_of(loop))
    assert all(map(np.array_equal, *found))


@pytest.mark.cpu
def test_ids_out_of_range_are_an_error_in_both_ways(make_loop: Any) -> None:
    x, y = words(BATCH)
    x[3, 2] = SIZE
    for asked in (False, True):
        loop = make_loop(ONE, net, sparse_embeddings=asked)
        with pytest.raises(MirrorkitError, match=f"is {SIZE}, but there are {SIZE} entries"):
            fitted(loop, (x, y))
