"""Each script of examples/by_feature is run, and prints what examples/README.md says, with about the same numbers."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from test_examples import NUMBER, ROOT, run, told

FOLDER = ROOT / "examples" / "by_feature"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
FAST = ("tf_data",)
# They lay out the CPU, enable reproducible mode, connect to a cluster, or take all devices that there are.
OWN_PROCESS = ("parameter_server", "resume", "tf_config", "tf_distribute_strategy", "tpu")


def is_close(found: str, wanted: str) -> bool:
    """Whether a number is that of README within a fifth; one that is tiny there has to be tiny."""
    number, other = (float(text.replace(",", "")) for text in (found, wanted))
    if "e-" in wanted or "e+" in wanted:
        return abs(number) < max(1e-5, 10 * other)
    return number == pytest.approx(other, rel=0.2, abs=0.05)


def is_told(expected: str, output: str) -> bool:
    """Whether the output has these words, whatever the spaces between them, with these numbers."""
    expected, output = (re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text) for text in (expected, output))
    words = [
        "".join(rf"\s*{re.escape(letter)}" for letter in "".join(part.split())) for part in re.split(NUMBER, expected)
    ]
    numbers = re.findall(NUMBER, expected)
    found = re.finditer(rf"\s*({NUMBER})".join(words), output)
    return any(all(map(is_close, match.groups(), numbers)) for match in found)


def test_another_number_is_not_what_readme_says() -> None:
    told = "2 replicas on CPU:0 CPU:1: 1e-07 from NumPy's, loss 0.5"
    assert is_told(told, told.replace("1e-07", "3e-08").replace("0.5", "0.47"))
    for other in ("1e-04", "0.001", "2"):
        assert not is_told(told, told.replace("1e-07", other))
    assert not is_told(told, told.replace("0.5", "0.8"))
    assert not is_told(told, told.replace("CPU:1", "CPU:2"))
    assert not is_told("the same: True", "the same: False")


def test_every_script_is_short_and_explained() -> None:
    for name in NAMES:
        source = (FOLDER / f"{name}.py").read_text()
        assert len(source.splitlines()) < 60
        assert f"Run: python examples/by_feature/{name}.py\nPrints " in source
        assert "argparse" not in source


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in NAMES])
def test_a_feature_shows_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if name in OWN_PROCESS:
        output = run(f"by_feature/{name}.py", folder=tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        output = capfd.readouterr().out
    for expected in told()[name]:
        assert is_told(expected, output), f"README says {expected!r}; {name} printed\n{output}"
    assert not list(tmp_path.iterdir()), "nothing is left behind"
