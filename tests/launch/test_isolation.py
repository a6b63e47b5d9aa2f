"""A job in a network namespace: what its tasks reach, and who reaches them. Plain Python, as in test_launcher.py."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import mirrorkit as mk
from mirrorkit.errors import ClusterError
from mirrorkit.launch import isolation, launch, launcher

# Every task listens where TensorFlow's server would; worker 1 connects to worker 0, and both stay until they may leave.
LISTENS = """
import json, os, pathlib, socket, sys, time
config = json.loads(os.environ['TF_CONFIG'])
addresses, index = config['cluster']['worker'], config['task']['index']
server = socket.create_server(('', int(addresses[index].split(':')[1])))
def patiently(action):
    deadline = time.monotonic() + 30
    while True:
        try:
            return action()
        except OSError:
            if time.monotonic() > deadline: raise
            time.sleep(0.05)
if index:
    host, port = addresses[0].split(':')
    patiently(lambda: socket.create_connection((host, int(port)), timeout=5)).close()
    pathlib.Path('reached').write_text(json.dumps(addresses))
if len(addresses) > 1:
    patiently(pathlib.Path('reached').read_text)
patiently(pathlib.Path('leave').read_text)
print('user', os.getuid(), os.getgid(), sorted(name for _, name in socket.if_nameindex()))
"""


def refusal() -> str:
    """Why this kernel makes no namespaces; nothing where it does."""
    try:
        with isolation.namespaces(True):
            return ""
    except ClusterError as error:
        return str(error)


needs_namespaces = pytest.mark.skipif(bool(refusal()), reason=f"no network namespaces here: {refusal()}")


@pytest.fixture
def listens(tmp_path, monkeypatch):
    """A script that listens, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(LISTENS)
    return script


def tried_from_outside(folder: Path) -> list[str]:
    """In a thread: connect to the tasks once they listen, tell them to leave, and return what came of it."""
    found: list[str] = []

    def attempt() -> None:
        deadline = time.monotonic() + 40
        while not (folder / "reached").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.1)
        for address in json.loads((folder / "reached").read_text()):
            try:
                socket.create_connection(("127.0.0.1", int(address.split(":")[1])), timeout=5).close()
                found.append("reached")
            except OSError as error:
                found.append(type(error).__name__)
        (folder / "leave").touch()

    threading.Thread(target=attempt, daemon=True).start()
    return found


@needs_namespaces
@pytest.mark.parametrize("isolate", [True, False])
def test_tasks_reach_each_other_and_from_outside_nobody_reaches_them(listens, tmp_path, capsys, isolate):
    found = tried_from_outside(tmp_path)
    assert launch(listens, workers=2, isolate=isolate) == 0
    assert found == ["ConnectionRefusedError" if isolate else "reached"] * 2
    out, err = capsys.readouterr()
    assert out.count(f"user {os.getuid()} {os.getgid()} ") == 2
    assert out.count("['lo']") == (2 if isolate else 0) or len(socket.if_nameindex()) == 1
    assert ("listen at all interfaces" in err) == (not isolate and bool(launcher.outside_interfaces()))
    assert (tmp_path / "reached").stat().st_uid == os.getuid()
    # Nothing of this process has changed.
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


@needs_namespaces
@pytest.mark.parametrize("who", ["root without privileges", "another user"])
def test_a_user_without_privileges_isolates_too(who):
    """In a user namespace: the user's names stay, and what it writes belongs to it."""
    if os.getuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can become others, by setpriv")
    user, python, drop = 0, sys.executable, ["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    if who == "another user":
        user, python, drop = 65534, "/usr/bin/python3", ["--reuid=65534", "--regid=65534", "--clear-groups"]
    with tempfile.TemporaryDirectory() as temporary:  # not tmp_path, which is in a folder of root's
        folder = Path(temporary)
        os.chown(folder, user, user)
        shutil.copytree(Path(mk.__file__).parent, folder / "mirrorkit", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "script.py").write_text(LISTENS)
        (folder / "leave").touch()

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = ["setpriv", *drop, python, *arguments]
            own = {"PATH": os.environ["PATH"], "PYTHONPATH": temporary, "PYTHONDONTWRITEBYTECODE": "1"}
            return subprocess.run(command, env=own, cwd=folder, capture_output=True, text=True, timeout=60)

        if run("-c", "import sys, mirrorkit.launch; sys.exit(sys.version_info < (3, 10))").returncode:
            pytest.skip("no Python that another user may run")
        done = run("-m", "mirrorkit", "launch", "--workers", "2", "--isolate", "script.py")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count(f"user {user} {user} ['lo']") == 2
        assert (folder / "reached").stat().st_uid == user


@needs_namespaces
def test_what_the_kernel_refuses_is_an_error_and_nothing_starts(listens, tmp_path):
    """Where no namespaces are left, here in a user namespace that allows itself none."""
    none = "for kind in user net; do echo 0 > /proc/sys/user/max_${kind}_namespaces || exit 99; done; "
    command = [sys.executable, "-m", "mirrorkit", "launch", "--workers", "1", "--isolate", str(listens)]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", none + 'exec "$@"', "sh", *command],
        env={**os.environ, "PYTHONPATH": str(Path(mk.__file__).parents[1])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode == 99:
        pytest.skip("the limits of a user namespace cannot be set here")
    assert (done.returncode, done.stdout) == (1, "")
    assert "isolate needs a network namespace, which this machine refuses: unshare: No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_helper_that_fails_is_an_error_with_its_last_line(tmp_path, monkeypatch, listens):
    helper = tmp_path / "helper.py"
    helper.write_text("raise PermissionError('lo')")
    monkeypatch.setattr(isolation, "__file__", str(helper))
    with pytest.raises(ClusterError, match=r"refuses: PermissionError: lo\. Allow user namespaces"):
        launch(listens, workers=1, isolate=True)


def test_isolation_elsewhere_than_on_linux_is_refused(monkeypatch, listens):
    monkeypatch.setattr(isolation.sys, "platform", "darwin")
    with pytest.raises(ClusterError, match="which only Linux has"):
        launch(listens, workers=1, isolate=True)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_keeper_that_cannot_enter_starts_no_script(tmp_path):
    keeper = Path(launcher.__file__).with_name("keeper.py")
    lifeline, other = os.pipe()
    with open(os.devnull) as no_namespace:
        done = subprocess.run(
            [sys.executable, "-I", "-S", keeper, str(lifeline), str(no_namespace.fileno()), sys.executable, "-c", "1"],
            pass_fds=(lifeline, no_namespace.fileno()),
            capture_output=True,
            text=True,
        )
    os.close(lifeline)
    os.close(other)
    assert done.returncode == 1
    assert "cannot be entered" in done.stderr


def test_a_machine_that_nobody_reaches_is_not_warned_about(monkeypatch, listens, tmp_path, capsys):
    (tmp_path / "leave").touch()
    monkeypatch.setattr(launcher, "outside_interfaces", list)
    assert launch(listens, workers=1) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(launcher, "outside_interfaces", lambda: ["eth0", "ib0"])
    assert launch(listens, workers=1) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("launch | warning: TensorFlow's servers in the tasks listen at all interfaces")
    assert "(eth0, ib0), without authentication" in line
    assert "--isolate" in line
