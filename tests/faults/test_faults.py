"""The quickest rows of the table of docs/faults.md, and the judge itself; `fault_table.py` does all of them.

Of the rows with a bad TF_CONFIG the first has a process of its own here, as all have in the table; all of them are told
to one more process, one after the other. What happens to running jobs is tested in tests/multiworker,
tests/train/parameter_server and tests/kills.
"""

from __future__ import annotations

from pathlib import Path

import fault_table
import judged
import numpy as np
import pytest
import start_faults


@pytest.mark.slow
@pytest.mark.parametrize("name", ["peer_never_starts", "port_taken", next(iter(start_faults.BAD_CONFIGS))])
def test_what_is_wrong_at_the_start_is_said_at_once(name):
    row = fault_table.happen(name)
    assert not row.problems
    assert row.seconds < 60  # TensorFlow would wait for ever
    assert row.seen.startswith("ClusterError: ")


@pytest.mark.slow
def test_every_bad_tf_config_is_refused_at_once_and_named(tmp_path):
    told = start_faults.answers(tmp_path)
    assert told.keys() == start_faults.BAD_CONFIGS.keys()
    for kind, (_, message) in start_faults.BAD_CONFIGS.items():
        said, seconds = told[kind]
        assert said.startswith("ClusterError: "), (kind, said)
        assert message in said
        assert seconds < 60


def test_there_are_ten_kinds_of_bad_tf_config():
    assert len(start_faults.BAD_CONFIGS) == 10
    assert len({config for config, _ in start_faults.BAD_CONFIGS.values()}) == 10


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
