"""Jobs on the simulated nodes of a Ray cluster, with scripts of plain Python."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import assert_gone
from ray_nodes import RayNodes

from mirrorkit.errors import ClusterError, JobError
from mirrorkit.launch import launch

pytestmark = pytest.mark.timeout(200)
SAYS = """
import json, os, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task, workers = config["task"]["index"], config["cluster"]["worker"]
"""
STAYS = "print('pids', os.getpid(), os.getppid())\nfor _ in range(3000): time.sleep(0.1)\n"


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    nodes = RayNodes(2)
    yield nodes
    nodes.close()


@pytest.fixture
def on_ray(nodes: RayNodes, started: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Start a job on two nodes."""
    nodes.set(2)
    for name, value in nodes.environment.items():
        monkeypatch.setenv(name, value)
    return lambda *arguments, **options: started("--on", "ray", *arguments, **options)


def lines_with(pattern: str, text: str) -> list[str]:
    return [line for line in text.splitlines() if re.search(pattern, line)]


def next_line(process: subprocess.Popen, pattern: str) -> re.Match:
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(pattern, line):
            return match
    raise AssertionError(process.stderr and process.stderr.read())


@pytest.mark.slow
def test_lines_environment_and_exit_code_are_those_of_the_workers(on_ray: Any, script: Any, tmp_path: Path) -> None:
    says = "print(task, len(set(workers)), os.getcwd(), sys.argv[1:], *map(os.environ.get, sys.argv[1:]))\n"
    says += "print('an error', file=sys.stderr)\nopen(f'said-{task}', 'w').close()\n"
    says += "while not os.path.exists('said-0'): time.sleep(0.05)\nsys.exit(5 * task)"
    variables = ("CUDA_VISIBLE_DEVICES", "TF_NUM_INTRAOP_THREADS")
    process = on_ray("--workers", 2, script(SAYS + says), *variables)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 5
    told = f"2 {tmp_path} {list(variables)} -1 1"
    assert sorted(out.splitlines()) == [f"worker 0 | 0 {told}", f"worker 1 | 1 {told}"]
    assert sorted(lines_with("^worker", err)) == ["worker 0 | an error", "worker 1 | an error"]
    assert lines_with("^launch", err)[-1].startswith("launch | worker 1 ended with exit code 5")


@pytest.mark.slow
def test_a_lost_node_and_a_node_that_comes(on_ray: Any, nodes: RayNodes, script: Any) -> None:
    code = (
        "print('width', len(workers))\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "if 'JOURNAL' not in os.environ: assert os.environ['MIRRORKIT_JOURNAL']\n"
        "while not os.path.exists('done'): time.sleep(0.1)\n"
    )
    process = on_ray("--workers", "1:2", script(SAYS + code))
    next_line(process, "width 2")
    nodes.set(1)
    next_line(process, "width 1")
    nodes.set(2)
    next_line(process, "width 2")
    script("").with_name("done").touch()
    _, err = process.communicate(timeout=100)
    assert process.returncode == 0
    assert lines_with("its node is lost", err)
    assert lines_with("which is not a failure: on with what is left", err)
    assert lines_with("there is now room for 2 workers: ending the 1 that run", err)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_nothing_outlives_the_launcher(how: str, on_ray: Any, script: Any) -> None:
    process = on_ray("--workers", 2, script(SAYS + STAYS))
    pids = [pid for _ in range(2) for pid in next_line(process, r"pids (\d+) (\d+)").groups()]
    process.send_signal(signal.Signals[how])
    process.communicate(timeout=100)
    assert process.returncode == {"SIGINT": 130, "SIGKILL": -9}[how]
    assert_gone([*map(int, pids)])


@pytest.mark.slow
def test_an_actor_that_does_not_answer_is_killed_too(on_ray: Any, script: Any) -> None:
    process = on_ray("--workers", 1, "--grace", 1, script(SAYS + STAYS))
    pid, keeper = next_line(process, r"pids (\d+) (\d+)").groups()
    actor = Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(actor), signal.SIGSTOP)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 137
    assert_gone([int(pid), int(actor)])


@pytest.mark.slow
def test_a_function(on_ray: Any, nodes: RayNodes, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def seven(): return 7\n")
    (tmp_path / "script.py").write_text(
        "import functools, os, sys, threading, beside, mirrorkit as mk\n"
        "def times(factor):\n"
        "    if factor < 0: raise ValueError('a factor below 0')\n"
        "    import json; return factor * len(json.loads(os.environ['TF_CONFIG'])['cluster']['worker'])\n"
        "print('returned', mk.launch.on_ray(functools.partial(times, 21), workers=(1, 2)))\n"
        "print('returned', mk.launch.on_ray(beside.seven, workers=1))\n"
        "lock = threading.Lock()\n"
        "for function in (functools.partial(times, -1), lambda: sys.exit(0), lambda: lock):\n"
        "    try: mk.launch.on_ray(function, workers=1)\n"
        "    except mk.errors.MirrorkitError as error: print('refused', error)\n"
    )
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, cwd=tmp_path.parent, capture_output=True, text=True, timeout=280)
    assert lines_with("^returned", done.stdout) == ["returned 42", "returned 7"], done.stderr
    failed, left, unsent = lines_with("^refused", done.stdout)
    assert failed == "refused The job on Ray ended with exit code 1: the lines of its workers say why."
    assert "ValueError: a factor below 0" in done.stderr
    assert left == "refused The function did not return on worker 0: it ended its process with exit code 0."
    assert "cannot be sent to the workers: TypeError: cannot pickle '_thread.lock' object" in unsent


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"on": "spark"}, "on='spark'"),
        ({"on": "ray", "ps": 1}, "leave out ps, chief, slots and dev"),
        ({"on": "ray", "chief": True}, "leave out ps, chief, slots and dev"),
        ({"on": "ray", "slots": "room", "workers": (1, 2)}, "leave out ps, chief, slots and dev"),
        ({"on": "ray", "devices_per_worker": "gpu:1"}, "leave out ps, chief, slots and dev"),
        ({"gpus_per_worker": 1}, "need on='ray'"),
        ({"spread": True}, "need on='ray'"),
        ({"on": "ray", "cpus_per_worker": 0}, "cpus_per_worker"),
        ({"on": "ray", "gpus_per_worker": 0.5}, "gpus_per_worker"),
    ],
    ids=str,
)
def test_what_is_refused(options: dict[str, Any], error: str, script: Any) -> None:
    with pytest.raises(JobError, match=re.escape(error)):
        launch(script(""), **{"workers": 2, **options})


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("127.0.0.1:1", "no Ray cluster at '127.0.0.1:1'"),
        pytest.param("ray://127.0.0.1:1", "RAY_ADDRESS is 'ray://127.0.0.1:1'", marks=pytest.mark.slow),
    ],
)
def test_no_cluster(address: str, error: str, script: Any, started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    process = started("--on", "ray", "--workers", 1, script(""))
    assert error in process.communicate(timeout=60)[1]
    assert process.returncode != 0


def test_without_ray(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match="pip install ray"):
        launch(script(""), workers=2, on="ray")
