"""What benchmarks are made of: the machine, processes, turns, layouts, reports and charts."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from harness import measure
from harness.chart import Chart
from harness.machine import about, in_a_line
from harness.measure import LEFT_OUT, Budget, Job, Measured, Turns, in_turns, measure_in_turns
from harness.processes import Group, Member
from harness.report import Column, Report, figures, span, table
from harness.topology import Topology
from matplotlib.axes import Axes

from mirrorkit.errors import ArgumentError, MirrorkitError

# --- what a figure is read with: the machine, versions, environment


def test_the_machine_is_known_with_what_sets_up_tensorflow(monkeypatch):
    others = {"TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL", "TF_CLI_CONFIG_FILE"}
    for name in ("TF_ENABLE_ONEDNN_OPTS", *others):
        monkeypatch.setenv(name, "1")
    found = about()
    assert found["environment"]["TF_ENABLE_ONEDNN_OPTS"] == "1"
    assert not others & set(found["environment"])
    assert "; TF_ENABLE_ONEDNN_OPTS=1" in in_a_line(found)


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["{here}/examples/a.py", "--net", "cnn"], "python examples/a.py --net cnn"),
        (["/elsewhere/a.py", "--title", "two words"], "python a.py --title 'two words'"),
        (["/env/site-packages/pytest/__main__.py", "-q"], "python -m pytest -q"),
    ],
)
def test_the_command_is_what_is_typed_without_the_machines_folders(argv, command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [part.format(here=tmp_path) for part in argv])
    assert about()["command"] == command


# --- the processes of a benchmark: their environments and cores, one that fails, and calls at the same time


@pytest.fixture(autouse=True)
def _subjects(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def test_members_have_environments_and_cores_of_their_own_and_work_together(tmp_path):
    own = sorted(os.sched_getaffinity(0))
    members = [Member({"number": i}, {"WHO": f"number {i}"}, core=i + 1) for i in range(2)]
    with Group("group_subjects:Number", *members, timeout=60) as group:
        assert group.call("who") == "number 0"
        assert group.call("number_and_cores") == (0, [own[1 % len(own)]])
        assert group.call("meet", folder=str(tmp_path)) == 0
    assert sorted(os.sched_getaffinity(0)) == own


def test_one_that_only_serves_is_not_called():
    members = [Member({"number": 0}), Member({"number": 1}, answers=False)]
    with Group("group_subjects:Number", *members, timeout=60) as group:
        assert group.call("who") is None


def test_one_that_fails_ends_the_wait_for_the_others():
    members = [Member({"number": 0}), Member({"number": 1})]
    with Group("group_subjects:Number", *members, timeout=120) as group:
        start = time.monotonic()
        with pytest.raises(MirrorkitError, match="number 1 fails"):
            group.call("fail_if_one_else_wait")
        assert time.monotonic() - start < 60


# --- measurements in turns and within a budget, on processes and a clock that are made up


class Machine:
    """A clock, and processes that take their time by it."""

    def __init__(self, monkeypatch, *, starts, epochs, fails=()):
        self.now, self.seen = 0.0, []
        self.starts, self.epochs, self.fails = starts, epochs, fails
        monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(measure, "Group", self.group)

    def group(self, target, *members, timeout):
        machine = self

        class Fake:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                machine.seen.append(f"end {target}")

            def call(self, method, **arguments):
                if target in machine.fails or (target, arguments.get("epochs")) in machine.fails:
                    raise MirrorkitError("no room")
                machine.now += machine.starts if method == "facts" else machine.epochs * arguments.get("epochs", 0)
                machine.seen.append((target, arguments.get("epochs", method)))
                return {"facts": {}, "evaluate": 0.5, "input_rates": [3.0, 4.0]}.get(method, 100.0)

        return Fake()


def jobs(names):
    return {name: Job(name, Topology("one_device", "cpu", 1)) for name in names}


def test_turns_are_about_two_seconds_long_and_alternate(monkeypatch):
    machine = Machine(monkeypatch, starts=10, epochs=0.5)
    found = measure_in_turns(jobs("ab"), budget=Budget(1000), seconds=500, repeats=2)
    assert machine.seen[:3] == [("a", "facts"), ("a", 1), ("a", 1)]
    assert machine.seen[6:10] == [("a", 4), ("b", 4), ("a", 4), ("b", 4)]
    assert machine.seen[10:] == ["end b", "end a"]
    assert found["a"] == Measured([100.0, 100.0])


def test_nothing_is_started_that_would_not_end_with_the_budget_and_turns_end_with_it(monkeypatch):
    machine = Machine(monkeypatch, starts=10, epochs=1)
    budget = Budget(25)  # the first takes 12 s to start, and so would the next, and 2 s each for the turns
    found = measure_in_turns(jobs("abc"), budget=budget, seconds=1000, repeats=1)
    assert [measured.error for measured in found.values()] == [None, LEFT_OUT, LEFT_OUT]
    assert budget.left > 0
    found = measure_in_turns(jobs("abc"), budget=Budget(30), seconds=1000, repeats=1)
    assert [measured.error for measured in found.values()] == [None, None, LEFT_OUT]
    budget = Budget(30)
    found = measure_in_turns(jobs("a"), budget=budget, seconds=1000, repeats=100)
    assert 1 < len(found["a"].speeds) < 10
    assert machine.now <= budget.end


def test_a_job_that_fails_is_an_error_and_the_others_go_on(monkeypatch):
    Machine(monkeypatch, starts=1, epochs=1, fails=("a", ("b", 3)))  # at its start, and in its first turn
    found = measure_in_turns(jobs("abc"), repeats=2, epochs=3, evaluate=True)
    assert [found[name].error for name in "abc"] == ["no room", "no room", None]
    assert [len(found[name].speeds) for name in "abc"] == [0, 0, 2]
    assert [found[name].accuracy for name in "abc"] == [None, None, 0.5]


def test_turns_alternate_and_one_that_fails_gets_no_more():
    seen = []

    def subject(name, fails_at=None):
        def call():
            seen.append(name)
            if seen.count(name) == fails_at:
                raise MirrorkitError("out of memory")
            return len(seen)

        return call

    turns = in_turns({"a": subject("a"), "b": subject("b", fails_at=2), "c": subject("c")}, 3)
    assert seen == ["a", "b", "c", "a", "b", "c", "a", "c"]
    assert turns == {"a": Turns([1, 4, 7]), "b": Turns([2], "out of memory"), "c": Turns([3, 6, 8])}


@pytest.mark.parametrize("repeats", [0, 1.5])
def test_no_whole_number_of_turns_is_refused(repeats):
    with pytest.raises(ArgumentError, match=rf"repeats .*{repeats}"):
        in_turns({"a": lambda: 1.0}, repeats)


# --- layouts: which replicas, and the processes that make them up


def test_a_layout_with_a_parameter_server_is_called_in_its_chief_alone():
    members = Topology("parameter_server", "workers", 2).members()
    tasks = [json.loads(member.environment["TF_CONFIG"])["task"]["type"] for member in members]
    assert [member.answers for member in members] == [True, False, False, False]
    assert tasks[0] == "chief"
    assert sorted(tasks[1:]) == ["ps", "worker", "worker"]
    assert {member.core for member, task in zip(members, tasks, strict=True) if task == "worker"} == {0, 1}


COLUMNS = (Column("name", "name"), Column("speed", "speed", ",.0f"), Column("share", "share", ".0%"))
ROWS = [{"name": "first", "speed": 12345.6, "values": [1.0, 2.0]}, {"name": "b", "error": "broken\nmore"}]


def test_a_table_aligns_words_left_and_figures_right_and_leaves_out_what_is_not_known():
    assert table(COLUMNS, ROWS).splitlines() == [
        "name    speed  share",
        "first  12,346",
        "b  broken",
    ]


def test_figures_are_median_best_and_spread():
    found = figures([10.0, 30.0, 20.0])
    assert found == {"values": [10.0, 30.0, 20.0], "n": 3, "median": 20.0, "best": 30.0, "spread": 1.0}
    assert figures([10.0, 30.0, 20.0], smaller_is_better=True) == found | {"best": 10.0}
    assert span(found) == (10.0, 30.0)
    assert figures([], "broken") == {"error": "broken"}
    assert span({"error": "broken"}) is None


def test_a_report_prints_everything_and_its_json_holds_every_measurement(tmp_path):
    report = Report("kind", "What was measured", COLUMNS, ROWS, Chart("t", [], {}), ["Mind this."], about())
    lines = str(report).splitlines()
    assert lines[0] == "What was measured"
    assert lines[1] == in_a_line(report.about)
    assert lines[-1] == "Mind this."
    written = json.loads(report.save_json(tmp_path / "figures.json").read_text())
    assert set(written) == {"benchmark", "title", "about", "rows", "notes"}
    assert written["rows"] == ROWS


# --- charts: what stands where on the axes, and the files


def drawn(chart: Chart) -> Axes:
    (axis,) = chart.figure().axes
    return axis


def test_bars_are_as_long_as_their_values_and_ranges_cross_them():
    series = {"s": [10.0, 5.0], "u": [1.0, 2.0]}
    axis = drawn(Chart("t", ["a", "b"], series, {"s": [(8.0, 10.0), None]}, bars=True))
    bars = [(round(bar.get_y(), 6), round(bar.get_height(), 6), bar.get_width()) for bar in axis.patches]
    assert bars == [(-0.4, 0.4, 10), (0.6, 0.4, 5), (0.0, 0.4, 1), (1.0, 0.4, 2)], "side by side, around their place"
    ((span,),) = (lines.get_segments() for lines in axis.collections)
    assert span.tolist() == [[8, pytest.approx(-0.2)], [10, pytest.approx(-0.2)]]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["a", "b"]
    assert axis.get_ylim()[0] > axis.get_ylim()[1], "the first one is at the top"


def test_the_same_chart_is_the_same_svg_with_a_description_and_without_a_heading(tmp_path):
    chart = Chart("Above", ["1"], {"s": [1.0]}, bars=True)
    first, second = (chart.save(tmp_path / name, heading=False, description="why") for name in ("a.svg", "b.svg"))
    assert first.read_bytes() == second.read_bytes()
    root = ElementTree.parse(first).getroot()
    assert root.findtext(".//{http://purl.org/dc/elements/1.1/}description") == "why"
    assert "Above" not in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert b">Above<" in chart.save(tmp_path / "c.svg").read_bytes().split(b"</metadata>")[1]
