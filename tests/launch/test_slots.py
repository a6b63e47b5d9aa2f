from __future__ import annotations

from pathlib import Path

import pytest

from mirrorkit.errors import JobError
from mirrorkit.launch import slots


@pytest.mark.parametrize("text", ["", "two", "-1", "1.5", "9" * 5000])
def test_what_is_no_number_of_workers(text: str, tmp_path: Path) -> None:
    file = tmp_path / "slots"
    file.write_text(text and f"4\n{text}")
    with pytest.raises(JobError, match="last line") as caught:
        slots.count(str(file))
    assert len(str(caught.value)) < 300
