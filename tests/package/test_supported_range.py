"""The table of the supported range agrees with its page and with mirrorkit/supported.py; the wheel is whole."""

from __future__ import annotations

import supported_range
from supported_range import ENDS, PAGE, outcomes

from mirrorkit.supported import KERAS, PYTHON, TENSORFLOW, Version


def two(version: str) -> Version:
    """(2, 18) of "2.18.1"."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def test_the_page_shows_the_kept_results():
    table = supported_range.as_markdown(*supported_range.read_figures())
    assert f"{supported_range.BEGIN}\n\n{table}\n\n{supported_range.END}" in PAGE.read_text()


def test_the_kept_results_are_of_the_range_and_nothing_failed():
    results = {(result.end, result.run): result for result in supported_range.read_figures()[1]}
    assert {*results} == {(name, run) for name, end in ENDS.items() for run in end.runs}
    assert not [result for result in results.values() if result.exit_code or result.failed]
    for (end, run), result in results.items():
        found = {name: two(result.versions[name]) for name in ("python", "tensorflow", "keras")}
        assert found["python"] == ENDS[end].python
        if end == "oldest":
            assert (found["tensorflow"], found["keras"]) == (TENSORFLOW[0], KERAS[0])
        if end == "newest":
            assert (found["python"], found["tensorflow"], found["keras"]) == (PYTHON[1], TENSORFLOW[1], KERAS[1])
        if run == "suite":
            assert result.passed > 100
            assert result.command.startswith(f"pytest {' '.join(supported_range.SUITE)}")


def test_outcomes_are_counted_and_named(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        """<testsuites><testsuite>
        <testcase classname="tests.a" name="one"/><testcase classname="tests.a" name="two"/>
        <testcase classname="tests.a" name="three"><failure message="no">text</failure></testcase>
        <testcase classname="tests.b" name="four"><error message="no">text</error></testcase>
        <testcase classname="tests.b" name="five"><skipped message="needs root"/></testcase>
        </testsuite></testsuites>"""
    )
    assert outcomes(report) == (2, ["tests.a::three", "tests.b::four"], {"needs root": 1})
