"""The conftest of these tests is a guard itself: here it is seen to catch what it should."""

from __future__ import annotations

from pathlib import Path

import pytest

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
