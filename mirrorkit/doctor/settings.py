"""The environment: which cluster it describes, whether two of its parts disagree, and which variables are set."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

from mirrorkit import processor
from mirrorkit.cluster import JOB_TOKEN, Cluster, detect
from mirrorkit.doctor.finding import Finding, of_message
from mirrorkit.errors import ClusterError

_NAME = "cluster settings"
# Not all of TF_, which is Terraform's prefix too, with secrets in its variables
_VARIABLES = (
    *processor.SPEED_VARIABLES,
    *("MIRRORKIT_", "CUDA_VISIBLE_DEVICES", "KERAS_BACKEND", "KERAS_HOME", "TF_CONFIG", "TF_USE_LEGACY_KERAS"),
    *("TF_CPP_", "TF_DETERMINISTIC_OPS", "TF_CUDNN_", "TPU_NAME", "LD_LIBRARY_PATH", "JOB_COMPLETION_INDEX"),
    *("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_NODEID", "SLURM_STEP_"),
)
_LONGEST = 200  # of a value that is shown


def cluster(environ: Mapping[str, str]) -> tuple[Cluster | None, list[Finding]]:
    """Return the cluster that the environment describes, and the findings about it."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = detect(environ)
        except ClusterError as error:
            return None, [of_message(_NAME, "failure", str(error))]
    findings = [of_message(_NAME, "warning", str(warning.message)) for warning in told]
    findings += _no_step(environ) if found is None else _disagreements(found, environ)
    if not findings:
        findings = [Finding(_NAME, "ok", "this process trains alone" if found is None else str(found))]
    return found, findings


def _no_step(environ: Mapping[str, str]) -> Iterator[Finding]:
    tasks = environ.get("SLURM_NTASKS", "1")
    if tasks.isdigit() and int(tasks) > 1 and environ.get("SLURM_STEP_NUM_TASKS", "") != "1":
        found = f"the Slurm job has {tasks} tasks, but srun did not start this process: it trains alone"
        yield Finding(_NAME, "warning", found, "Start the script, and the doctor, by srun within the job.")


def _disagreements(cluster: Cluster, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Compare TF_CONFIG, which comes first, with what Slurm or Kubernetes say."""
    if cluster.source != "TF_CONFIG" or cluster.task_type == "evaluator":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            other = detect({name: value for name, value in environ.items() if name != "TF_CONFIG"})
        except ClusterError:  # TF_CONFIG is the cure for what they cannot say
            return
    if other is None:
        return
    tasks = list(cluster.addresses)
    cure = (
        f"TF_CONFIG comes first. Unset it where it is left over, to train as {other.source} says; or set it in each "
        "task, with that task's own index and the addresses of all."
    )
    if len(tasks) != other.num_workers:
        found = f"TF_CONFIG describes {_counted(len(tasks))}, {other.source} {_counted(other.num_workers)}"
        yield Finding(_NAME, "failure", found, cure)
    elif tasks.index(cluster.task) != other.task_index:
        found = f"in TF_CONFIG this is {cluster.task}, in {other.source} {other.task}"
        yield Finding(_NAME, "warning", found, cure)


def _counted(tasks: int) -> str:
    return f"{tasks} task{'s' if tasks != 1 else ''}"


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that TensorFlow, Keras and mirrorkit read, where set; long values cut, secrets hidden."""
    found = {name: environ[name] for name in sorted(environ) if name.startswith(_VARIABLES)}
    if JOB_TOKEN in found:
        found[JOB_TOKEN] = "(hidden)"
    return {name: value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..." for name, value in found.items()}
