"""Set-ups broken on purpose, through the command: each is named, with its cure.

TensorFlow does not start here: what it says of the devices has tests of its own (test_gpus.py, test_probe.py), and real
processes are in test_doctor_processes.py.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirrorkit.__main__ import main
from mirrorkit.cluster import free_ports
from mirrorkit.doctor import examination, network, probe
from mirrorkit.doctor.finding import Finding

SLURM = {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "0",
    "SLURM_JOB_ID": "7",
}
Usage = namedtuple("Usage", "total used free")


def tf_config(*workers: str, index: int = 0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})}


KERAS = "Keras's settings"
UNKNOWN = tf_config("127.0.0.1:PORT", "no-such-host.invalid:2222")
NO_TOKEN = {**tf_config("127.0.0.1:PORT", "127.0.0.1:1"), "MIRRORKIT_JOB_TOKEN": ""}


def two(index: int = 0) -> dict[str, str]:
    return tf_config(*(f"127.0.0.1:{port}" for port in free_ports(2)), index=index)


@pytest.fixture
def examined(plain: None, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., tuple[int, list[Finding]]]:
    """`examined("--data", folder, NAME=value)` runs the command; it returns the exit code and the findings."""
    monkeypatch.setattr(probe, "devices", lambda *_, **__: [Finding("devices", "ok", "not here")])
    monkeypatch.setattr(probe, "all_reduce", lambda *_, **__: [Finding("all-reduce", "ok", "not here")])
    monkeypatch.setattr(examination, "_NAMES", 0.3)
    monkeypatch.setattr(network, "outside_interfaces", list)  # as where nobody else reaches this machine

    def run(*arguments: object, **environment: str) -> tuple[int, list[Finding]]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code = main(["doctor", "--json", "--start-timeout", "0.5", *map(str, arguments)])
        found = json.loads(capsys.readouterr().out)
        return code, [Finding(**finding) for finding in found["findings"]]

    return run


def assert_named(examination: tuple[int, list[Finding]], name: str, status: str, found: str, cure: str) -> None:
    """One finding says it, nothing else is wrong but what follows from it, and the exit code says the same."""
    code, findings = examination
    wrong = [finding for finding in findings if finding.status != "ok"]
    fitting = [f for f in wrong if (f.name, f.status) == (name, status) and re.search(found, f.found)]
    assert len(fitting) == 1, wrong
    assert re.search(cure, fitting[0].cure), fitting[0]
    others = {f.name for f in wrong} - {name, "all-reduce"}
    assert not others, wrong
    assert code == (status == "failure")


def test_a_whole_set_up_passes_and_every_wrong_finding_would_have_a_cure(examined, tmp_path):
    (tmp_path / "data").write_text("x")
    code, findings = examined("--data", tmp_path, "--checkpoints", tmp_path / "runs" / "first")
    assert code == 0
    assert {f.name for f in findings} >= {"TensorFlow", "Keras", "requirements", "data", "checkpoints", "all-reduce"}
    assert [f for f in findings if f.status != "ok"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["data"], "the doctor leaves nothing behind"


# Arguments and environment; the finding, how bad it is, what was found, the cure. FOLDER is that of the test below.
BROKEN: list[tuple[str, dict[str, str], str, str, str, str]] = [
    ("--data FOLDER/nowhere", {}, "data", "failure", "no folder FOLDER/nowhere", "Correct --data"),
    ("", {"MIRRORKIT_DATA": "FOLDER/empty"}, "data", "failure", "no file with anything in", "Correct MIRRORKIT_DATA"),
    ("--data gs://bucket/train", {}, "data", "warning", "gs://bucket/train is not on", "Read a file"),
    ("--checkpoints FOLDER/keras.json/a", {}, "checkpoints", "failure", "keras.json is a file", "Choose a folder"),
    ("", {"TF_USE_LEGACY_KERAS": "1"}, KERAS, "failure", "tf.keras to Keras 2", "unset TF_USE_LEGACY_KERAS"),
    ("", {"KERAS_BACKEND": "jax"}, KERAS, "failure", "KERAS_BACKEND selects 'jax'", "KERAS_BACKEND=tensorflow"),
    ("", {"KERAS_HOME": "FOLDER"}, KERAS, "failure", "keras.json selects 'torch'", "KERAS_BACKEND=tensorflow"),
    ("", UNKNOWN, "hosts", "failure", r"'no-such-host.invalid' \(worker 1\)", "misspelled host name"),
    ("", NO_TOKEN, "exposure", "failure", "JOB_TOKEN is set, but empty", "Set it to the same secret"),
]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case[4])
def test_what_is_broken_is_named_with_its_cure(examined, tmp_path, case):
    arguments, environment, *finding = case
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "torch"}))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "0.tfrecord").touch()
    (port,) = free_ports(1)

    def here(text: str) -> str:
        return text.replace("FOLDER", str(tmp_path)).replace("PORT", str(port))

    result = examined(*here(arguments).split(), **{name: here(value) for name, value in environment.items()})
    assert_named(result, *map(here, finding))


OF_THE_CLUSTER = {
    "no JSON": ({"TF_CONFIG": "{'cluster'"}, "failure", "TF_CONFIG is set but cannot be read", "Write for example"),
    "index beyond": (tf_config("a:1", "b:1", index=2), "failure", "worker 2, but there are 2", "another index"),
    "one address twice": (tf_config("a:1", "a:1"), "failure", "worker 0 and worker 1 have the same", "different port"),
    "Slurm without a variable": ({"SLURM_STEP_NUM_TASKS": "2"}, "failure", "without SLURM_STEP", "Pass on all SLURM"),
    "TF_CONFIG alone in a step": (
        {**SLURM, **tf_config("localhost:1")},
        "failure",
        "TF_CONFIG describes 1 task, Slurm 2 tasks",
        "Unset it where it is left over, to train as Slurm says",
    ),
    "TF_CONFIG alone in a pod": (
        {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "x-1", "MIRRORKIT_WORKERS": "2", "MIRRORKIT_SERVICE": "s"}
        | tf_config("localhost:1"),
        "failure",
        "TF_CONFIG describes 1 task, Kubernetes Indexed Job 2 tasks",
        "Unset it",
    ),
    "a job without srun": (
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
        "warning",
        "the Slurm job has 4 tasks, but srun did not start this process",
        "by srun",
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
    last = result[1][-1]
    assert (last.name, "not tried" in last.found) == ("all-reduce", status == "failure")


def test_one_tf_config_for_all_tasks_of_a_slurm_step(examined, monkeypatch):
    monkeypatch.setattr(network, "wait_for_all", lambda *_, **__: None)
    result = examined(**SLURM, **two(index=0))
    assert_named(result, "cluster settings", "warning", "in TF_CONFIG this is worker 0, in Slurm worker 1", "own index")


def test_a_tf_config_that_says_what_slurm_says_is_right(examined, monkeypatch):
    monkeypatch.setattr(network, "wait_for_all", lambda *_, **__: None)
    code, findings = examined(**SLURM, **two(index=1))
    assert code == 0
    assert all(finding.status == "ok" for finding in findings)


def test_a_port_that_is_taken(examined):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        result = examined(**tf_config(address, "127.0.0.1:1"))
    assert_named(result, "port", "failure", f"worker 0 should listen on port .*{address}", "End it .* another port")


def test_an_address_of_another_machine(examined, monkeypatch):
    monkeypatch.setattr(network, "wait_for_all", lambda *_, **__: None)
    (port,) = free_ports(1)
    result = examined(**tf_config(f"192.0.2.1:{port}", "127.0.0.1:1"))  # an address that nobody may have
    assert_named(result, "hosts", "warning", "192.0.2.1:.*no address of this machine", "index the right one")


def test_a_port_that_others_reach_is_a_warning_and_without_a_token_there_is_a_note(examined, monkeypatch):
    monkeypatch.setattr(network, "wait_for_all", lambda *_, **__: None)
    port, more = free_ports(2)
    environment = tf_config(f"localhost:{port}", f"127.0.0.1:{more}")
    code, findings = examined(**environment)
    (exposure,) = [f for f in findings if f.name == "exposure"]
    (token,) = [f for f in findings if f.name == "job token"]
    assert (code, exposure.status, token.status) == (0, "ok", "ok")
    assert f"port {port} of loopback alone" in exposure.found
    assert "MIRRORKIT_JOB_TOKEN is not set: whoever reaches the port of worker 0 can pose as a task" in token.found
    assert "same secret in all tasks" in token.cure
    monkeypatch.setattr(network, "outside_interfaces", lambda: ["eth0"])
    result = examined(**environment, MIRRORKIT_JOB_TOKEN="open sesame")
    said = rf"TensorFlow's server will listen at port {port} of all interfaces \(eth0\), and does not ask who connects"
    assert_named(result, "exposure", "warning", said, r"Close the ports .* docs/security\.md")
    assert next(f.found for f in result[1] if f.name == "job token").startswith("set: ")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_token_is_not_shown(examined, monkeypatch, capsys, form):
    monkeypatch.setattr(network, "wait_for_all", lambda *_, **__: None)
    for name, value in {**two(), "MIRRORKIT_JOB_TOKEN": "open sesame"}.items():
        monkeypatch.setenv(name, value)
    assert main(["doctor", *form]) == 0
    out, err = capsys.readouterr()
    assert "MIRRORKIT_JOB_TOKEN" in out
    assert "sesame" not in out + err


@pytest.mark.parametrize(("own", "missing"), [(0, 1), (1, 0)])
def test_a_worker_that_does_not_start(examined, own, missing):
    environment = two(own)
    address = json.loads(environment["TF_CONFIG"])["cluster"]["worker"][missing]
    result = examined(**environment)
    named = rf"worker {missing} \({address}\): its machine answers, but nothing listens"
    assert_named(result, "workers", "failure", named, "Start the doctor there")
    assert any(f"worker {missing} ({address})" in f.found and "0.5 s" in f.found for f in result[1])
    assert "not tried" in result[1][-1].found, "the all-reduce would wait too"


def test_a_worker_whose_machine_is_off(examined, monkeypatch):
    def silent(*_: object, **__: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(network.socket, "create_connection", silent)
    result = examined(**two())
    assert_named(result, "workers", "failure", r"worker 1 .*: its machine does not answer \(timed out\)", "firewall")


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs /sys, where root too may make no file")
def test_a_checkpoint_folder_that_cannot_be_written(examined):
    result = examined("--checkpoints", "/sys/kernel/runs")
    assert_named(result, "checkpoints", "failure", "/sys/kernel cannot be written to", "may create files")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_without_space_and_one_with_little(examined, monkeypatch, tmp_path, number):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 10**12, 2**28))
    result = examined("--checkpoints", tmp_path)
    assert_named(result, "checkpoints", "warning", "0.2 GiB free", "Make room")

    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)  # where a quota of a network file system shows
    result = examined("--checkpoints", tmp_path)
    assert_named(result, "checkpoints", "failure", os.strerror(number), "Make room; 16 MiB were tried")


@pytest.mark.parametrize(
    ("name", "version", "finding", "status", "found", "cure"),
    [
        ("tensorflow", "2.10.1", "TensorFlow", "failure", r"2.10.1; mirrorkit needs 2.18 or newer", "tensorflow>=2.18"),
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


@pytest.mark.parametrize(("name", "found"), [("import", "not tried: "), ("devices", "not here")])
def test_only_without_tensorflow_there_is_no_all_reduce(examined, monkeypatch, name, found):
    monkeypatch.setattr(probe, "devices", lambda *_, **__: [Finding(name, "failure", "broken", "Repair it.")])
    code, findings = examined()
    assert code == 1
    assert (findings[-1].name, findings[-1].found.startswith(found)) == ("all-reduce", True)


def test_packages_that_do_not_fit_or_are_missing(examined, distribution):
    """Of one package after the other; each stays wrong."""
    distribution("protobuf", "3.9.0")
    found = r"tensorflow\S* needs protobuf\S+; found 3.9.0"
    assert_named(examined(), "requirements", "warning", found, "pip install 'protobuf")
    distribution("keras", "3.12.0", requires=("no-such-package>=1",))
    found = "keras needs no-such-package>=1; found none"
    assert_named(examined(), "requirements", "failure", found, "pip install 'no-such-package>=1'")


def test_two_tensorflows(examined, distribution):
    distribution("tensorflow", "2.21.0")
    distribution("tensorflow-cpu", "2.20.0")
    found = "tensorflow 2.21.0 and tensorflow-cpu 2.20.0 overwrite each other's files"
    assert_named(examined(), "TensorFlow", "warning", found, "pip uninstall")


def test_a_full_temporary_folder(examined, monkeypatch):
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(examination.tempfile, "gettempdir", none)
    assert_named(examined(), "temporary files", "failure", "No usable temporary directory", "TMPDIR")


def test_a_check_that_raises_does_not_stop_the_others(examined, monkeypatch, tmp_path):
    def broken(environ: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(examination.settings, "cluster", broken)
    code, findings = examined("--data", tmp_path / "nowhere")
    assert code == 1
    assert {f.name for f in findings if f.status == "failure"} == {"cluster settings", "data"}


def test_what_is_printed_is_a_line_for_each_check_the_cure_and_what_is_set(examined, capsys, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setenv("TF_VAR_password", "secret")  # Terraform's
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok    Python ")
    at = lines.index("FAIL  Keras's settings  KERAS_BACKEND selects 'jax', not TensorFlow")
    assert lines[at + 1].strip() == "cure: export KERAS_BACKEND=tensorflow, or unset it"
    assert "set   KERAS_BACKEND=jax" in lines
    assert not any("secret" in line for line in lines)
    assert re.fullmatch(r"\d+ checks: 1 failed, 0 with a warning", lines[-1])
