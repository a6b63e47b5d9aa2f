"""Two workers draw no random number twice, and what layers assign in predict is one state."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from launching import launched

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "train"))
from drawing import X, assert_distinct  # noqa: E402

pytestmark = pytest.mark.slow


def test_two_workers_draw_other_numbers(tmp_path):
    launched(HERE / "drawing_worker.py", tmp_path, folder=tmp_path)
    first, second = (json.loads((tmp_path / f"found{i}.json").read_text()) for i in (0, 1))
    assert first == second
    for found in first["draws"].values():
        assert_distinct({name: np.array(values) for name, values in found.items()})
    mean = 0.0
    for batch in 2 * np.split(X[:9], [4, 8]):
        mean = 0.5 * mean + 0.5 * float(batch.mean())
    assert first["state"] == pytest.approx([mean, 6], rel=1e-5)
