"""The tools of the tests: the result of a release run, and mutations."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import release_result
from mechanisms import MECHANISMS, Mechanism
from mutations import ROOT, first_red, places, stages
from release_result import CannotTellError, complaint

# --- the slow tests ran whole not too long ago, and passed: what tests/release.sh wrote. Those of `.ci/run` exist


def test_the_last_run_passed_and_is_not_too_old() -> None:
    try:
        found = complaint(ROOT)
    except CannotTellError as error:
        pytest.skip(str(error))
    assert not found, found


def test_the_slow_tests_of_every_change_exist() -> None:
    named = re.findall(r"(tests/\S+\.py)::(\w+)", (ROOT / ".ci/run").read_text())
    assert len(named) == 4
    for file, name in named:
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file} has no {name}"


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A repository of one commit in `tmp_path`, in which a result may be three commits old."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    monkeypatch.setattr(release_result, "COMMITS", 3)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=one", "-c", "user.email=one@example.org", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    commit(git)
    (tmp_path / "tests").mkdir()
    return git


def commit(git: Callable[..., str], number: int = 1) -> str:
    for _ in range(number):
        git("commit", "--allow-empty", "-m", "more")
    return git("rev-parse", "HEAD")


def put(folder: Path, of: str, exit_code: int = 0) -> None:
    """Write the result of a run of two parts."""
    parts = [{"name": "slow tests", "exit_code": exit_code}, {"name": "soak", "exit_code": 0}]
    (folder / release_result.FILE).write_text(json.dumps(release_result.result(of, parts)))


def test_how_old_it_may_be(git: Callable[..., str], tmp_path: Path) -> None:
    put(tmp_path, commit(git))
    git("add", ".")
    commit(git, 3)
    assert complaint(tmp_path) == ""
    commit(git)
    assert re.search(r"ran 4 commits ago, .* at most 3 are allowed. Run `bash tests/release.sh`", complaint(tmp_path))
    put(tmp_path, commit(git))
    assert complaint(tmp_path) == ""


def test_a_failure_and_a_file_that_is_gone(git: Callable[..., str], tmp_path: Path) -> None:
    with pytest.raises(CannotTellError, match=r"There is no .* yet"):
        complaint(tmp_path)
    put(tmp_path, commit(git), exit_code=1)
    assert re.search("failed on .*, in: slow tests. Repair", complaint(tmp_path))
    git("add", ".")
    commit(git)
    (tmp_path / release_result.FILE).unlink()
    assert "is gone" in complaint(tmp_path)


def test_a_commit_of_another_history(git: Callable[..., str], tmp_path: Path) -> None:
    """It counts from the commit that brought the file."""
    put(tmp_path, "0" * 40)
    assert "is not in this history" in complaint(tmp_path)
    git("add", ".")
    commit(git, 4)
    assert complaint(tmp_path) == ""
    commit(git)
    assert "ran 4 commits ago" in complaint(tmp_path)


def test_what_is_kept_of_a_run(tmp_path: Path) -> None:
    outcomes = "<testcase/><testcase><failure/></testcase><testcase><skipped message='no Ray'/></testcase>"
    (tmp_path / "slow tests.xml").write_text(f"<testsuite>{outcomes}</testsuite>")
    (tmp_path / "parts").write_text("slow tests\t1\t61\nsoak\t0\t7\n")
    parts = release_result.read_parts(tmp_path / "parts")
    assert parts == [
        {"name": "slow tests", "exit_code": 1, "seconds": 61, "passed": 1, "failed": 1, "skipped": 1},
        {"name": "soak", "exit_code": 0, "seconds": 7},
    ]
    found = release_result.result("abc", parts)
    assert not found["passed"]
    assert release_result.result("abc", parts[1:])["passed"]
    assert {*found["versions"]} == {"python", "tensorflow", "keras"}
    assert found["machine"]["cores"] > 0


# --- what tests/mutations.py would change; the command itself takes an hour


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

    def running() -> list[Path]:
        return [path for path in Path("/proc").glob("[0-9]*/cwd") if path.exists() and path.resolve() == tmp_path]

    end = time.monotonic() + 30  # a process that was killed exits when it gets the processor
    while running() and time.monotonic() < end:
        time.sleep(0.05)
    assert not running()
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
