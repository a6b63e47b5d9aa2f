"""`bench gpu`: what it plans, leaves out and compares, on measurements that are made up; and one whole rehearsal."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import tensorflow as tf

import mirrorkit as mk
from mirrorkit import __main__ as command
from mirrorkit._keras import keras
from mirrorkit.bench import gpu_processes, measure, training
from mirrorkit.bench.measure import LEFT_OUT, Budget, Job, Measured, train_within
from mirrorkit.bench.remote import Member, in_turns
from mirrorkit.errors import DeviceError, MirrorkitError

gpu = importlib.import_module("mirrorkit.bench.gpu")
SETS = {"mnist": "mnist.npz", "cifar10": "cifar10.npz"}


def planned(device, gpus):
    return gpu.plan(device, gpus, ["mnist_cnn", "resnet20"], SETS, 256)


def outline(groups):
    return [(group.part, *(group.common[key] for key in ("model", "on") if key in group.common)) for group in groups]


def test_one_gpu_is_compared_with_fit_then_split():
    groups = planned("gpu", 1)
    assert outline(groups) == [
        ("one device", "mnist_cnn"),
        ("equivalence", "logical GPUs"),
        ("one device", "resnet20"),
        ("precision", "resnet20"),
        ("scaling", "resnet20", "logical GPUs"),
        ("scaling", "mnist_cnn", "logical GPUs"),
        ("precision", "mnist_cnn"),
    ]
    assert list(groups[0].jobs)[:3] == ["fit", "Loop", "fit, no XLA"], "the most telling first"
    (fit,) = groups[0].jobs["fit"].members
    assert groups[0].jobs["fit"].target.endswith(":Fit")
    assert "jit_compile" not in fit.arguments, "Keras's own default"
    assert fit.arguments["data"] == "mnist.npz"
    assert fit.environment == {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, "several processes share the GPU's memory"
    splits = {name: job.members[0].arguments.get("split_gpu") for name, job in groups[4].jobs.items()}
    assert splits == {("baseline", 1, 256): None, ("strong", 2, 256): 2, ("strong", 4, 256): 4}
    assert [job.members[0].arguments["split_gpu"] for job in groups[1].jobs.values()] == [2, 4]
    assert groups[4].shared == {2, 4}


def test_several_gpus_are_scaled_over_before_other_models_have_their_turn():
    groups = planned("gpu", 4)
    on = outline(groups)
    assert on[2:4] == [("scaling", "resnet20", "GPUs"), ("equivalence", "GPUs")]
    assert ("scaling", "mnist_cnn", "GPUs") in on
    assert list(groups[2].jobs) == [
        *(("baseline", 1, 256), ("strong", 4, 256), ("weak", 4, 1024)),
        *(("strong", 2, 256), ("weak", 2, 512)),
    ]
    for job in (*groups[2].jobs.values(), *groups[3].jobs.values()):
        assert "split_gpu" not in job.members[0].arguments
    assert not groups[2].shared
    (everything,) = groups[on.index(("all-reduce",))].jobs.values()
    (member,) = everything.members
    assert member.arguments["devices"] == "gpu:4"
    assert gpu_processes.Collectives(**member.arguments)._options["implementations"][0] == "nccl"


def test_a_rehearsal_has_all_parts_and_hides_gpus():
    groups = planned("cpu", 2)
    assert [group.part for group in groups] == [group.part for group in planned("gpu", 2)]
    for group in groups:
        for job in group.jobs.values():
            (member,) = job.members
            assert member.environment["CUDA_VISIBLE_DEVICES"] == ""
            assert "split_gpu" not in member.arguments


class Machine:
    """A clock, and processes that take their time by it."""

    def __init__(self, monkeypatch, *, starts, epochs, fails=()):
        self.now, self.seen = 0.0, []
        self.starts, self.epochs, self.fails = starts, epochs, fails
        monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr("mirrorkit.bench.remote.time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(measure, "Remote", self.remote)

    def remote(self, target, *members, timeout):
        machine = self

        class Fake:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                machine.seen.append(f"end {target}")

            def call(self, method, **arguments):
                if target in machine.fails:
                    raise MirrorkitError("no room")
                machine.now += machine.starts if method == "facts" else machine.epochs * arguments["epochs"]
                machine.seen.append((target, arguments.get("epochs", method)))
                return {} if method == "facts" else 100.0

        return Fake()


def jobs(names):
    return {name: Job(name, [Member()]) for name in names}


def test_turns_are_about_two_seconds_long_and_alternate(monkeypatch):
    machine = Machine(monkeypatch, starts=10, epochs=0.5)
    found = train_within(jobs("ab"), Budget(1000), seconds=500, repeats=2)
    assert machine.seen[:3] == [("a", "facts"), ("a", 1), ("a", 1)]
    assert machine.seen[6:10] == [("a", 4), ("b", 4), ("a", 4), ("b", 4)]
    assert machine.seen[10:] == ["end b", "end a"]
    assert found["a"] == Measured([100.0, 100.0])


def test_jobs_that_do_not_fit_into_their_share_are_left_out_but_two_are_measured(monkeypatch):
    Machine(monkeypatch, starts=10, epochs=1)
    found = train_within(jobs("abcde"), Budget(1000), seconds=60, repeats=2)
    # 12 s to start, 4 s of turns for each; before d: 36 s, and it needs 12 s and 2 x (3 + 1) x 2 s
    assert [measured.error for measured in found.values()] == [None, None, None, LEFT_OUT, LEFT_OUT]
    found = train_within(jobs("abcde"), Budget(1000), seconds=1, repeats=2)
    assert [measured.error for measured in found.values()] == [None, None, LEFT_OUT, LEFT_OUT, LEFT_OUT]


def test_nothing_is_started_that_would_not_end_with_the_budget_and_turns_end_with_it(monkeypatch):
    machine = Machine(monkeypatch, starts=10, epochs=1)
    budget = Budget(25)  # the first takes 12 s to start, and so would the next, and 2 s each for the turns
    found = train_within(jobs("abc"), budget, seconds=1000, repeats=1)
    assert [measured.error for measured in found.values()] == [None, LEFT_OUT, LEFT_OUT]
    assert budget.left > 0
    found = train_within(jobs("abc"), Budget(30), seconds=1000, repeats=1)
    assert [measured.error for measured in found.values()] == [None, None, LEFT_OUT]
    budget = Budget(30)
    found = train_within(jobs("a"), budget, seconds=1000, repeats=100)
    assert 1 < len(found["a"].speeds) < 10
    assert machine.now <= budget.end


def test_a_job_that_fails_is_an_error_and_the_others_go_on(monkeypatch):
    Machine(monkeypatch, starts=1, epochs=1, fails=("a",))
    found = train_within(jobs("abc"), Budget(1000), seconds=500, repeats=2)
    assert found["a"].error == "no room"
    assert [len(found[name].speeds) for name in "abc"] == [0, 2, 2]


def test_a_job_that_hangs_does_not_take_all_that_is_left(monkeypatch):
    Machine(monkeypatch, starts=1, epochs=1)
    assert Budget(1200).patience == 150
    assert Budget(240).patience == 60, "nothing that works takes longer"
    assert Budget(20).patience == 20


def test_after_its_time_no_round_of_turns_begins_but_the_first():
    seen = []
    in_turns({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 3, until=0.0)
    assert seen == ["a", "b"]


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


def test_scaling_without_its_baseline_has_speeds_and_no_comparison():
    found = {("baseline", 1, 8): Measured(error="no room"), ("strong", 2, 8): Measured([10.0])}
    first, second = importlib.import_module("mirrorkit.bench.scaling").compare(found, ())
    assert first["error"] == "no room"
    assert second["median"] == 10.0
    assert "speedup" not in second


def test_a_process_that_fails_is_a_row_with_its_error(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    group = gpu.Group("equivalence", {"on": "GPUs"}, {2: Job("remote_subjects:Counter", [Member({"start": 1})])})
    (row,) = gpu.measure(group, Budget(100), seconds=100, repeats=1)
    assert (row["part"], row["on"], row["replicas"]) == ("equivalence", "GPUs", 2)
    assert "AttributeError" in row["error"]
    late = Budget(1)
    late.slowest = 5
    assert gpu.measure(group, late, seconds=100, repeats=1)[0]["error"] == LEFT_OUT


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
            return {"report": verified, "write": {"data": "digits", "examples": 64}, "rows": [{"n": 1}]}[method]

    def train_within(jobs, budget, *, seconds, repeats):
        return {key: Measured([10.0 * n]) if n < 4 else Measured(error=LEFT_OUT) for n, key in enumerate(jobs, 1)}

    def use(gpus, answer=None):
        verified.update(answer or {"verified": "all compute"})
        about = {"processor": "p", "cores": 2, "memory_gib": 1, "gpus": gpus, "versions": {}, "environment": {}}
        monkeypatch.setattr(gpu, "about_with_gpus", lambda: about)
        monkeypatch.setattr(gpu, "Remote", Fake)
        monkeypatch.setattr(gpu, "train_within", train_within)

    return use


def test_the_report_has_a_table_for_each_part_and_says_what_was_left_out(pretended, tmp_path, capsys):
    pretended(["H200", "H200"])
    figures = tmp_path / "figures.json"
    assert command.main(["bench", "gpu", "--minutes", "7", "--json", str(figures)]) == 0
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
    assert len(printed.err.splitlines()) == len(planned("gpu", 2)), "a line for each group as it ends"


def test_what_there_is_is_given_away_after_each_group(pretended):
    pretended(["H200"])
    sizes = []
    report = mk.bench.gpu(each=lambda report: sizes.append(len(report.rows)))
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == len(report.rows)
    assert report.chart.series["resnet20, strong, logical"] == [1.0, 2.0, 3.0]


def test_figures_are_saved_as_they_come_for_a_machine_that_is_taken_away(pretended, tmp_path, monkeypatch):
    pretended(["H200"])
    figures = tmp_path / "figures.json"
    measured = []

    def taken_away(*arguments, **options):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append([{"part": "one device", "what": "Loop"}])
        return measured[-1]

    monkeypatch.setattr(gpu, "measure", taken_away)
    with pytest.raises(KeyboardInterrupt):
        command.main(["bench", "gpu", "--json", str(figures)])
    assert len(json.loads(figures.read_text())["rows"]) == 2


def test_a_gpu_that_computes_wrongly_ends_it_with_the_message(pretended, capsys):
    pretended(["H200"], {"error": "/device:GPU:0: does not compute: no cuDNN"})
    assert command.main(["bench", "gpu"]) == 1
    assert capsys.readouterr().err == "mirrorkit bench: /device:GPU:0: does not compute: no cuDNN\n"


def test_without_a_gpu_it_refuses_in_one_line(pretended, capsys):
    pretended([])
    assert command.main(["bench", "gpu"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mirrorkit bench: TensorFlow finds no GPU")
    assert "--device cpu" in line


def test_what_is_wrong_with_a_device_is_an_answer_and_no_traceback(monkeypatch):
    def broken(require):
        raise DeviceError(f"{require} is broken")

    monkeypatch.setattr(gpu_processes._devices, "verify", broken)
    assert gpu_processes.Verification().report("gpu") == {"error": "gpu is broken"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"minutes": 0}, "minutes=0"),
        ({"device": "workers"}, "'gpu' or 'cpu'"),
        ({"models": []}, "one model or more"),
        ({"data": "mnist"}, "'auto' or 'synthetic'"),
        ({"repeats": -1}, "repeats=-1"),
        ({"examples": 8, "batch_size": 16}, "examples make a batch"),
        ({"models": ["mnist_cn"]}, "Did you mean 'mnist_cnn'"),
    ],
)
def test_mistakes_are_told_before_anything_starts(arguments, message, pretended, monkeypatch):
    pretended(["H200"])
    monkeypatch.setattr(gpu, "Remote", None)
    with pytest.raises(MirrorkitError, match=message):
        mk.bench.gpu(**arguments)


def test_only_the_first_gpu_is_split(monkeypatch):
    asked = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [f"{kind} 0", f"{kind} 1"])
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", lambda *given: asked.append(given))
    training.split_first_gpu(2, mebibytes=100)
    ((device, parts),) = asked
    assert device == "GPU 0"
    assert [part.memory_limit for part in parts] == [100, 100]


@pytest.fixture
def digits(tmp_path):
    path = tmp_path / "mnist.npz"
    facts = gpu_processes.Preparation().write(str(path), "mnist", None, 640, synthetic=True)
    assert facts == {"data": "synthetic 28x28x1", "examples": 640}
    return str(path)


def make(kind, digits, **options):
    return kind(kind="one_device", devices="cpu:1", model="linear", data=digits, batch_size=64, **options)


def test_fit_trains_as_the_loop_does_and_its_default_is_kerass(digits):
    fit, loop = make(training.Fit, digits), make(training.Training, digits)
    for trained in (fit, loop):
        assert trained.train(8) > 0
    assert fit.evaluate() == pytest.approx(loop.evaluate(), abs=0.05)
    assert fit.evaluate() > 0.3
    assert fit.facts() == {"data": "synthetic", "examples": 640, "xla": False, "on": "no strategy"}
    assert loop.facts()["on"].startswith("OneDeviceStrategy")


def test_options_of_fit_reach_compile(digits):
    fit = make(training.Fit, digits, jit_compile=True, many_steps=True)
    assert fit._net.jit_compile is True
    assert fit._net.steps_per_execution == 10  # of ten steps in an epoch
    assert fit.facts()["xla"] is True


@pytest.mark.parametrize("asked", ["step", "loop", None])
def test_jit_compile_reaches_what_it_is_named_after(asked, digits, monkeypatch):
    given = {}
    step, loop = training.train.Step, training.train.Loop

    def keep(name, make):
        def wrapper(*arguments, **options):
            given[name] = options["jit_compile"]
            return make(*arguments, **{**options, "jit_compile": False})

        return wrapper

    monkeypatch.setattr(training.train, "Step", keep("step", step))
    monkeypatch.setattr(training.train, "Loop", keep("loop", loop))
    make(training.Training, digits, jit_compile=asked)
    assert given == {"step": asked == "step", "loop": asked == "loop"}


def test_weights_on_two_devices_come_close_and_a_net_that_depends_on_the_cut_is_found(monkeypatch):
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    closeness = gpu_processes.Closeness(kind="mirrored", devices="cpu:2", steps=3)
    row = closeness._compared(tf32=False)
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

    monkeypatch.setattr(gpu_processes, "_smooth_step", with_batch_statistics)
    assert not closeness._compared(tf32=True)["within"]
    assert tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(tf32)


@pytest.mark.slow  # two dozen processes
@pytest.mark.timeout(900)
def test_a_rehearsal_measures_everything(tmp_path, capsys):
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.svg"
    arguments = "--device cpu --models linear --data synthetic --repeats 2"
    assert command.main(["bench", "gpu", *arguments.split(), "--json", str(figures), "--picture", str(picture)]) == 0
    written = json.loads(figures.read_text())
    rows = written["rows"]
    for row in rows:
        assert "error" not in row, row
        assert row["n"] == len(row["values"])
        assert min(row["values"]) > 0
    names = {(row["part"], row["what"]) for row in rows if "what" in row}
    wanted = {"one device": gpu.SPEED, "precision": gpu.PRECISION}
    assert names == {(part, name) for part, contenders in wanted.items() for name in contenders}
    speeds = {row["what"]: row for row in rows if row["part"] == "one device"}
    assert speeds["fit"]["to_fit"] == 1.0
    assert speeds["Loop(jit_compile=True)"]["xla"] == "loop"
    scaling = [(row["on"], row["scaling"], row["replicas"]) for row in rows if row["part"] == "scaling"]
    assert ("CPU as logical GPUs", "strong", 4) in scaling
    assert ("CPU as GPUs", "weak", 2) in scaling
    equal = [row for row in rows if row["part"] == "equivalence"]
    assert [(row["replicas"], row["tf32"]) for row in equal] == [(n, tf32) for n in (2, 4, 2) for tf32 in (False, True)]
    assert all(row["within"] and row["copies_agree"] and row["n"] == 20 for row in equal)
    assert {row["implementation"] for row in rows if row["part"] == "all-reduce"} >= {"auto", "hierarchical"}
    assert "A rehearsal on virtual CPU devices" in capsys.readouterr().out
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
