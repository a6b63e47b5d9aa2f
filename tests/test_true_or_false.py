"""A switch is True or False, Python's or NumPy's, in every public function; `"False"` would be true."""

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

# How to call each function that has one, with the switch as `options`.
CALLS: dict[str, Callable[..., Any]] = {
    "checks.InSync": mk.checks.InSync,
    "data.Batches": lambda **o: mk.data.batches(_DIGITS, global_batch_size=2, **o),
    "data.Resident": lambda **o: mk.data.resident(_DIGITS, global_batch_size=2, **o),
    "data.RandomAccess": lambda **o: mk.data.source((np.zeros([4, 2]), np.arange(4)), global_batch_size=2, **o),
    "data.write_records": lambda **o: mk.data.write_records(_DIGITS, "digits", **o),
    "devices.set_memory_growth": mk.devices.set_memory_growth,
    "evaluate": lambda **o: mk.evaluate(keras.Sequential(), **o),
    "launch.launch": lambda **o: mk.launch.launch("script.py", workers=1, **o),
    "launch.on_ray": lambda **o: mk.launch.on_ray(print, workers=1, **o),
    "strategy.create": mk.strategy.create,
    "testing.assert_equivalent": lambda **o: mk.testing.assert_equivalent(print, **o),
    "testing.run_in_fresh_process": lambda **o: mk.testing.run_in_fresh_process("", **o),
    "timing.Throughput": mk.timing.Throughput,
    "train.Loop.fit": lambda **o: mk.train.Loop.fit(None, None, **o),
    "train.Step": lambda **o: mk.train.Step(keras.Sequential([keras.layers.Dense(1)]), "sgd", **o),
    "train.Step.from_loss": lambda **o: mk.train.Step.from_loss([], None, print, **o),
    "train.export": lambda **o: mk.train.export(None, "folder", **o),
}
# They need files, and share what checks the recipes above; or only this package makes them.
OTHERS = {"data.Records", "data.ImageFolder", "data.Parquet", "train.Position"}


def _functions(module: ModuleType, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The public functions, classes and methods, each once."""
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield from _functions(value, f"{name}.")
            continue
        yield f"{prefix}{getattr(value, '__name__', name)}", value
        methods = vars(value) if inspect.isclass(value) else {}
        yield from ((f"{prefix}{name}.{own}", getattr(value, own)) for own in methods if not own.startswith("_"))


def _switches() -> dict[str, list[str]]:
    found = {}
    for name, function in _functions(mk):
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            continue
        found[name] = [one.name for one in parameters if one.annotation == "bool" and one.default in (True, False)]
    return {name: switches for name, switches in found.items() if switches}


def test_every_switch_is_known() -> None:
    assert set(_switches()) - OTHERS == set(CALLS)


CASES = [(name, switch) for name, found in _switches().items() for switch in found if name not in OTHERS]


@pytest.mark.parametrize(("name", "switch"), CASES)
def test_a_switch_is_true_or_false(name: str, switch: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for value in ("False", "no", 0, 1, None):
        with pytest.raises(MirrorkitError, match=f"{switch} must be True or False"):
            CALLS[name](**{switch: value})
    assert not list(tmp_path.iterdir())


def test_a_switch_by_position() -> None:
    with pytest.raises(MirrorkitError, match="enabled must be True or False"):
        mk.devices.set_memory_growth("no")


def test_numpys_are_switches() -> None:
    batches = mk.data.batches(_DIGITS, global_batch_size=2, shuffle=np.True_, drop_remainder=np.False_)
    assert batches.steps_per_epoch == 2


def test_a_number_of_classes_is_a_whole_number(tmp_path: Any) -> None:
    with pytest.raises(MirrorkitError, match="num_classes"):
        mk.data.write_records(_DIGITS, tmp_path, num_classes=float("nan"))
    assert not list(tmp_path.iterdir())


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
