"""Every example is run as a user runs it, in a process of its own, and what it prints is checked."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit.devices import onednn

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NAMES = [path.name for path in EXAMPLES]
NUMBER = r"[-+]?\d[\d,]*(?:\.\d*)?(?:e[-+]?\d+)?"
REAL_DATA = os.environ.get("MIRRORKIT_DATA")
BARE = {"MIRRORKIT_DATA": "", "KERAS_HOME": "empty"}  # no data set, no cache; `load("auto")` does not download


def run(name: str, *arguments: str, folder: str | Path, timeout: float = 280, **environment: str) -> str:
    """Run an example in `folder` and return what it printed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # as with_onednn: of what an example trains the accuracy alone is compared
    environment = {onednn.VARIABLE: "1", **os.environ, "PYTHONPATH": path, "TMPDIR": str(folder), **environment}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *arguments],
        cwd=folder,
        env=environment,
        timeout=timeout,
        capture_output=True,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stderr + done.stdout


@functools.cache
def mnist(name: str) -> str:
    """What an MNIST example prints after 188 steps on the synthetic set, which is all that it finds."""
    with tempfile.TemporaryDirectory() as folder:
        return run(name, "--devices", "cpu:4", "--epochs", "1", "--batch-size", "64", folder=folder, **BARE)


def accuracies(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"test accuracy (\d\.\d+)", output)]


def speeds(output: str) -> list[float]:
    return [float(value.replace(",", "")) for value in re.findall(r"([\d,]+) (?:examples|images)/s", output)]


def told() -> dict[str, list[str]]:
    """What examples/README.md says that each script prints."""
    text = (ROOT / "examples" / "README.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\.py\]\(\S+\) \|.* \| (.+) \|$", text, re.MULTILINE)
    return {name: re.findall(r"`([^`]+)`", printed) for name, printed in rows}


def check_readme(name: str, output: str) -> None:
    """Compare a script's output with examples/README.md, numbers and spaces left out, since no two runs are alike."""

    def masked(text: str) -> str:
        return re.sub(r"\s+", "", re.sub(NUMBER, "#", text))

    for expected in told()[name]:
        assert masked(expected) in masked(output), f"README says {expected!r}; {name} printed\n{output}"


def test_readme_has_a_row_for_every_script_and_its_links_lead_somewhere():
    folder = ROOT / "examples"
    assert sorted(told()) == sorted([path.stem for path in (*EXAMPLES, *(folder / "by_feature").glob("*.py"))])
    assert all(told().values())
    text = (folder / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not (folder / link).exists()] == []
    assert {f"{name}.py" for name in told()} == {Path(link).name for link in links if link.endswith(".py")}
    assert set(re.findall(r"`python examples/(\w+\.py)", text)) == set(NAMES)


@pytest.mark.parametrize("path", EXAMPLES, ids=NAMES)
def test_an_example_is_short_and_explains_itself(path, monkeypatch, capsys):
    assert len(path.read_text().splitlines()) < 80
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(path), run_name="__main__")
    text = capsys.readouterr().out
    assert f"Run: python examples/{path.name}" in text
    for option in ("--data ", "--data-dir", "--strategy", "--devices", "--epochs", "--batch-size"):
        without = {"model_parallel.py": ["--strategy"], "recommender.py": ["--data ", "--data-dir"]}  # make their own
        assert option in text or option in without.get(path.name, [])


@pytest.mark.parametrize("name", ["mnist_loop.py", "mnist_custom_loop.py", "mnist_keras_fit.py"])
@pytest.mark.slow  # test_docs.py runs README's script, the same in short
def test_mnist_examples_fall_back_to_synthetic_data_and_learn(name):
    output = mnist(name)
    check_readme(Path(name).stem, output)
    assert (
        "load('auto') found no mnist here (data_dir: not set; $MIRRORKIT_DATA: not set; Keras cache: no folder"
        in output
    )
    assert "MirroredStrategy, 4 replicas on CPU:0 CPU:1 CPU:2 CPU:3; 12,000 images of synthetic" in output
    assert accuracies(output)[-1] > 0.8  # a run gave 0.844, after one epoch
    assert min(speeds(output)) > 0


@pytest.mark.slow  # tests/train/step/test_tables.py compares weights
@pytest.mark.parametrize("optimizer", [["adagrad"], ["adam", "--lazy"]], ids=" ".join)
def test_the_recommender_learns_tastes_on_two_replicas(tmp_path, optimizer):
    """Of visits alone nothing could be told: 0.5; who knows all tastes comes to 0.8."""
    arguments = ["--devices", "cpu:2", "--epochs", "3", "--users", "20000", "--items", "20000", "--visits", "300000"]
    printed = run("recommender.py", *arguments, "--optimizer", *optimizer, folder=tmp_path)
    assert float(re.findall(r"AUC on other visits (\d\.\d+)", printed)[-1]) > 0.7


@pytest.mark.slow  # tests/parallel compares weights, bytes and executed operations
def test_model_parallel_example(tmp_path):
    """A transformer that learns on two replicas, each of two devices, with its table printed."""
    arguments = ["--devices", "cpu:4", "--epochs", "2", "--limit", "2048", "--data", "synthetic", "--recompute"]
    arguments += ["--blocks", "2"]
    output = run("model_parallel.py", *arguments, folder=tmp_path)
    rows = re.findall(r"^ *CPU:(\d) +([\d,]+) ", output, re.MULTILINE)
    assert [int(device) for device, _ in rows] == [0, 1, 2, 3]
    weights = [int(number.replace(",", "")) for _, number in rows]
    assert max(weights) < 0.6 * sum(weights[:2])  # about a half on each of a replica's two
    assert weights[:2] == weights[-2:]
    losses = [float(value) for value in re.findall(r" - loss: (\d\.\d+)", output)]
    assert losses[-1] < 0.96 * losses[0]


@pytest.mark.slow
def test_contrastive_example(tmp_path):
    arguments = ["--data", "synthetic", "--devices", "cpu:2", "--epochs", "2", "--limit", "4000"]
    output = run("contrastive.py", *arguments, folder=tmp_path)
    check_readme("contrastive", output)
    assert "MirroredStrategy, 2 replicas on CPU:0 CPU:1; 4,000 images of synthetic" in output
    assert accuracies(output)[0] > 0.2  # a tenth by chance; it sees no label


@pytest.mark.slow
def test_cifar10_example(tmp_path):
    arguments = ["--data", "synthetic", "--devices", "cpu:2", "--batch-size", "256", "--epochs", "1"]
    output = run("cifar10_mirrored.py", *arguments, "--plot", "epochs.png", folder=tmp_path)
    check_readme("cifar10_mirrored", output)
    assert "MirroredStrategy, 2 replicas on CPU:0 CPU:1; 12,000 images of synthetic" in output
    assert len(accuracies(output)) == 1
    assert accuracies(output)[0] > 0.3
    assert (tmp_path / "epochs.png").read_bytes().startswith(b"\x89PNG")


def compared(output: str) -> dict[tuple[str, int], tuple[float, float, float]]:
    """Speed, speed-up and accuracy by strategy and number of replicas, from the printed table."""
    rows = re.findall(r"^(\w+) +cpu +(\d+) +([\d,]+) +([\d.]+) +([\d.]+)$", output, re.MULTILINE)
    return {(kind, int(n)): (float(s.replace(",", "")), float(up), float(a)) for kind, n, s, up, a in rows}


def test_all_strategies_are_compared(tmp_path, monkeypatch, capsys):
    """The processes and their trainings are made up; the next test has real ones."""

    def apply(measure, arguments):
        kind, devices, *_ = arguments
        return 1200.0 / int(devices[-1]), 0.98 if kind == "one_device" else 0.97

    pool = contextlib.nullcontext(SimpleNamespace(apply=apply))
    monkeypatch.setattr(multiprocessing, "get_context", lambda how: SimpleNamespace(Pool=lambda *_, **__: pool))
    plot = tmp_path / "speeds.png"
    monkeypatch.setattr(sys, "argv", ["", "--data", "synthetic", "--devices", "cpu:4", "--plot", str(plot)])
    runpy.run_path(str(ROOT / "examples" / "compare_strategies.py"), run_name="__main__")
    output = capsys.readouterr().out
    check_readme("compare_strategies", output)
    begins, *_, ends = [
        line for line in output.splitlines() if line.startswith(("one_device on", "central_storage on"))
    ]
    assert begins == "one_device on cpu:1: compiles, then trains 2 epochs ..."
    assert ends == "central_storage on cpu:2: 600 examples/s, test accuracy 0.9700"
    assert compared(output) == {
        ("one_device", 1): (1200.0, 1.0, 0.98),
        ("mirrored", 2): (600.0, 0.5, 0.97),
        ("mirrored", 4): (300.0, 0.25, 0.97),
        ("central_storage", 2): (600.0, 0.5, 0.97),
    }
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not REAL_DATA, reason="needs CIFAR-10 in $MIRRORKIT_DATA")
def test_real_cifar10_learns_in_one_epoch_of_small_batches_on_four_replicas(tmp_path):
    """The example's ten epochs take too long for every run of the tests."""
    arguments = ["--data", "cifar10", "--devices", "cpu:4", "--epochs", "1", "--batch-size", "128"]
    output = run("cifar10_mirrored.py", *arguments, folder=tmp_path, timeout=1400)
    assert "4 replicas on CPU:0 CPU:1 CPU:2 CPU:3; 50,000 images of cifar10" in output
    assert accuracies(output)[-1] > 0.65


@pytest.mark.slow  # tests/train/step/test_gan.py compares its updates with plain TensorFlow
def test_gan_draws_and_resumes(tmp_path):
    arguments = ["--devices", "cpu:2", "--folder", str(tmp_path / "gan"), "--batch-size", "64"]
    for epochs, done in (("2", ["1/2", "2/2"]), ("3", ["3/3"])):
        output = run("gan.py", *arguments, "--epochs", epochs, folder=tmp_path, **BARE)
        check_readme("gan", output)
        assert "MirroredStrategy, 2 replicas on CPU:0 CPU:1; 12,000 images of synthetic" in output
        assert re.findall(r"^Epoch (\d/\d)", output, re.MULTILINE) == done
    drawn = np.asarray(tf.io.decode_png((tmp_path / "gan" / "02.png").read_bytes()))
    assert drawn.shape == (8 * 28, 8 * 28, 1)
    # An untrained generator draws 127 everywhere. Four runs gave 66 to 83.
    assert abs(drawn.mean() - mk.data.synthetic().train.images.mean()) < 25


@pytest.mark.slow
def test_the_notebook_trains_measures_and_draws(tmp_path):
    """Its code cells one after the other, as "Run all" does. It is stored without outputs: none can be out of date."""
    notebook = json.loads((ROOT / "examples" / "first_ten_minutes.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    drawn = "print('axes drawn:', [len(plt.figure(number).axes) for number in plt.get_fignums()])"
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join(["".join(cell["source"]) for cell in cells] + [drawn]))
    output = run(str(script), folder=tmp_path, MPLBACKEND="Agg", **BARE)
    assert "MirroredStrategy, 4 replicas on CPU:0 CPU:1 CPU:2 CPU:3\n" in output
    assert "synthetic: 12,000 images for training, 2,000 for tests\n47 steps in an epoch" in output
    assert accuracies(output)[0] > 0.85  # 0.95
    wrong = int(re.findall(r": (\d+) of 2,000 images are misread", output)[0])  # by predict; the accuracy is evaluate's
    assert wrong == round((1 - accuracies(output)[0]) * 2000)
    assert "axes drawn: [8, 2, 8]" in output
    assert min(speeds(output)) > 0
    four, one = re.findall(r"loss of the first epoch: (\S+) on 4 replicas, (\S+) on one device", output)[0]
    assert float(four) == pytest.approx(float(one), abs=1e-3)  # 1.8123 and 1.8123
    assert re.search(r"images per second: [1-9][\d,]* and [1-9]", output)
