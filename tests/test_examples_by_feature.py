"""Each script of examples/by_feature is run, and what it prints is compared with what it shows."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from test_examples import NUMBER, ROOT, check_readme, run

FOLDER = ROOT / "examples" / "by_feature"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
FAST = ("custom_step", "tf_data")
# They lay out the CPU, enable reproducible mode, connect to a cluster, or take all devices that there are.
OWN_PROCESS = ("parameter_server", "resume", "tf_config", "tf_distribute_strategy", "tpu")


def line(output: str, beginning: str) -> str:
    """What stands behind these words, in the one line that begins with them."""
    (found,) = (line for line in output.splitlines() if line.startswith(beginning))
    return found.removeprefix(beginning)


def numbers(output: str, beginning: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(NUMBER, line(output, beginning))]


def compiled_model(output: str) -> None:
    for name, rises in (("accuracy", True), ("loss    ", False)):
        alone, here = (numbers(output, f"{name} of {where}: ") for where in ("fit, one device", "Loop, two replicas"))
        assert alone == pytest.approx(here, abs=2e-4)
        assert len(alone) == 3
        assert (alone[-1] > alone[0]) is rises
    assert numbers(output, "largest difference of the weights: ")[0] < 1e-6


def custom_step(output: str) -> None:
    assert numbers(output, "NumPy's weights: ") == pytest.approx([1, 2, 3], abs=0.2)
    for strategy in ("MirroredStrategy, 2 replicas on CPU:0 CPU:1: ", "OneDeviceStrategy, 1 replica on CPU:0: "):
        assert numbers(output, strategy)[0] < 1e-6


def export_and_load(output: str) -> None:
    for name in (".keras file: ", "SavedModel: ", "averaged weights, from the loop's averages: "):
        assert numbers(output, name)[0] < 1e-5
    assert numbers(output, "averaged weights, from the trained ones: ")[0] > 0.1


def gradient_accumulation(output: str) -> None:
    assert numbers(output, "batches of 128, accumulate=1: ") == [32, 32]
    assert numbers(output, "batches of  32, accumulate=4: ") == [128, 32]
    assert numbers(output, "largest difference of the weights: ")[0] < 1e-6


def keras_callbacks(output: str) -> None:
    stopped, of, best = numbers(output, "stopped after epoch ")
    assert of == 50
    assert best == stopped - 2, "the patience"
    assert stopped < of
    least, restored = numbers(output, "the best val_loss: ")
    assert restored == pytest.approx(least, abs=2e-4)
    assert numbers(output, "epochs.csv: ") == [stopped]
    assert line(output, "epochs.csv: ").endswith("rows of epoch, accuracy, loss, val_accuracy, val_loss")
    assert line(output, "TensorBoard, train: ") == "epoch_accuracy epoch_learning_rate epoch_loss"
    assert line(output, "TensorBoard, validation: ") == "epoch_accuracy epoch_loss"


def mixed_precision(output: str) -> None:
    assert line(output, "weights: ") == "float32 - computed in: float16"
    scale, skipped = numbers(output, "loss scale: from 2**24 to ")
    assert skipped > 0
    assert scale == 2**24 / 2**skipped
    assert numbers(output, "updates: ") == [30 - skipped, 30, skipped]
    losses = numbers(output, "loss: ")
    assert losses == sorted(losses, reverse=True)


def nan_watch(output: str) -> None:
    data, layer = re.findall(r"^epoch \d+: (.+)$", output, re.MULTILINE)
    assert data.startswith("comes in batch 4: input of the batch: 8 NaN and 0 infinite")
    assert data.endswith("(shard 1 of the batch).")
    assert re.match(r"comes in batch \d: output of layer 'hidden' \(Dense\): 0 NaN and [1-9]\d* infinite", layer)
    assert output.count("weights still finite: True") == 2


def numpy_arrays(output: str) -> None:
    assert numbers(output, "learned: ") == pytest.approx([2, -3], abs=1e-3)
    assert numbers(output, "largest error of 1,000 predictions: ")[0] < 1e-4
    assert line(output, "refused: ").startswith("images['left'] holds 1000 examples and images['right'] holds 999;")


def parameter_server(output: str) -> None:
    assert "ParameterServerStrategy, 2 workers, 2 ps" in output
    assert line(output, "table_0:0: ") == "rows 5000, on /job:ps/replica:0/task:0"
    assert line(output, "table_1:0: ") == "rows 5000, on /job:ps/replica:0/task:1"
    losses = numbers(output, "loss of each epoch: ")
    # Each epoch halves every error, and an id comes once in it: asynchronous, and exact.
    assert losses[:5] == pytest.approx([losses[0] / 4**epoch for epoch in range(5)], abs=2e-4)
    steps, error = numbers(output, "after ")
    assert steps == 160
    assert error < 0.05


def profiling(output: str) -> None:
    assert line(output, "traced: ") == "steps 10 to 19 of 40"
    assert line(output, "xplane.pb: ").endswith(" MB, with MatMul Softmax")


def resume(output: str) -> None:
    assert "SIGTERM: saved in" in output
    assert numbers(output, "stopped after ") == [50, 143]
    assert numbers(output, "went on for ") == [30, 80]
    assert line(output, "the weights of an unbroken run: ") == "True"


def tf_config(output: str) -> None:
    for index in range(2):
        assert line(output, f"worker {index} of 2 workers (TF_CONFIG), ").startswith("127.0.0.1:")
    ends = re.findall(r"^(\w+), \d replica.*: loss (\S+), sum of \|weights\| (\S+)$", output, re.MULTILINE)
    assert [kind for kind, *_ in ends] == [*2 * ["MultiWorkerMirroredStrategy"], "OneDeviceStrategy"]
    assert [float(loss) for _, loss, _ in ends] == pytest.approx(3 * [float(ends[0][1])], abs=2e-5)
    assert [float(size) for *_, size in ends] == pytest.approx(3 * [float(ends[0][2])], abs=2e-3)


def tf_data(output: str) -> None:
    assert numbers(output, "one epoch: ") == [16, 1000]
    assert numbers(output, "the last batch on two replicas: ") == [20, 20]
    here, by_hand = (float(number) for number in re.findall(r"[\d.]+", line(output, "mae of evaluate: ")))
    assert here == pytest.approx(by_hand, abs=2e-6)
    assert 1e-4 < here < 0.1  # not yet all zeros


def tf_distribute_strategy(output: str) -> None:
    mine, theirs = re.findall(r"^MirroredStrategy, 2 replicas on CPU:0 CPU:1: loss (\S+)$", output, re.MULTILINE)
    assert mine == theirs
    assert line(output, "the same weights: ") == "True"


def tfrecords(output: str) -> None:
    files = line(output, "files: ").split()
    assert files == [f"train-{index:05}-of-00004.tfrecord" for index in range(4)]
    first = numbers(output, "first batch: ")
    assert first != sorted(first), "shuffled"
    assert max(first) - min(first) > 250, "from more than one file"
    assert line(output, "every example once: ") == "True"
    assert line(output, "from step 7 on, the same batches: ") == "True"
    assert numbers(output, "10 steps, ") == [1000]


def tpu(output: str) -> None:
    assert "No TPU ('tpu' was asked for, but none was found" in output
    assert line(output, "training on: ") == "OneDeviceStrategy, 1 replica on CPU:0"
    assert line(output, "batches: ") == "[(128, 28, 28, 1)] - 7 steps"
    assert line(output, "layers compute in: ") == "bfloat16"
    losses = numbers(output, "val_loss: ")
    assert losses[-1] < losses[0]


def two_optimizers(output: str) -> None:
    assert numbers(output, "before ")[:2] == pytest.approx([0, 1], abs=0.05)
    mean, spread = numbers(output, "after ")[:2]
    assert mean == pytest.approx(3, abs=0.3)
    assert spread == pytest.approx(0.5, abs=0.2)
    assert numbers(output, "updates: ") == [2000, 2000]


CHECKS = {name: value for name, value in globals().items() if name in NAMES}


def test_every_script_is_short_explained_and_checked() -> None:
    assert sorted(CHECKS) == NAMES
    for name in NAMES:
        source = (FOLDER / f"{name}.py").read_text()
        assert len(source.splitlines()) < 60
        assert f"Run: python examples/by_feature/{name}.py\nPrints " in source
        assert "argparse" not in source


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in NAMES])
def test_a_feature_shows_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if name in OWN_PROCESS:
        output = run(f"by_feature/{name}.py", folder=tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        output = capfd.readouterr().out
    CHECKS[name](output)
    check_readme(name, output)
    assert not list(tmp_path.iterdir()), "nothing is left behind"
