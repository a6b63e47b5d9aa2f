"""What `sparse_embeddings` refuses, by its words; what "auto" leaves as it was, without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from table_helpers import SIZE, WIDTH, WORDS, net, table
from training_helpers import sequential

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import StepError

L, o = keras.layers, keras.optimizers
pytestmark = [
    pytest.mark.usefixtures("small_tables"),
    pytest.mark.filterwarnings("ignore:SGD.use_ema"),
]

_ASKED = [True, "lazy"]
_CURE = r".*Leave out sparse_embeddings"


@pytest.mark.parametrize("given", ["Lazy", None, 2])
def test_what_is_no_way_to_update_tables(given: Any) -> None:
    with pytest.raises(StepError, match='"lazy"; found'):
        mk.train.Step(net(), o.SGD(), loss="mse", sparse_embeddings=given)


_EXCLUDED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "ema": (o.SGD, {"ema": 0.9}, "ema=0.9 excludes"),
    "jit_compile": (o.SGD, {"jit_compile": True}, "jit_compile=True excludes"),
    "shard_optimizer": (o.SGD, {"shard_optimizer": True}, "shard_optimizer=True excludes"),
    "clipnorm": (lambda: o.Adam(clipnorm=0.5), {}, r"Adam\(clipnorm=0.5\)"),
    "global_clipnorm": (lambda: o.SGD(global_clipnorm=2.0), {}, r"SGD\(global_clipnorm=2.0\)"),
    "use_ema": (lambda: o.SGD(use_ema=True), {}, r"SGD\(use_ema=True\)"),
    "Ftrl": (o.Ftrl, {}, r"found keras\S+\.Ftrl"),
    "Lamb": (o.Lamb, {}, r"found keras\S+\.Lamb"),
    "a subclass": (lambda: type("Mine", (o.SGD,), {})(), {}, r"found \S+\.Mine"),
}


@pytest.mark.parametrize("asked", _ASKED)
@pytest.mark.parametrize(("optimizer", "options", "said"), _EXCLUDED.values(), ids=_EXCLUDED)
def test_when_a_step_is_made(optimizer: Any, options: Any, said: str, asked: Any) -> None:
    with pytest.raises(StepError, match=f"sparse_embeddings={asked!r} .*{said}{_CURE}"):
        mk.train.Step(net(), optimizer(), loss="mse", sparse_embeddings=asked, **options)


@pytest.mark.parametrize("name", ["ema", "clipnorm", "Ftrl"])
def test_auto_leaves_them_as_they_were(name: str, make_loop: Any) -> None:
    optimizer, options, _ = _EXCLUDED[name]
    loop = make_loop(("one_device", 1), net, optimizer, **options)
    assert list(loop.step.for_loop(loop.strategy).functions.tables) == []


_WITHOUT: dict[str, Callable[[], list[Any]]] = {
    "no embedding": list,
    "constrained": lambda: [table(embeddings_constraint="unit_norm")],
    "frozen": lambda: [table(trainable=False)],
    "small": lambda: [L.Embedding(SIZE - 1, WIDTH)],
    "half": lambda: [L.Embedding(2 * SIZE, WIDTH, dtype="bfloat16")],
}


@pytest.mark.parametrize("first", _WITHOUT.values(), ids=_WITHOUT)
def test_models_without_a_table(first: Any, make_loop: Any) -> None:
    def make_net() -> Any:
        return sequential((WORDS,), *first(), L.Flatten(), L.Dense(1))

    with pytest.raises(StepError, match=f"sparse_embeddings=True .*no trainable keras.layers.Embedding{_CURE}"):
        make_loop(("one_device", 1), make_net, sparse_embeddings=True)
    loop = make_loop(("one_device", 1), make_net)
    assert list(loop.step.for_loop(loop.strategy).functions.tables) == []


@pytest.mark.parametrize("other", [{"embeddings_constraint": "unit_norm"}, {"dtype": "bfloat16"}], ids=str)
def test_lazy_is_for_all_embeddings_of_a_model(other: dict[str, Any], make_loop: Any) -> None:
    def two() -> Any:
        x = keras.Input((WORDS,), dtype="int64")
        both = [table("one")(x), L.Embedding(9, WIDTH, name="other", **other)(x)]
        return keras.Model(x, L.Dense(1)(L.Flatten()(L.Add()(both))))

    with pytest.raises(StepError, match=f"other/embeddings{_CURE}"):
        make_loop(("one_device", 1), two, sparse_embeddings="lazy")
    assert list(make_loop(("one_device", 1), two, sparse_embeddings=True).step.variables)


@pytest.mark.parametrize("asked", [True, pytest.param("lazy", marks=pytest.mark.slow)])
def test_strategies_without_a_copy_on_each_replica(asked: Any, make_loop: Any) -> None:
    with pytest.raises(StepError, match=f"CentralStorageStrategy has no copy{_CURE}"):
        make_loop(("central_storage", 2), net, sparse_embeddings=asked)
    loop = make_loop(("central_storage", 2), net)
    assert list(loop.step.for_loop(loop.strategy).functions.tables) == []


@pytest.mark.cpu
def test_a_model_on_several_devices(strategy_of: Any) -> None:
    strategy = strategy_of("one_device", 1)
    with mk.parallel.Layout({"table": 0, "line": 1}, devices="cpu:2"), strategy.scope():
        model = sequential((WORDS,), table(), L.Flatten(), L.Dense(1, name="line"))
        optimizer = o.SGD()
    step = mk.train.Step(model, optimizer, loss="mse", sparse_embeddings=True)
    with pytest.raises(StepError, match=f"placed on several devices{_CURE}"):
        step.build(strategy)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("optimizer", "rows", "are_tables"),
    [
        (o.SGD, 2**17 - 1, False),
        (o.SGD, 2**17, True),
        (o.Adam, 2**19 - 1, False),
        (o.Adam, 2**19, True),
    ],
)
def test_tables_are_those_that_gain(
    optimizer: Any, rows: int, are_tables: bool, make_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By 16 MiB where an update changes few rows, and by 64 where it changes all; rows of 32 numbers."""
    monkeypatch.undo()

    def net() -> Any:
        start = keras.initializers.Zeros()
        return sequential((WORDS,), L.Embedding(rows, WIDTH, start), L.Flatten(), L.Dense(1))

    loop = make_loop(("one_device", 1), net, optimizer)
    assert list(loop.step.for_loop(loop.strategy).functions.tables) == [0] * are_tables
