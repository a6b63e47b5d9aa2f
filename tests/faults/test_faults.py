"""Rows of the table of docs/faults.md, and the judge itself; `fault_table.py` does all of them.

tests/kills strikes workers whom the launcher starts again, tests/multiworker has workers that are lost without one, and
tests/train/parameter_server has the faults of parameter servers.
"""

from __future__ import annotations

from pathlib import Path

import fault_table
import faults
import judged
import numpy as np
import pytest
import start_faults


@pytest.mark.slow
def test_what_is_wrong_at_the_start_is_said_at_once(tmp_path):
    """To one process, one after the other."""
    assert len({config for config, _ in start_faults.BAD_CONFIGS.values()}) == 10
    with start_faults.taken_port() as taken:
        cases = {**start_faults.BAD_CONFIGS, "a missing peer": start_faults.missing_peer(), "a taken port": taken}
        told = start_faults.told(tmp_path, {kind: config for kind, (config, _) in cases.items()})
    for kind, (_, message) in cases.items():
        said, seconds = told[kind]
        assert start_faults.is_refusal(said, message), (kind, said)
        assert seconds < 60, kind  # TensorFlow would wait for ever


@pytest.mark.slow
def test_a_chief_that_is_killed_is_named_and_the_next_start_ends_with_the_same_bits(monkeypatch):
    monkeypatch.setattr(faults, "AT_MOST", 90.0)  # on a machine that has other things to do
    assert not fault_table.happen("chief_killed_without_launcher").problems


def test_other_bits_or_no_end_at_all_are_not_right(tmp_path, monkeypatch):
    for worker in range(2):
        np.savez(tmp_path / f"end{worker}.npz", np.array([0.0, 1.0]))
    expected = judged.end_of(tmp_path, 0)
    monkeypatch.setattr(judged, "undisturbed", lambda: expected)
    assert judged.changed(tmp_path) == []
    np.savez(tmp_path / "end1.npz", np.array([-0.0, 1.0]))
    assert judged.changed(tmp_path) == ["other bits in worker 1"]
    (tmp_path / "end0.npz").unlink()
    assert judged.changed(tmp_path) == ["other bits in worker 0", "other bits in worker 1"]


def test_a_fault_that_does_not_come_out_right_is_bold_and_the_exit_code_is_1(monkeypatch, capsys, tmp_path):
    def seen(folder: Path) -> judged.Row:
        return judged.Row("a fault", f"error in {folder} | {'x ' * 100}", 1.23, [])

    def raises(folder: Path) -> judged.Row:
        raise TimeoutError("nothing came")

    monkeypatch.setattr(fault_table, "FAULTS", {"seen": seen})
    monkeypatch.setattr("sys.argv", ["fault_table.py"])
    assert fault_table.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(r"| a fault | `error in FOLDER \| x x")
    assert lines[-1].endswith(" ...` | 1.2 s | yes |")
    monkeypatch.setattr(fault_table, "FAULTS", {"seen": seen, "raises": raises})
    assert fault_table.main() == 1
    assert "| **no: TimeoutError: nothing came** |" in capsys.readouterr().out


def test_the_table_goes_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{fault_table.BEGIN}\n\nold\n\n{fault_table.END}\nafter\n")
    fault_table.put_between(page, "new")
    assert page.read_text() == f"before\n{fault_table.BEGIN}\n\nnew\n\n{fault_table.END}\nafter\n"
    page.write_text("| fault | seen |\n| a fault | old |\n| a fault more | old |\n")
    fault_table.renew(page, [r"| a fault | `new \\| \\1` |"])
    assert page.read_text() == "| fault | seen |\n" + r"| a fault | `new \\| \\1` |" + "\n| a fault more | old |\n"
    with pytest.raises(SystemExit):
        fault_table.renew(page, ["| another fault | new |"])
    page.write_text("nothing")
    with pytest.raises(SystemExit):
        fault_table.put_between(page, "new")
