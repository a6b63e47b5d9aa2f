"""Set-ups broken on purpose, through the command: each is named, with its cure.

TensorFlow does not start here: what it says of the devices has tests of its own (test_probe.py), and real
processes are in test_doctor_processes.py.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import sys
from collections.abc import Callable
from typing import Any

import doctor_table
import pytest
from doctor_table import SLURM, tf_config

from mirrorkit.__main__ import main
from mirrorkit.cluster import Cluster, free_ports
from mirrorkit.doctor import examination, network, probe
from mirrorkit.doctor.finding import Finding


def two(index: int = 0) -> dict[str, str]:
    return tf_config(*(f"127.0.0.1:{port}" for port in free_ports(2)), index=index)


@pytest.fixture
def examined(plain: None, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., tuple[int, list[Finding]]]:
    """`examined("--data", folder, NAME=value)` runs the command; it returns the exit code and the findings."""
    monkeypatch.setattr(probe, "devices", lambda *_, **__: [Finding("devices", "ok", "not here")])
    monkeypatch.setattr(network, "_NAMES", 0.3)

    def run(*arguments: object, **environment: str) -> tuple[int, list[Finding]]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code = main(["doctor", "--json", "--start-timeout", "0.5", *map(str, arguments)])
        found = json.loads(capsys.readouterr().out)
        return code, [Finding(**finding) for finding in found["findings"]]

    return run


def assert_named(examination: tuple[int, list[Finding]], name: str, status: str, found: str, cure: str) -> None:
    """One finding says it, nothing of another name is wrong, and the exit code says the same."""
    code, findings = examination
    wrong = [finding for finding in findings if finding.status != "ok"]
    fitting = [f for f in wrong if (f.name, f.status) == (name, status) and re.search(found, f.found)]
    assert len(fitting) == 1, wrong
    assert re.search(cure, fitting[0].cure), fitting[0]
    others = {f.name for f in wrong} - {name}
    assert not others, wrong
    assert code == (status == "failure")


def test_a_whole_set_up_passes_and_every_wrong_finding_would_have_a_cure(examined, tmp_path):
    (tmp_path / "data").write_text("x")
    code, findings = examined("--data", tmp_path, "--checkpoints", tmp_path / "runs" / "first")
    assert code == 0
    assert {f.name for f in findings} >= {"TensorFlow", "Keras", "requirements", "data", "checkpoints", "devices"}
    assert [f for f in findings if f.status != "ok"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["data"], "the doctor leaves nothing behind"


def test_what_is_broken_is_named_with_its_cure(examined, tmp_path):
    """The set-ups of the table, but those that TensorFlow tells of, and the full disk, which needs root."""
    elsewhere = {"GPUs", "devices", "oneDNN", "import", "Keras"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = doctor_table.setups(tmp_path, tmp_path, server.getsockname()[1])
        mine = [one for one in made if one.finding not in elsewhere and one.broken != "a full disk"]
        assert len(mine) == 14
        for one in mine:
            with pytest.MonkeyPatch.context() as patch:
                for folder in one.environment.get("PYTHONPATH", "").split(os.pathsep)[:1]:
                    patch.syspath_prepend(folder)
                for name, value in one.environment.items():
                    patch.setenv(name, value)
                code, findings = examined(*one.arguments)
            # A version that is too old is also not what mirrorkit's own requirements ask for
            named = [f for f in findings if one.finding == "requirements" or f.name != "requirements"]
            assert_named((code, named), one.finding, one.status, one.found, one.cure)


OF_THE_CLUSTER = {
    "TF_CONFIG alone in a pod": (
        {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "x-1", "MIRRORKIT_WORKERS": "2", "MIRRORKIT_SERVICE": "s"}
        | tf_config("localhost:1"),
        "failure",
        "1 by TF_CONFIG and 2 by Kubernetes Indexed Job",
        "Unset it",
    ),
    "a pod of a Job that is not Indexed": (
        {"HOSTNAME": "train-x7k2p", "MIRRORKIT_WORKERS": "2", "MIRRORKIT_SERVICE": "s"},
        "failure",
        "JOB_COMPLETION_INDEX is not",
        "completionMode: Indexed",
    ),
    "a pod that was told nothing": (
        {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1"},
        "warning",
        "MIRRORKIT_WORKERS is not: this pod trains alone",
        "set MIRRORKIT_WORKERS",
    ),
}


@pytest.mark.parametrize("case", OF_THE_CLUSTER)
def test_a_cluster_described_wrongly(examined, case):
    environment, status, found, cure = OF_THE_CLUSTER[case]
    result = examined(**environment)
    assert_named(result, "cluster settings", status, found, cure)


def test_a_tf_config_that_says_what_slurm_says_is_right(examined, monkeypatch):
    monkeypatch.setattr(network, "wait_for_all", lambda *_, **__: None)
    code, findings = examined(**SLURM | {"SLURM_PROCID": "1"}, **two(index=1))
    assert code == 0
    assert all(finding.status == "ok" for finding in findings)


def test_tasks_beside_parameter_servers_wait_for_nobody(examined):
    worker, chief, server = (f"127.0.0.1:{port}" for port in free_ports(3))
    cluster = {"chief": [chief], "worker": [worker, "127.0.0.1:1"], "ps": [server]}
    code, findings = examined(TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    assert code == 0
    assert "workers" not in {finding.name for finding in findings}


@pytest.mark.parametrize(
    ("cluster", "here"),
    [
        (Cluster(("a:1", "a:2", "b:1")), 2),
        (Cluster(("a:1", "a:2", "b:1"), task_index=2), 1),
        (Cluster(("a:2",), chief="a:1", task_type="chief"), 2),
        (Cluster(("a:2",), chief="a:1", ps=("a:3",)), 1),  # a coordinator computes nothing
        (Cluster(("a:1",), task_type="evaluator"), 0),
    ],
)
def test_the_workers_that_share_the_gpus_of_a_machine_are_counted(cluster, here):
    assert network.on_this_machine(cluster) == here


def test_a_worker_whose_machine_is_off(examined, monkeypatch):
    def silent(*_: object, **__: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(network.socket, "create_connection", silent)
    result = examined(**two())
    assert_named(result, "workers", "failure", r"worker 1 .*: its machine does not answer \(timed out\)", "firewall")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_without_space(examined, monkeypatch, tmp_path, number):
    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)  # where a quota of a network file system shows
    result = examined("--checkpoints", tmp_path)
    assert_named(result, "checkpoints", "failure", os.strerror(number), "Make room")


def test_data_on_other_disks_is_not_looked_at(examined):
    code, findings = examined("--data", "gs://bucket/train")
    assert code == 0
    assert Finding("data", "ok", "gs://bucket/train is not on this machine's disks; not looked at") in findings


@pytest.mark.parametrize(
    ("name", "version", "finding", "status", "found", "cure"),
    [
        ("tensorflow", "9.1.0", "TensorFlow", "warning", r"9.1.0, newer than .*2.18 to ", "tensorflow<2."),
        ("keras", "2.15.0", "Keras", "failure", r"2.15.0; mirrorkit needs 3.10 or newer", "keras>=3.10"),
    ],
)
def test_a_version_outside_of_the_range(examined, distribution, name, version, finding, status, found, cure):
    distribution(name, version)
    code, findings = examined()
    # Keras 2 is also not what TensorFlow's own requirements ask for
    kept = [f for f in findings if f.name != "requirements"]
    assert_named((code, kept), finding, status, found, f"pip install .*{cure}")


def test_packages_that_are_missing(examined, distribution, monkeypatch):
    distribution("keras", "3.12.0", requires=("no-such-package>=1",))
    found = "keras needs no-such-package>=1; found none"
    assert_named(examined(), "requirements", "failure", found, "pip install 'no-such-package>=1'")
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)  # which tells what they ask for
    assert_named(examined(), "requirements", "failure", "packaging is not installed", "pip install packaging")


def test_a_check_that_raises_does_not_stop_the_others(examined, monkeypatch, tmp_path):
    def broken() -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(examination.versions, "packages", broken)
    code, findings = examined("--data", tmp_path / "nowhere")
    assert code == 1
    assert {f.name for f in findings if f.status == "failure"} == {"versions", "data"}


def test_what_is_printed_is_a_line_for_each_check_and_the_cure(examined, capsys, tmp_path):
    assert main(["doctor", "--data", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok    Python ")
    at = lines.index(f"FAIL  data              {tmp_path} holds no file with anything in it")
    assert lines[at + 1].strip().startswith("cure: Correct --data")
    assert re.fullmatch(r"\d+ checks: 1 failed, 0 with a warning", lines[-1])
