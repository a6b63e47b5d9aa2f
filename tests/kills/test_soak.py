"""The soak: what it strikes, how it judges, and a short one."""

from __future__ import annotations

import itertools
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import jobs
import numpy as np
import pytest
import soak
import soak_table
import strikes
from strikes import KILL, STEP, Strike

sys.path.append(str(Path(__file__).parents[1] / "multiworker"))

from changing_training import BATCH, problems

# --- the soak's plan, its judge and its table; a pretended training stands in for the real one


PRETENDED = Path(__file__).with_name("pretended_training.py")


@pytest.mark.parametrize(("part", "kills"), [("process", 100), ("workers", 20), ("ps", 20), ("launcher", 20)])
def test_the_plan_has_all_kills_and_nothing_that_ran_on_is_struck_during_its_start(part: str, kills: int) -> None:
    plan = strikes.planned(part, 0)
    main = max({strike.on for strike in plan}, key=[strike.on for strike in plan].count)
    assert sum(strike.kills and strike.on == main for strike in plan) == kills
    assert {strike: plan.count(strike) for strike in plan} == strikes.MIX[part]
    assert {strikes.KILL, strikes.TERM, strikes.STOP_KILL, strikes.STOP_GO, strikes.FULL} <= {s.deed for s in plan}
    assert plan == strikes.planned(part, 0) != strikes.planned(part, 1)
    followers = [after for one, after in itertools.pairwise(plan) if strikes.ended_by(part, one) == "nothing"]
    assert followers
    assert strikes.START not in {after.moment for after in followers}
    assert strikes.ended_by(part, plan[-1]) != "nothing"
    assert set(strikes.planned(part, 0, quick=True)) == strikes.MIX[part].keys()


def pretended(folder: Path, wrong: str) -> tuple[list[str], soak.Soak]:
    """Kill a pretended training twice; return what was wrong in all."""
    training = folder / f"{wrong}.py"
    shutil.copy(PRETENDED, training)
    (folder / "run").mkdir()
    one = soak.Soak("process", [Strike("the process", KILL, STEP)] * 2, 6, folder / "run", 0, training, patience=0.3)
    problems = one.run()
    return [problem for struck in one.done for problem in (*struck.left, *struck.problems)] + problems, one


def test_a_training_that_is_right_passes(tmp_path: Path) -> None:
    problems, one = pretended(tmp_path, "right")
    assert not problems
    assert [struck.starts for struck in one.done] == [1, 1]
    assert one.done[1].began == one.done[0].newest > 0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("changes a bit", "bits differ in: total"),
        pytest.param("leaves a child", "sleep 30", marks=pytest.mark.slow),
        pytest.param("leaves a file", "['forgotten", marks=pytest.mark.slow),
        pytest.param("forgets a checkpoint", "it went on from step 0", marks=pytest.mark.slow),
    ],
)
def test_one_that_does_wrong_is_found(tmp_path: Path, wrong: str, named: str) -> None:
    problems, _ = pretended(tmp_path, wrong)
    assert any(named in problem for problem in problems), problems
    assert not jobs.processes(tmp_path)


def test_a_process_and_a_port_that_are_left_are_seen(tmp_path: Path) -> None:
    script = "import signal; signal.pause()"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path) as process,
    ):
        try:
            port = server.getsockname()[1]
            left = strikes.left_by(tmp_path, lambda pid, seen: True, [port], 0)
            assert [line.partition(":")[0] for line in left] == [f"process {process.pid}", f"port {port}"]
        finally:
            process.kill()
    assert strikes.left_by(tmp_path, lambda pid, seen: True, [port], 0) == []


def test_a_part_replaces_its_lines_and_what_is_wrong_is_bold(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    struck, ends = soak_table.read(soak_table.LINES)
    for end in ends:
        soak_table.keep(file, [one for one in struck if one.part == end.part], end)
        soak_table.keep(file, [one for one in struck if one.part == end.part], end)
    assert soak_table.read(file) == (struck, ends)
    assert "**no" not in soak_table.as_markdown(struck, ends)
    struck[0].problems.append("a torn | checkpoint")
    ends[-1].problems.append("other bits")
    text = soak_table.as_markdown(struck, ends)
    assert r"| **no: a torn \| checkpoint** |" in text
    assert "| **no: other bits** |" in text


def test_the_page_shows_the_lines() -> None:
    struck, ends = soak_table.read(soak_table.LINES)
    assert [end.part for end in ends] == list(strikes.MIX)
    page = (soak_table.ROOT / "docs" / "soak.md").read_text()
    shown = page.partition(soak_table.BEGIN)[2].partition(soak_table.FINISH)[0].strip()
    assert shown == soak_table.as_markdown(struck, ends)
    for part, mix in strikes.MIX.items():
        counts = dict.fromkeys(mix, 0)
        for one in struck:
            if one.part == part:
                counts[Strike(one.on, one.deed, one.moment)] += 1
        assert counts == mix


# --- the judge of trainings whose number of workers changes (tests/multiworker/test_changing_workers.py)


def _result(weight: float, *, seen: float = 8) -> dict[str, np.ndarray]:
    return {"weights": np.full(2, weight), "count.seen": np.full(3, seen / BATCH)}


@pytest.mark.parametrize(
    ("weight", "seen", "wrong"),
    [
        (1.0 + 2e-6, 8, ""),
        (1.0 + 4e-6, 8, "4.00e-06 from one worker, where fixed numbers of workers differ by 1.00e-06"),
        (float("nan"), 8, "nan from one worker"),
        (1.0, 5, "examples were counted 5.00 to 5.00 times in 8 epochs"),
    ],
)
def test_what_is_wrong_with_an_end(weight: float, seen: float, wrong: str) -> None:
    fixed = [_result(1.0), _result(1.0 + 1e-6), _result(1.0 - 5e-7)]
    found = "; ".join(problems(_result(weight, seen=seen), fixed, 8))
    assert wrong in found
    assert bool(found) == bool(wrong)
