"""examples/benchmarks/known_models.py: what its models compute, its rows and notes, and one whole rehearsal."""

from __future__ import annotations

import json
import re

import keras
import known_models
import pytest
from kinds.known import KNOWN, bert, flops_of_training, multiply_adds, resnet50

import mirrorkit as mk


def weights_of_bert(layers, width, words):
    """As the paper has them, with a head of ten classes."""
    norm = 2 * width
    tables = (words + 512 + 2) * width + norm
    attention = 4 * (width * width + width)
    feed_forward = 2 * 4 * width * width + 4 * width + width
    return tables + layers * (attention + feed_forward + 2 * norm) + (width * width + width) + 10 * (width + 1)


def test_bert_has_the_weights_of_the_paper():
    for layers, width, words in ((2, 32, 100), (1, 48, 70)):
        model = bert(layers, width, heads=2, words=words, length=8)
        assert model.count_params() == weights_of_bert(layers, width, words)
    assert weights_of_bert(12, 768, 30_522) == pytest.approx(110e6, rel=0.01)
    assert bert.__defaults__ == (12, 768, 12, 30_522, 128)


def test_resnet_50_has_the_weights_and_multiply_adds_of_version_1_5():
    model = resnet50()
    assert sum(weight.value.shape.num_elements() for weight in model.trainable_weights) == 25_557_032
    assert multiply_adds(model) == pytest.approx(4.09e9, rel=0.001)


@pytest.mark.parametrize("name", ["mnist_cnn", "resnet20"])
def test_models_of_the_zoo_compute_what_their_docstrings_say(name):
    (flops,) = re.findall(r"FLOPs per image: ([\d,]+)", getattr(mk.models, name).__doc__)
    assert flops_of_training(KNOWN[f"{name}, known"].model()) == 3 * int(flops.replace(",", ""))


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989.5),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 3060", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("", None),
    ],
)
def test_the_peak_is_that_of_the_whole_gpu_that_is_named(name, peak):
    assert known_models.peak_of(name) == peak


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """`run("--devices cpu")` gives what was written as JSON, and what was printed."""

    def run(options):
        written = tmp_path / "figures.json"
        monkeypatch.setattr("sys.argv", ["known_models.py", *options.split(), "--json", str(written)])
        known_models.main()
        return json.loads(written.read_text()), capsys.readouterr().out

    return run


@pytest.mark.slow  # five trainings compile
@pytest.mark.parametrize(("model", "measured"), [("resnet-50", 6), ("bert-base", 6), ("mnist_cnn", 5)])
@pytest.mark.usefixtures("in_this_process")
def test_a_rehearsal_measures_everything(model, measured, run):
    policy = keras.config.dtype_policy()
    try:
        written, printed = run(f"--devices cpu --models {model}")
    finally:
        keras.config.set_dtype_policy(policy)
    rows = written["rows"]
    for row in rows:
        assert "error" not in row, row
        assert row["n"] == len(row["values"]) == 1
        assert min(*row["values"], row["flops"], row["peak_mb"]) > 0
        assert "of_peak" not in row
    assert len(rows) == measured
    assert "A rehearsal on virtual CPU devices" in printed
