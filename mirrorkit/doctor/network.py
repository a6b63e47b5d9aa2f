"""The cluster that the environment describes, its names and ports, and the other workers. Needs no TensorFlow."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator, Mapping

from mirrorkit.cluster import Cluster, computing, detect, host_and_port, require_network, wait_for_all
from mirrorkit.doctor import versions
from mirrorkit.doctor.finding import Finding, of_message
from mirrorkit.errors import ClusterError
from mirrorkit.supported import __version__

_SETTINGS = "cluster settings"
_NAMES = 10.0  # seconds for names to become known: that of a Kubernetes pod appears only with the pod


def described(environ: Mapping[str, str]) -> tuple[Cluster | None, list[Finding]]:
    """Return the cluster that the environment describes, and the findings about it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            cluster = detect(environ)
        except ClusterError as error:
            return None, [of_message(_SETTINGS, "failure", str(error))]
    findings = [of_message(_SETTINGS, "warning", str(warning.message)) for warning in caught]
    findings += _without_srun(environ) if cluster is None else _left_over(cluster, environ)
    if not findings:
        findings = [Finding(_SETTINGS, "ok", "this process trains alone" if cluster is None else str(cluster))]
    return cluster, findings


def _without_srun(environ: Mapping[str, str]) -> Iterator[Finding]:
    tasks = environ.get("SLURM_NTASKS", "1")
    if tasks.isdigit() and int(tasks) > 1 and environ.get("SLURM_STEP_NUM_TASKS") != "1":
        found = f"the Slurm job has {tasks} tasks, but srun did not start this process: it trains alone"
        yield Finding(_SETTINGS, "warning", found, "Start the script, and the doctor, by srun within the job.")


def _left_over(cluster: Cluster, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Compare TF_CONFIG, which comes first, with what Slurm or Kubernetes say."""
    if cluster.source != "TF_CONFIG" or cluster.task_type == "evaluator":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            other = detect({name: value for name, value in environ.items() if name != "TF_CONFIG"})
        except ClusterError:  # TF_CONFIG is the cure for what they cannot say
            return
    tasks = len(cluster.addresses)
    if other is not None and tasks != other.num_workers:
        found = f"the number of tasks is {tasks} by TF_CONFIG and {other.num_workers} by {other.source}"
        cure = (
            f"TF_CONFIG comes first. Unset it where it is left over, to train as {other.source} says; or set it in "
            "each task, with that task's own index and the addresses of all."
        )
        yield Finding(_SETTINGS, "failure", found, cure)


def findings(cluster: Cluster, *, start_timeout: float) -> Iterator[Finding]:
    """Check that all hosts have addresses and this task's port is free, then wait for the other workers."""
    try:
        require_network(cluster, timeout=_NAMES)
    except ClusterError as error:
        yield of_message("network", "failure", str(error))
        return
    yield Finding("network", "ok", "the hosts of all tasks have addresses, and this task's port is free")
    # Parameter servers do not meet the others: TensorFlow's own start waits for them all. Nor does an evaluator.
    if cluster.num_workers > 1 and not cluster.ps and cluster.task in cluster.addresses:
        yield from _workers(cluster, start_timeout)


def _workers(cluster: Cluster, seconds: float) -> Iterator[Finding]:
    """Wait for all workers, which run the doctor too, and compare their versions; say why one is missing."""
    must_agree = {"mirrorkit": __version__, "TensorFlow": versions.tensorflow(), "Keras": versions.installed("keras")}
    try:
        wait_for_all(cluster, timeout=seconds, must_agree=must_agree)
    except ClusterError as error:
        yield of_message("workers", "failure", str(error))
        for task, address in cluster.addresses.items():
            if task != cluster.task and f"{task} ({address})" in str(error):
                yield from _silent(task, address)
    else:
        yield Finding("workers", "ok", f"all {cluster.num_workers} found each other, with the same versions")


def _silent(task: str, address: str) -> Iterator[Finding]:
    """Say why nobody answers at an address; nothing if somebody does."""
    try:
        socket.create_connection(host_and_port(address), timeout=3.0).close()
        return
    except ConnectionRefusedError:
        found = "answers, but nothing listens there"
        cure = "Start the doctor there at the same time (under Slurm by srun), and look at its output."
    except OSError as error:
        found = f"does not answer ({error})"
        cure = "Look at the address, whether the machine is up, and at the firewall: every worker needs every port."
    yield Finding("workers", "failure", f"{task} ({address}): its machine {found}", cure)


def on_this_machine(cluster: Cluster) -> int:
    """Return how many tasks that compute have the same host as this one."""
    hosts = {task: host_and_port(address)[0] for task, address in cluster.addresses.items()}
    return [hosts[task] for task in computing(cluster)].count(hosts.get(cluster.task, ""))
