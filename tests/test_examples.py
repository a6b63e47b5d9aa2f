"""The examples do what their comments say."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

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


MNIST = "--devices cpu:4 --epochs 1 --batch-size 64"
TASTES = "--devices cpu:2 --epochs 3 --users 20000 --items 20000 --visits 300000"
ACCURACY = r"test accuracy (\d\.\d+)"
# The arguments, what says how well it has learnt, and what it must come to at least: by chance an accuracy is 0.1, and
# of visits alone nothing could be told, an AUC of 0.5.
LEARN = {
    "mnist_loop": (MNIST, ACCURACY, 0.8),
    "mnist_custom_loop": (MNIST, ACCURACY, 0.8),
    "mnist_keras_fit": (MNIST, ACCURACY, 0.8),
    "contrastive": ("--data synthetic --devices cpu:2 --epochs 2 --limit 4000", ACCURACY, 0.2),
    "cifar10_mirrored": ("--data synthetic --devices cpu:2 --batch-size 256 --epochs 1 --plot a.png", ACCURACY, 0.3),
    "compare_strategies": ("--data synthetic --devices cpu:2 --epochs 1 --plot a.png", r"(\d\.\d+)$", 0.5),
    "recommender --optimizer adagrad": (TASTES, r"AUC on other visits (\d\.\d+)", 0.7),
    "recommender --optimizer adam --lazy": (TASTES, r"AUC on other visits (\d\.\d+)", 0.7),
}


@pytest.mark.slow  # test_docs.py runs README's script; the features have tests that compare weights
@pytest.mark.parametrize("command", LEARN)
def test_an_example_learns_and_prints_what_readme_says(command, tmp_path):
    name, *options = command.split()
    arguments, says, least = LEARN[command]
    output = run(f"{name}.py", *arguments.split(), *options, folder=tmp_path, **BARE)
    check_readme(name, output)
    reached = [float(value) for value in re.findall(says, output, re.MULTILINE)]
    assert reached[-1] > least
    if "--plot" in arguments:
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow  # tests/parallel compares weights, bytes and executed operations
def test_model_parallel_example(tmp_path):
    """A transformer that learns on two replicas, each of two devices, with what these hold printed."""
    arguments = ["--devices", "cpu:4", "--epochs", "2", "--limit", "2048", "--data", "synthetic", "--recompute"]
    arguments += ["--blocks", "2"]
    output = run("model_parallel.py", *arguments, folder=tmp_path)
    rows = re.findall(r"^CPU:(\d): ([\d,]+) bytes of weights", output, re.MULTILINE)
    assert [int(device) for device, _ in rows] == [0, 1, 2, 3]
    weights = [int(number.replace(",", "")) for _, number in rows]
    assert max(weights) < 0.6 * sum(weights[:2])  # about a half on each of a replica's two
    assert weights[:2] == weights[-2:]
    losses = [float(value) for value in re.findall(r" - loss: (\d\.\d+)", output)]
    assert losses[-1] < 0.96 * losses[0]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not REAL_DATA, reason="needs CIFAR-10 in $MIRRORKIT_DATA")
def test_real_cifar10_learns_in_one_epoch_of_small_batches_on_four_replicas(tmp_path):
    """The example's ten epochs take too long for every run of the tests."""
    arguments = ["--data", "cifar10", "--devices", "cpu:4", "--epochs", "1", "--batch-size", "128"]
    output = run("cifar10_mirrored.py", *arguments, folder=tmp_path, timeout=1400)
    assert "4 replicas on CPU:0 CPU:1 CPU:2 CPU:3; 50,000 images of cifar10" in output
    assert accuracies(output)[-1] > 0.65


@pytest.mark.slow  # the corpus compares two nets that play with plain TensorFlow
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


# --- each script of examples/by_feature is run, and prints what examples/README.md says, with about the same numbers


FOLDER = ROOT / "examples" / "by_feature"
FEATURES = sorted(path.stem for path in FOLDER.glob("*.py"))
FAST = ("tf_data",)
# They lay out the CPU, enable reproducible mode, connect to a cluster, or take all devices that there are.
OWN_PROCESS = ("parameter_server", "resume", "tf_config", "tf_distribute_strategy", "tpu")


def is_close(found: str, wanted: str) -> bool:
    """Whether a number is that of README within a fifth; one that is tiny there has to be tiny."""
    number, other = (float(text.replace(",", "")) for text in (found, wanted))
    if "e-" in wanted or "e+" in wanted:
        return abs(number) < max(1e-5, 10 * other)
    return number == pytest.approx(other, rel=0.2, abs=0.05)


def is_told(expected: str, output: str) -> bool:
    """Whether the output has these words, whatever the spaces between them, with these numbers."""
    expected, output = (re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text) for text in (expected, output))
    words = [
        "".join(rf"\s*{re.escape(letter)}" for letter in "".join(part.split())) for part in re.split(NUMBER, expected)
    ]
    numbers = re.findall(NUMBER, expected)
    found = re.finditer(rf"\s*({NUMBER})".join(words), output)
    return any(all(map(is_close, match.groups(), numbers)) for match in found)


def test_every_script_is_short_and_explained() -> None:
    for name in FEATURES:
        source = (FOLDER / f"{name}.py").read_text()
        assert len(source.splitlines()) < 60
        assert f"Run: python examples/by_feature/{name}.py\nPrints " in source
        assert "argparse" not in source


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in FEATURES]
)
def test_a_feature_shows_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if name in OWN_PROCESS:
        output = run(f"by_feature/{name}.py", folder=tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        output = capfd.readouterr().out
    for expected in told()[name]:
        assert is_told(expected, output), f"README says {expected!r}; {name} printed\n{output}"
    assert not list(tmp_path.iterdir()), "nothing is left behind"
