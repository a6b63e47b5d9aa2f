"""What tests/mutations.py would change; the command itself takes an hour."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from mechanisms import MECHANISMS, Mechanism
from mutations import ROOT, first_red, places, stages

SOURCE = '''
from __future__ import annotations
@dataclass(frozen=True)
class A:
    """1 + 1"""
    x: Literal[1] = 2

def f(a: Literal[3], b=True) -> Literal[4]:
    assert a == 5
    if not a or b is not None and a < 6:
        raise ValueError("é" * 7)
    return f"{a + 8}", zip(a, strict=True), ("é", 8 not in b), (
        a  # - 9
        - b
    )
if TYPE_CHECKING:
    n = 10
'''


def test_a_flip_is_one_operator_or_constant_that_runs() -> None:
    found = places(SOURCE, "a.py")
    assert {(place.line, place.old, place.new) for place in found} == {
        *((6, "2", "3"), (8, "True", "False"), (10, "not ", ""), (10, "or", "and"), (10, "and", "or")),
        *((10, "is not", "is"), (10, "<", "<="), (10, "6", "7"), (12, "8", "9"), (12, "not in", "in"), (14, "-", "+")),
    }
    for place in found:
        assert place.source[place.column :].startswith(place.old)
        changed = place.changed(SOURCE)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))
        assert sum(map(str.__ne__, changed.splitlines(), SOURCE.splitlines())) == 1


def test_a_flip_is_found_again_after_a_change_above_it() -> None:
    moved = places(SOURCE.replace("class A", "\n\nclass A"), "a.py")
    assert [old.is_at(new) for old, new in zip(places(SOURCE, "a.py"), moved, strict=True)] == [True] * 11


def test_the_tests_of_a_module_and_of_its_room() -> None:
    named, others, train = stages(ROOT, "mirrorkit/train/step/clock.py")
    assert named == ["tests/train/step/test_clock.py"]
    assert "tests/train/step/test_averages.py" in others
    assert "tests/train/test_as_keras.py" in train
    assert not {*named} & {*others}
    assert stages(ROOT, "mirrorkit/files.py")[0] == ["tests/test_files.py"]


@pytest.mark.slow  # pytest, twice
def test_what_is_red_is_named_and_what_it_leaves_is_ended(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(
        "import subprocess\ndef test_b():\n    subprocess.Popen(['sleep', '600'])\n    assert 1 == 2\n"
    )
    assert first_red(tmp_path, ["test_a.py"], 60) == "test_a.py::test_b"
    running = [path for path in Path("/proc").glob("[0-9]*/cwd") if path.exists() and path.resolve() == tmp_path]
    assert not running
    (tmp_path / "test_a.py").write_text("def test_b(): pass\n")
    assert first_red(tmp_path, ["test_a.py"], 60) == ""


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_a_mechanism_is_where_it_is_broken(mechanism: Mechanism) -> None:
    text = (ROOT / mechanism.file).read_text(encoding="utf-8")
    assert text.count(mechanism.old) == 1
    ast.parse(text.replace(mechanism.old, mechanism.new))
    tests = (ROOT / mechanism.test).read_text(encoding="utf-8")
    assert not re.search(r"^pytestmark = .*slow", tests, re.MULTILINE), "the fast tests do not run it"


def test_there_are_enough_mechanisms() -> None:
    assert len({mechanism.name for mechanism in MECHANISMS}) == len(MECHANISMS) >= 20
