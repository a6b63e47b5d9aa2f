"""The job files of examples/jobs agree with what mirrorkit reads; test_slurm.py in multiworker runs those of Slurm."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorkit.cluster import detect

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "examples" / "jobs"


def loaded(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((JOBS / name).read_text()))


def pod(name: str) -> dict[str, Any]:
    """The pod's spec of a file; that of a TrainJob with what it adds to its runtime's."""
    *others, job = loaded(name)
    spec = job["spec"]
    if job["kind"] == "TFJob":
        spec = spec["tfReplicaSpecs"]["Worker"]
    elif job["kind"] in ("JobSet", "TrainJob"):
        (replicated,) = (others[0]["spec"]["template"]["spec"] if others else spec)["replicatedJobs"]
        spec = replicated["template"]["spec"]
    found: dict[str, Any] = spec["template"]["spec"]
    if job["kind"] == "TrainJob":
        found["containers"][0] |= {name: job["spec"]["trainer"][name] for name in ("command", "env")}
    return found


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.sh")), ids=lambda path: path.name)
def test_shell_files_are_short_and_bash_reads_them(path):
    subprocess.run(["bash", "-n", path], check=True)
    lines = path.read_text().splitlines()
    assert len(lines) < 20
    submitted = next(line for line in lines if "sbatch " in line)
    assert f"examples/jobs/{path.name}" in submitted
    assert_starts_an_example(submitted.partition(path.name)[2].split())


@pytest.mark.parametrize("name", ["tfjob.yaml", "indexed_job.yaml", "jobset.yaml", "trainjob.yaml"])
def test_a_pod_trains_an_example_and_saves_on_its_volume(name):
    container = pod(name)["containers"][0]
    assert container["command"][0] == "python"
    assert_starts_an_example(container["command"])
    folder = container["command"][container["command"].index("--checkpoints") + 1]
    mount = container["volumeMounts"][0]
    assert folder.startswith(f"{mount['mountPath']}/")
    assert mount["name"] == pod(name)["volumes"][0]["name"]


def assert_starts_an_example(command: list[str]) -> None:
    script = next(part for part in command if part.endswith(".py"))
    source = (ROOT / script).read_text()
    assert all(f'"{part}"' in source for part in command if part.startswith("--")), f"options of {script}: {command}"


def test_the_pods_of_a_tfjob_are_the_workers():
    (job,) = loaded("tfjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    workers = job["spec"]["tfReplicaSpecs"]["Worker"]
    assert workers["restartPolicy"] == "OnFailure"
    container = workers["template"]["spec"]["containers"][0]
    assert container["name"] == "tensorflow"  # else the operator does not set TF_CONFIG
    # The operator's TF_CONFIG: https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow/
    name, count = job["metadata"]["name"], workers["replicas"]
    addresses = [f"{name}-worker-{i}.default.svc:2222" for i in range(count)]
    for i in range(count):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}, "environment": "cloud"}
        cluster = detect({"TF_CONFIG": json.dumps(config)})
        assert cluster is not None
        assert (cluster.num_workers, cluster.task, cluster.is_chief) == (2, f"worker {i}", i == 0)


def test_the_pods_of_an_indexed_job_are_the_workers():
    service, job = loaded("indexed_job.yaml")
    spec, template = job["spec"], pod("indexed_job.yaml")
    assert template["restartPolicy"] == "OnFailure"
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == 2
    # Kubernetes knows a pod as <host name>.<subdomain> when a headless service of that name selects it.
    assert (service["kind"], service["spec"]["clusterIP"]) == ("Service", "None")
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert service["metadata"]["name"] == template["subdomain"]
    names = [f"{job['metadata']['name']}-{i}" for i in range(spec["completions"])]
    assert_pods_are_the_workers("indexed_job.yaml", names, template["subdomain"])


def assert_pods_are_the_workers(file: str, names: list[str], subdomain: str) -> None:
    given = {variable["name"]: variable["value"] for variable in pod(file)["containers"][0]["env"]}
    assert all(isinstance(value, str) for value in given.values())  # Kubernetes takes nothing else
    for i, name in enumerate(names):
        cluster = detect({**given, "JOB_COMPLETION_INDEX": str(i), "HOSTNAME": name})
        assert cluster is not None
        assert (cluster.task, cluster.source) == (f"worker {i}", "Kubernetes Indexed Job")
        assert list(cluster.workers) == [f"{host}.{subdomain}:2222" for host in names]


@pytest.mark.parametrize("name", ["jobset.yaml", "trainjob.yaml"])
def test_the_pods_of_a_jobset_are_the_workers(name):
    *others, job = loaded(name)
    jobs, count = job["spec"], 2
    if name == "trainjob.yaml":  # Trainer makes a JobSet of its name: of the runtime's template, and its own numbers
        (runtime,) = others
        reference = jobs["runtimeRef"]
        assert (runtime["kind"], runtime["metadata"]["name"]) == (reference["kind"], reference["name"])
        assert jobs["trainer"]["numNodes"] == count
        jobs = runtime["spec"]["template"]["spec"]
    (workers,) = jobs["replicatedJobs"]
    if name == "jobset.yaml":
        assert workers["template"]["spec"]["completions"] == workers["template"]["spec"]["parallelism"] == count
    assert jobs["failurePolicy"]["maxRestarts"] > 0
    assert workers["template"]["spec"]["backoffLimit"] == 0
    # A pod is <jobset>-<job>-<index of the job>-<index>.<subdomain>, by default the JobSet's name:
    # https://jobset.sigs.k8s.io/docs/tasks/
    own = job["metadata"]["name"]
    assert_pods_are_the_workers(name, [f"{own}-{workers['name']}-0-{i}" for i in range(count)], own)
