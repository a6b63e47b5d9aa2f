"""All workers stop by name where a weight becomes NaN behind a finite loss, and none waits for another."""

from __future__ import annotations

import json
from pathlib import Path

import hidden_nan
import numpy as np
import pytest
from launching import launched

pytestmark = pytest.mark.slow


def test_two_workers(tmp_path: Path) -> None:
    launched(Path(hidden_nan.__file__), tmp_path, folder=tmp_path)
    found = [json.loads((tmp_path / f"found{worker}.json").read_text()) for worker in (0, 1)]
    for worker in (0, 1):
        variable, message = found[worker]["data"]
        assert variable.endswith("first/kernel")
        assert "in one of the training steps 6 to 7" in message
    assert found[0]["one worker"][1].startswith("A variable of another worker, whose error names it, became NaN")
    assert found[1]["one worker"][0].endswith("first/kernel")
    files = sorted(tmp_path.glob("*/*.npz"))
    assert [file.stem for file in files] == ["step-0000000002", "step-0000000004", "step-0000000006"]
    for file in files:
        assert all(np.isfinite(value).all() for value in np.load(file).values() if value.dtype.kind == "f")
