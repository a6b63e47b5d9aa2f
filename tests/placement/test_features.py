"""Every feature of the equivalence table on GPUs that are not there: nothing without a kernel, nothing that waits.

`placement_table.py` makes the table of figures.md from all of them and from the examples; a slow test compares a third
with it.
"""

from __future__ import annotations

import pytest
from placement_subjects import FEATURES
from placement_table import BEGIN, END, EXAMPLES, PAGE, as_markdown, rows


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
