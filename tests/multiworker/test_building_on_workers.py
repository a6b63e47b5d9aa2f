"""Two workers build a model from their first data as two replicas of one process do, and refuse the same shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import building_worker
import numpy as np
import pytest
from launching import launched

pytestmark = pytest.mark.slow  # two workers


def test_two_workers_do_what_two_replicas_do(tmp_path: Path, strategy_of: Any) -> None:
    launched(Path(__file__).parent / "building_worker.py", tmp_path, folder=tmp_path)
    zero, one = (json.loads((tmp_path / f"found{i}.json").read_text()) for i in (0, 1))
    assert zero == one
    assert "does not take targets [N] for outputs [N, 10]" in zero["error"]
    expected = building_worker.trained(strategy_of("mirrored", 2))
    assert zero["error"] == expected["error"]
    assert zero["history"].keys() == expected["history"].keys()
    for name, values in zero["history"].items():
        np.testing.assert_allclose(values, expected["history"][name], rtol=1e-5, err_msg=name)
    for found, weight in zip(zero["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(found, weight, atol=1e-6)
