"""Operations and bytes on GPUs that are not there: what is named, and features of the equivalence table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu_placement import placement
from placement_subjects import FEATURES, pictures
from placement_table import BEGIN, END, EXAMPLES, PAGE, as_markdown, rows

import mirrorkit as mk
from mirrorkit._keras import keras
from mirrorkit.train.ambient import Ambient
from mirrorkit.train.step import clock

# --- `placement`: what it names in a step, what it says; and faults that it was made for, put back


def _report(make_step: Any, data: Any, devices: str = "gpu") -> Any:
    return placement(make_step, data, devices=devices)


def _batches(count: int = 64) -> Any:
    """Whole batches only, so that each function is traced once."""
    return pictures(count)("batches")


def _net(*layers: Any, optimizer: Any = None, **options: Any) -> Callable[[], Any]:
    """Return what makes a step with a linear net; each of `layers` is a function that makes one."""

    def make_step() -> Any:
        net = [keras.Input((8, 8, 3)), keras.layers.Rescaling(1 / 255), *(make() for make in layers)]
        model = keras.Sequential([*net, keras.layers.Flatten(), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made = optimizer() if optimizer else keras.optimizers.SGD(0.1, momentum=0.9)
        return mk.train.Step(model, made, loss=loss, metrics=["accuracy"], **options)

    return make_step


@pytest.mark.slow
def test_bytes_and_kernels_of_a_step_written_by_hand() -> None:
    def make_step() -> Any:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, use_bias=False)])
        return mk.train.Step(model, keras.optimizers.SGD(0.1, momentum=0.9), loss="mse", accumulate=2)

    x = np.zeros((32, 4), np.float32)
    data = mk.data.resident(mk.data.arrays(x, x[:, :3]), global_batch_size=16)
    report = _report(make_step, data, "gpu:4")
    assert report.devices == [f"GPU:{i}" for i in range(4)]
    weights = 4 * 4 * 3
    assert report.memory["GPU:3"] == {
        "weights": weights,
        "optimizer": weights + 8 + 4,  # momentum, iterations, learning rate
        "data": 32 * (4 + 3) * 4,
    }
    train = report["train"]
    assert train.step.kernels["GPU:2", "MatMul"] == 2 * 2  # forward and the gradient of the weights, of two batches
    assert train.to_devices == 2 * 16 * 8
    assert set(train.step.reduced.values()) == {weights + 4 * 5}


# Faults that this report was made for, put back in.


@pytest.mark.slow
def test_a_warm_up_of_the_learning_rate_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def optimizer() -> Any:
        schedule = keras.optimizers.schedules.CosineDecay(0.0, 10, warmup_target=0.1, warmup_steps=5)
        return keras.optimizers.SGD(schedule)

    assert _report(_net(optimizer=optimizer), _batches()).problems == []
    monkeypatch.setattr(clock, "schedule_of", lambda optimizer: None)
    problems = _report(_net(optimizer=optimizer), _batches())["train"].problems
    assert any("waits: StatelessIf (" in problem for problem in problems)


@pytest.mark.slow
def test_keras_accuracy_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ambient, "on_device", property(lambda ambient: False, lambda ambient, value: None))
    train = _report(_net(), _batches())["train"]
    (problem,) = [problem for problem in train.problems if "waits: Less (" in problem]
    assert "mirrorkit/" not in problem, "Keras made it: its name says more than the line that called Keras"
    assert train.to_host == 16 * 3 * 4  # all logits


# --- every feature of the equivalence table on GPUs that are not there: nothing without a kernel, nothing that waits


@pytest.mark.parametrize(
    ("name", "source"), [("all at once", "batches"), pytest.param("pad_and_crop", "resident", marks=pytest.mark.slow)]
)
def test_a_feature_is_clean(name: str, source: str) -> None:
    report = FEATURES[name].placement(source, devices="gpu:2")
    assert report.problems == []
    assert all(call.to_host == 0 for call in report.calls)
    assert report["train"].step.kernels_on("GPU:1") > 0


def test_on_a_single_gpu_too() -> None:
    report = FEATURES["SGD"].placement("batches", devices="gpu")
    assert report.devices == ["GPU:0"]
    assert report.problems == []
    assert not report["train"].step.reduced


def test_a_resident_set_stays_where_it_is() -> None:
    report = FEATURES["SGD"].placement("resident", devices="gpu:2")
    indices = 8 * 24  # of a batch, int64
    assert report["train"].to_devices == indices


def table_of_the_page() -> list[str]:
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip().splitlines()


def test_the_page_has_every_row() -> None:
    names = {line.split(" | ")[0].removeprefix("| ").partition(";")[0] for line in table_of_the_page()[2:]}
    assert names == {*EXAMPLES, *FEATURES}


@pytest.mark.slow
def test_every_third_row_is_that_of_the_page_and_clean() -> None:
    """All of them: `placement_table.py`."""
    found = list(rows([*EXAMPLES, *FEATURES][::3]))
    assert [problem for row in found for problem in row.call.problems] == []
    page = table_of_the_page()
    assert [line for line in as_markdown(found).splitlines() if line not in page] == []
