"""Workers whose scripts differ say so before the first step, or after the epoch in which their variables parted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from launching import launched

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent

STEP, LOOP, FIT = (f"ClusterError: The workers do not have the same {what}: " for what in ("step", "loop", "fit"))
RESULTS = "ClusterError: The workers do not compute the same: for the same 4 rows of the first batch, the loss is "
PLACE = "ClusterError: The workers are not at the same place of the program: "
SAYS = {
    "another beta_1": STEP + "beta_1 of the optimizer is 0.9 on worker 0 and 0.5 on worker 1.",
    "another rate": STEP + "learning_rate of the optimizer is 0.01 on worker 0 and 0.5 on worker 1.",
    "another schedule": STEP + "learning_rate/config/decay_rate of the optimizer is 0.9 on worker 0 and 0.5",
    "another optimizer": STEP + "class of the optimizer is 'Adam' on worker 0 and 'SGD' on worker 1",
    "another activation": STEP + "activation of layer 'dense' (2) is 'relu' on worker 0 and 'tanh' on worker 1.",
    "a lambda with other code": RESULTS,
    "a layer with other code": RESULTS,
    "a loss with other code": RESULTS,
    "another option of the loss": STEP + "losses/loss/label_smoothing of the step is 0.0 on worker 0 and 0.1",
    "another option of a metric": STEP + "metrics/metrics/0/threshold of the step is 0.5 on worker 0 and 0.7",
    "another metric": STEP + "metrics/metrics/0 of the step is 'accuracy' on worker 0 and 'mae' on worker 1.",
    "another clip_norm": STEP + "clip/norm of the step is 2.0 on worker 0 and 1.0 on worker 1.",
    "accumulate": STEP + "accumulate of the step is 1 on worker 0 and 2 on worker 1.",
    "ema": STEP + "ema of the step is None on worker 0 and 0.9 on worker 1.",
    "jit_compile": STEP + "jit_compile of the step is False on worker 0 and True on worker 1.",
    "steps_per_call": LOOP + "steps_per_call is 'auto' on worker 0 and 4 on worker 1.",
    "fewer epochs": FIT + "epochs is 2 on worker 0 and 1 on worker 1.",
    "no validation": FIT + "validation (its frequency, batch size, batches) is [1, 16, 4] on worker 0 and None on",
    "class_weight": FIT + "class_weight is None on worker 0 and {'0': 1.0, '1': 2.0} on worker 1.",
    "weights of its own": "/kernel' holds other values on worker 1 than on worker 0, before the first step;",
    "a callback that writes noise": "/kernel' holds other values on worker 1 than on worker 0, after epoch 0",
    "a callback that sets the rate": "/learning_rate' holds other values on worker 1 than on worker 0, after epoch 0",
    "evaluate between fits": PLACE + "Loop.evaluate on worker 0 and Loop.fit on worker 1. What all",
    "evaluate after an epoch": PLACE + "Loop.evaluate within Loop.fit on worker 0 and Loop.fit on worker 1. What all",
    "predict after an epoch": PLACE + "Loop.predict within Loop.fit on worker 0 and Loop.fit on worker 1. What all",
    "evaluate after a batch": PLACE + "Loop.evaluate within Loop.fit on worker 0 and Loop.fit on worker 1. What all",
    "export": PLACE + "a wait for the chief on worker 0 and Loop.fit on worker 1. What all",
    "a number of its own": PLACE + "a call of your own on worker 0 and Loop.fit on worker 1. What all",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    launched(HERE / "differing_scripts.py", folder, folder=folder)
    return folder


@pytest.mark.parametrize("what", SAYS)
def test_both_workers_say_what_differs(folder, what):
    for worker in (0, 1):
        found = json.loads((folder / f"found{worker}.json").read_text())
        assert SAYS[what] in found[what]
        assert found.keys() == SAYS.keys()


def test_afterwards_equal_scripts_train(folder):
    assert (folder / "right0").exists()
    assert (folder / "right1").exists()


@pytest.mark.parametrize(("what", "shapes"), [("width", {"[4,1]", "[4,2]"}), ("layer", {"[4,4]", "[4,1]"})])
def test_another_width_is_named_with_the_variable(tmp_path, what, shapes):
    done = launched(HERE / "differing_scripts.py", tmp_path, what, folder=tmp_path, check=False)
    assert done.returncode != 0
    text = (
        r"creates the variable 'sequential/dense_1/kernel' of shape (\S+), where another worker creates one of shape "
    )
    (found, *_) = re.findall(rf"worker (\d) {text}(\S+)\.", done.stdout + done.stderr)
    assert set(found[1:]) == shapes
    assert (found[0] == "0") == (found[1] == "[4,1]")
