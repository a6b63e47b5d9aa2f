"""Fresh processes, local strategies, and the harness."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from mirrorkit import testing
from mirrorkit.errors import ArgumentError, DeviceError, MirrorkitError, StrategyError
from mirrorkit.testing import run_in_fresh_process


def test_code_runs_and_its_output_comes_back():
    result = run_in_fresh_process(
        """
        import json, sys
        print("first")
        print("aside", file=sys.stderr)
        print(json.dumps({"answer": 42, "main": __name__}))
        """
    )
    assert result.returncode == 0
    assert result.stdout.startswith("first\n")
    assert result.stderr == "aside\n"
    assert result.json() == {"answer": 42, "main": "__main__"}


def test_a_file_runs_with_the_environment_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("MIRRORKIT_TEST_GONE", "1")
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os; print(json.dumps([os.environ.get('MIRRORKIT_TEST_' + n) for n in ('NEW', 'GONE')]))"
    )
    result = run_in_fresh_process(script, env={"MIRRORKIT_TEST_NEW": "x", "MIRRORKIT_TEST_GONE": None})
    assert result.json() == ["x", None]


def test_a_failure_shows_the_end_of_the_output():
    with pytest.raises(MirrorkitError, match=r"code 3(.|\n)*printed before(.|\n)*reason"):
        run_in_fresh_process("import sys; print('printed before'); sys.stderr.write('reason on stderr'); sys.exit(3)")
    assert run_in_fresh_process("raise SystemExit(3)", check=False).returncode == 3


def test_json_of_a_silent_process_says_so():
    with pytest.raises(MirrorkitError, match="printed nothing"):
        run_in_fresh_process("pass").json()


SPAWN = """
import pathlib, subprocess, sys, tempfile, time
tempfile.mkstemp()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({file!r}).write_text(str(child.pid))
time.sleep({then})
"""


@pytest.mark.parametrize("then", [0, 600], ids=["it ends by itself", "it runs out of time"])
def test_nothing_is_left_behind(tmp_path, monkeypatch, then):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = SPAWN.format(file=str(tmp_path / "pid"), then=then)
    if then:
        with pytest.raises(MirrorkitError, match="3 s"):
            run_in_fresh_process(code, timeout=3)
    else:
        run_in_fresh_process(code)
    assert _ends(int((tmp_path / "pid").read_text()))
    assert [path.name for path in tmp_path.iterdir()] == ["pid"]


def _ends(pid: int) -> bool:
    """Whether the process is gone, or a zombie that its adoptive parent has yet to collect, within five seconds."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").exists() and ") Z " in Path(f"/proc/{pid}/stat").read_text():
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False


@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
def test_virtual_replicas_takes_the_first_devices(kind):
    strategy = testing.virtual_replicas(3, kind=kind)
    assert [name[-5:] for name in strategy.extended.worker_devices] == ["CPU:0", "CPU:1", "CPU:2"]


def test_more_than_there_are_after_the_start():
    with pytest.raises(DeviceError, match="already started with 4"):
        testing.virtual_replicas(5)


def test_a_kind_that_cannot_have_replicas():
    with pytest.raises(StrategyError, match="2 devices"):
        testing.virtual_replicas(2, kind="one_device")


# --- the conftest of these tests is a guard itself: here it is seen to catch what it should


LEAKY = """
import os, subprocess, threading, time

def test_clean(monkeypatch):
    monkeypatch.setenv("MIRRORKIT_LEAK", "1")
    subprocess.run(["true"])
    thread = threading.Thread(target=time.sleep, args=(0.2,))
    thread.start()

def test_environment():
    os.environ["MIRRORKIT_LEAK"] = "1"

def test_child():
    subprocess.Popen(["sleep", "60"])

def test_thread():
    threading.Thread(target=time.sleep, args=(6,)).start()
"""


@pytest.mark.slow
def test_a_test_that_leaks_fails(run_python, tmp_path):
    for name in ("conftest.py", "device_choice.py"):
        (tmp_path / name).write_text((Path(__file__).parents[1] / name).read_text())
    (tmp_path / "test_leaky.py").write_text(LEAKY)
    result = run_python(
        f"import sys, pytest; sys.exit(pytest.main(['-p', 'no:cacheprovider', {str(tmp_path)!r}]))", check=False
    )
    assert "4 passed, 3 errors" in result.stdout
    for name in ("environment", "child", "thread"):
        assert f"ERROR at teardown of test_{name}" in result.stdout
    assert "['MIRRORKIT_LEAK']" in result.stdout
    assert "sleep 60" in result.stdout


@pytest.mark.parametrize(("numbers", "name"), [({"workers": 0}, "workers"), ({"workers": 2, "ps": -1}, "ps")])
def test_a_local_cluster_of_less_than_nothing_is_refused(numbers, name, monkeypatch):
    monkeypatch.setattr(testing.local, "start_server", lambda *_, **__: None)
    with pytest.raises(ArgumentError, match=f"^{name} must be a whole number from"):
        testing.local_cluster(**numbers)
