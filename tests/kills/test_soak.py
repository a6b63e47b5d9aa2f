"""The soak: what it strikes, and its table; its judge: test_kills.py."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import soak_table
import strikes
from strikes import Strike

sys.path.append(str(Path(__file__).parents[1] / "multiworker"))

from changing_training import BATCH, problems


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
