"""An argument of another kind is refused by its name in every public function; `"False"` would be true."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.errors import DataError, MirrorkitError

_DIGITS = mk.data.synthetic(train=4, test=4).train

# How to call each function that checks the kinds of its arguments, with one of them as `options`.
CALLS: dict[str, Callable[..., Any]] = {
    "batching.scale_learning_rate": lambda **o: mk.batching.scale_learning_rate(
        **{"learning_rate": 1.0, "global_batch_size": 2, "base_batch_size": 2, **o}
    ),
    "checks.InSync": mk.checks.InSync,
    "data.Batches": lambda **o: mk.data.batches(**{"split": _DIGITS, "global_batch_size": 2, **o}),
    "data.Mix": lambda **o: mk.data.mix(**{"sets": {mk.data.batches(_DIGITS, global_batch_size=2): 1}, **o}),
    "data.Resident": lambda **o: mk.data.resident(**{"split": _DIGITS, "global_batch_size": 2, **o}),
    "data.RandomAccess": lambda **o: mk.data.source(
        **{"items": (np.zeros([4, 2]), np.arange(4)), "global_batch_size": 2, **o}
    ),
    "data.distribute": lambda **o: mk.data.distribute(
        **{"dataset": tf.data.Dataset.range(4).batch(2), "strategy": tf.distribute.get_strategy(), **o}
    ),
    "data.load": lambda **o: mk.data.load(**{"name": "synthetic", **o}),
    "data.one_hot": lambda **o: mk.data.one_hot(**{"labels": np.arange(2), "num_classes": 2, **o}),
    "data.write_records": lambda **o: mk.data.write_records(**{"examples": _DIGITS, "folder": "digits", **o}),
    "devices.set_memory_growth": mk.devices.set_memory_growth,
    "devices.verify": mk.devices.verify,
    "evaluate": lambda **o: mk.evaluate(**{"model": keras.Sequential(), **o}),
    "launch.launch": lambda **o: mk.launch.launch(**{"script": "script.py", "workers": 1, **o}),
    "launch.on_ray": lambda **o: mk.launch.on_ray(**{"function": print, "workers": 1, **o}),
    "models.create": lambda **o: mk.models.create(**{"name": "linear", **o}),
    "predict": lambda **o: mk.predict(**{"model": keras.Sequential(), "x": np.zeros([2, 2]), **o}),
    "strategy.create": mk.strategy.create,
    "strategy.is_chief": mk.strategy.is_chief,
    "strategy.num_workers": mk.strategy.num_workers,
    "strategy.of_all_workers": lambda **o: mk.strategy.of_all_workers(**{"value": 1, **o}),
    "strategy.wait_for_all": lambda **o: mk.strategy.wait_for_all(
        **{"strategy": tf.distribute.get_strategy(), "name": "here", **o}
    ),
    "strategy.worker_index": mk.strategy.worker_index,
    "testing.assert_equivalent": lambda **o: mk.testing.assert_equivalent(**{"make_step": print, **o}),
    "testing.run_in_fresh_process": lambda **o: mk.testing.run_in_fresh_process(**{"code_or_file": "", **o}),
    "timing.Throughput": mk.timing.Throughput,
    "train.Checkpoints": lambda **o: mk.train.Checkpoints(**{"folder": "run", **o}),
    "train.Loop": lambda **o: mk.train.Loop(**{"strategy": tf.distribute.get_strategy(), "step": None, **o}),
    "train.Loop.evaluate": lambda **o: mk.train.Loop.evaluate(None, None, **o),
    "train.Loop.fit": lambda **o: mk.train.Loop.fit(None, None, **o),
    "train.Loop.predict": lambda **o: mk.train.Loop.predict(None, None, **o),
    "train.Loop.restore": lambda **o: mk.train.Loop.restore(None, **o),
    "train.Loop.warm_up": lambda **o: mk.train.Loop.warm_up(None, None, **o),
    "train.Step": lambda **o: mk.train.Step(
        **{"model": keras.Sequential([keras.layers.Dense(1)]), "optimizer": keras.optimizers.SGD(), **o}
    ),
    "train.Step.from_loss": lambda **o: mk.train.Step.from_loss(
        **{"models": [], "optimizer": None, "loss_fn": print, **o}
    ),
    "train.export": lambda **o: mk.train.export(**{"of": None, "path": "folder", **o}),
}
# They need files, and share what checks the recipes above; hand all to `Loop.fit`; or only this package calls them.
OTHERS = {"data.Records", "data.ImageFolder", "data.Parquet", "fit", "devices.Verification", "train.Position"} | {
    f"parallel.Recompute.{method}" for method in ("call", "compute_output_spec")
}
# By the beginning of an annotation: what the message says, and values that are none of the kind.
KINDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "bool": ("True or False", ("False", "no", 0, 1)),
    "int": ("a whole number", ("3", 5.5, [1], True)),
    "float": ("a number", ("0.5", [1.0], True)),
    "str": ("a string", (5, ["x"])),
    "str | os.PathLike[str]": ("a path", (5, ["x"])),
    "str | Path": ("a path", (5, ["x"])),
    "Callable": ("a function", ("print", 5)),
    "MapFunction": ("a function", ("print", 5)),
    "Mapping": ("a dict", ("x", 5, [1])),
    "tf.data.Dataset | Recipe": ("a tf.data.Dataset or a recipe", ("x", None)),
    "tf.distribute.Strategy": ("a tf.distribute.Strategy", ("mirrored", 5)),
}


def _functions(module: ModuleType, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The public functions, classes and methods, each once."""
    for name in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]):
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield from _functions(value, f"{name}.")
            continue
        yield f"{prefix}{getattr(value, '__name__', name)}", value
        methods = vars(value) if inspect.isclass(value) else {}
        yield from ((f"{prefix}{name}.{own}", getattr(value, own)) for own in methods if not own.startswith("_"))


def _arguments(function: Any) -> list[tuple[str, str]]:
    """The arguments that are of one of the kinds, and the kind; whether None is taken comes last in an annotation."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    of = [(one.name, str(one.annotation).removesuffix(" | None")) for one in parameters]
    of = [(name, "Callable" if kind.startswith("Callable") else kind) for name, kind in of]
    of = [(name, "Mapping" if kind.startswith("Mapping") else kind) for name, kind in of]
    return [(name, kind) for name, kind in of if kind in KINDS]


FUNCTIONS = {name: _arguments(function) for name, function in _functions(mk)}


def test_every_switch_is_known() -> None:
    having = {name for name, found in FUNCTIONS.items() if any(kind == "bool" for _, kind in found)}
    assert having - OTHERS <= set(CALLS)
    assert set(CALLS) <= set(FUNCTIONS)


CASES = [(function, name, kind) for function in CALLS for name, kind in FUNCTIONS[function] if name != "self"]


@pytest.mark.parametrize(("function", "name", "kind"), CASES)
def test_an_argument_of_another_kind(
    function: str, name: str, kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, values = KINDS[kind]
    for value in values:
        with pytest.raises(MirrorkitError, match=f"^{name} .*must be {words}"):
            CALLS[function](**{name: value})
    assert not list(tmp_path.iterdir())


def test_a_switch_by_position() -> None:
    with pytest.raises(MirrorkitError, match="enabled must be True or False"):
        mk.devices.set_memory_growth("no")


def test_numpys_are_switches_and_numbers() -> None:
    numpys = {"shuffle": np.True_, "drop_remainder": np.False_, "prefetch": np.int64(1)}
    batches = mk.data.batches(_DIGITS, global_batch_size=2, **numpys)
    assert len(list(batches.dataset())) == 2


_TOO_LARGE = np.array([0, 1, 2**63], np.uint64)


def _parquet(labels: np.ndarray, folder: Any) -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"x": np.zeros(len(labels)), "y": labels})
    pytest.importorskip("pyarrow.parquet").write_table(table, folder / "file.parquet")
    next(iter(mk.data.parquet(folder / "file.parquet", y="y", global_batch_size=3).dataset()))


READERS: dict[str, Callable[[np.ndarray, Any], Any]] = {
    "arrays": lambda labels, _: mk.data.arrays(np.zeros([3, 2]), labels),
    "source": lambda labels, _: next(iter(mk.data.source((np.zeros([3, 2]), labels), global_batch_size=3).dataset())),
    "write_records": lambda labels, folder: mk.data.write_records(zip(np.zeros([3, 2]), labels, strict=True), folder),
    "parquet": _parquet,
}


@pytest.mark.parametrize("reader", READERS)
def test_labels_that_int64_cannot_hold(reader: str, tmp_path: Any) -> None:
    with pytest.raises((DataError, tf.errors.OpError), match=rf"holds? {2**63}"):
        READERS[reader](_TOO_LARGE, tmp_path)
    READERS[reader](np.array([0, 1, 2], np.uint64), tmp_path)
