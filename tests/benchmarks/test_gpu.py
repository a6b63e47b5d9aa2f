"""examples/benchmarks/gpu.py: its report, on measurements that are made up; and one whole rehearsal."""

from __future__ import annotations

import functools
import json

import gpu
import on_gpus.plan
import pytest
import tensorflow as tf
from harness.measure import LEFT_OUT, Measured
from on_gpus import processes
from on_gpus.plan import plan

import mirrorkit as mk
from mirrorkit._keras import keras

# --- examples/benchmarks/gpu.py: its report, on measurements that are made up; and one whole rehearsal


def test_speeds_are_multiples_of_fit_where_it_was_measured():
    measured = {"fit": Measured([90.0, 100.0, 120.0]), "Loop": Measured([200.0], {"xla": False})}
    fit, loop, slow = gpu.against_fit({**measured, "fit, no XLA": Measured([50.0])})
    assert (fit["to_fit"], loop["to_fit"], slow["to_fit"]) == (1.0, 2.0, 0.5)
    assert (fit["to_fit_no_xla"], loop["to_fit_no_xla"]) == (2.0, 4.0)
    assert fit["values"] == [90.0, 100.0, 120.0]
    assert fit["n"] == 3
    assert fit["spread"] == pytest.approx(0.3)
    fit, loop = gpu.against_fit({**measured, "fit": Measured(error="no ptxas")})
    assert fit == {"what": "fit", "error": "no ptxas"}
    assert "to_fit" not in loop


@pytest.fixture
def pretended(monkeypatch):
    """A machine with GPUs that are not there: `pretended(gpus, answer)`; trainings are made up."""

    verified: dict[str, str] = {}

    class Fake:
        def __init__(self, target, *members, timeout=0.0):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def call(self, method, **_):
            return {"verify": verified, "write": {"data": "digits", "examples": 64}}.get(method, [{"n": 1}])

    def measure_in_turns(jobs, *, budget, seconds, repeats, together):
        assert together
        return {key: Measured([10.0 * n]) if n < 4 else Measured(error=LEFT_OUT) for n, key in enumerate(jobs, 1)}

    def use(gpus, answer=None):
        verified.update(answer or {"verified": "all compute"})
        about = {"processor": "p", "cores": 2, "memory_gib": 1, "gpus": gpus, "versions": {}, "environment": {}}
        monkeypatch.setattr(gpu, "about_with_gpus", lambda: about)
        monkeypatch.setattr(gpu, "Group", Fake)
        monkeypatch.setattr(gpu, "measure_in_turns", measure_in_turns)

    return use


@pytest.fixture
def run(monkeypatch):
    """`run("--minutes", "7")` runs the script."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["gpu.py", *arguments])
        gpu.main()

    return run


def test_the_report_has_a_table_for_each_part_and_says_what_was_left_out(pretended, run, tmp_path, capsys):
    pretended(["H200", "H200"])
    figures = tmp_path / "figures.json"
    run("--minutes", "7", "--json", str(figures))
    printed = capsys.readouterr()
    written = json.loads(figures.read_text())
    late = sum(row.get("error") == LEFT_OUT for row in written["rows"])
    assert late > 5
    assert f"{late} rows were left out: they did not fit into 7 min." in printed.out
    assert "all compute" in printed.out
    for part in ("one device", "precision", "scaling", "equivalence", "all-reduce"):
        assert f"\n{part}\n" in printed.out
    assert "rehearsal" not in printed.out
    assert written["about"]["gpus"] == ["H200", "H200"]
    assert len(printed.err.splitlines()) == len(
        plan("gpu", 2, ["mnist_cnn", "resnet20"], {"mnist": "", "cifar10": ""}, 256)
    ), "a line for each group as it ends"


def test_a_gpu_with_wrong_results_ends_it_with_the_message(pretended, run):
    pretended(["H200"], {"error": "/device:GPU:0: does not compute: no cuDNN"})
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == "gpu.py: /device:GPU:0: does not compute: no cuDNN"


def test_without_a_gpu_it_refuses_in_one_line(pretended, run):
    pretended([])
    with pytest.raises(SystemExit, match=r"no GPU.*--devices cpu"):
        run()


def linear_step():
    net = keras.Sequential([keras.Input((16, 16, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return mk.train.Step(net, keras.optimizers.SGD(1e-4), loss=loss)


@pytest.mark.slow  # more than a dozen trainings compile
@pytest.mark.usefixtures("in_this_process")
def test_a_rehearsal_measures_everything(run_benchmark, capsys, monkeypatch):
    collectives = processes.collectives
    monkeypatch.setattr(processes, "collectives", lambda **of: collectives(**{**of, "sizes": [4096], "repeats": 1}))
    monkeypatch.setattr(processes, "closeness", functools.cache(processes.closeness))
    monkeypatch.setattr(processes, "_smooth_step", linear_step)  # its own net: test_processes.py
    written, title = run_benchmark("gpu.py --devices cpu --models linear --data synthetic --repeats 1")
    rows = written["rows"]
    for row in rows:
        assert "error" not in row, row
        assert row["n"] == len(row["values"])
        assert min(row["values"]) > 0
    names = {(row["part"], row["what"]) for row in rows if "what" in row}
    wanted = {"one device": on_gpus.plan.SPEED, "precision": on_gpus.plan.PRECISION}
    assert names == {(part, name) for part, contenders in wanted.items() for name in contenders}
    speeds = {row["what"]: row for row in rows if row["part"] == "one device"}
    assert speeds["fit"]["to_fit"] == 1.0
    assert speeds["Step(jit_compile=True)"]["xla"] is True
    scaling = [(row["on"], row["scaling"], row["replicas"]) for row in rows if row["part"] == "scaling"]
    assert ("CPU as logical GPUs", "strong", 4) in scaling
    assert ("CPU as GPUs", "weak", 2) in scaling
    equal = [row for row in rows if row["part"] == "equivalence"]
    assert [(row["replicas"], row["tf32"]) for row in equal] == [(n, tf32) for n in (2, 4, 2) for tf32 in (False, True)]
    assert all(row["within"] and row["copies_agree"] and row["n"] == 20 for row in equal)
    assert {row["implementation"] for row in rows if row["part"] == "all-reduce"} >= {"auto", "hierarchical"}
    assert "A rehearsal on virtual CPU devices" in capsys.readouterr().out
    assert title == "Scaling"


# --- what of a comparison on GPUs can be seen without one: weights come close, and a net for which they do not


@pytest.mark.slow
def test_weights_on_two_devices_come_close_and_a_net_that_depends_on_the_cut_is_found(monkeypatch):
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    nets = {"kind": "mirrored", "devices": "cpu:2", "steps": 3}
    (row,) = processes.closeness(**nets, tf32=[False])
    assert row["n"] == 3
    assert row["difference"] == row["values"][-1] < 1e-5
    assert row["within"]
    assert row["copies_agree"]
    assert not tf.config.experimental.tensor_float_32_execution_enabled()

    def with_batch_statistics():
        layers = [keras.layers.Flatten(), keras.layers.BatchNormalization(), keras.layers.Dense(10)]
        net = keras.Sequential([keras.Input((16, 16, 1)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return mk.train.Step(net, keras.optimizers.SGD(0.01), loss=loss)

    monkeypatch.setattr(processes, "_smooth_step", with_batch_statistics)
    (row,) = processes.closeness(**nets, tf32=[True])
    assert not row["within"]
    assert tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
