"""Kubernetes: the pods of an Indexed Job behind a headless service are the workers. (A TFJob sets TF_CONFIG.)"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from mirrorkit.arguments import whole_number
from mirrorkit.cluster.cluster import Cluster
from mirrorkit.cluster.variables import number
from mirrorkit.errors import ClusterError

_PORT = 2222


def read(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster of an Indexed Job's pods; None elsewhere, and in a Job whose pods train alone.

    Kubernetes sets JOB_COMPLETION_INDEX and gives pod i the host name <job>-<i>; the headless service makes it known
    to the others as <job>-<i>.<service>. It does not say how many pods there are. So the pod's template sets

    - $MIRRORKIT_WORKERS: the number of pods, the Job's `completions` and `parallelism`; 1 where each pod trains alone
      (unset means the same, with a warning);
    - $MIRRORKIT_SERVICE: the name of the headless service, which is also the pod's `subdomain`;
    - $MIRRORKIT_PORT: 2222 by default, the same in every pod.

    A JobSet, and a TrainJob of Kubeflow Trainer 2, is made of such Jobs; its service has its own name.

    Source: https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/
    """
    if environ.get("MIRRORKIT_WORKERS") == "1":
        return None
    if "JOB_COMPLETION_INDEX" not in environ:
        if environ.get("MIRRORKIT_WORKERS"):
            raise ClusterError(
                "MIRRORKIT_WORKERS is set, but JOB_COMPLETION_INDEX is not, so this pod does not know which worker it "
                "is. Set completionMode: Indexed in the Kubernetes Job, or unset MIRRORKIT_WORKERS."
            )
        return None
    if not {"MIRRORKIT_WORKERS", "MIRRORKIT_SERVICE"} & environ.keys():
        warnings.warn(
            "JOB_COMPLETION_INDEX is set (a Kubernetes Indexed Job), but MIRRORKIT_WORKERS is not: this pod trains "
            "alone. For pods that train together set MIRRORKIT_WORKERS to the Job's number of completions and "
            "MIRRORKIT_SERVICE to the name of its headless service; for pods that each train alone set "
            "MIRRORKIT_WORKERS to 1.",
            stacklevel=3,
        )
        return None
    if missing := [name for name in ("MIRRORKIT_WORKERS", "MIRRORKIT_SERVICE", "HOSTNAME") if not environ.get(name)]:
        raise ClusterError(
            f"This is a Kubernetes Indexed Job with {' and '.join(missing)} not set. Set MIRRORKIT_WORKERS to the "
            "Job's number of completions and MIRRORKIT_SERVICE to the name of its headless service."
        )
    index = number(environ, "JOB_COMPLETION_INDEX")
    count = whole_number("MIRRORKIT_WORKERS", number(environ, "MIRRORKIT_WORKERS"), ClusterError, most=10_000)
    port = number(environ, "MIRRORKIT_PORT", _PORT)
    host = environ["HOSTNAME"]
    job = host.removesuffix(f"-{index}")
    if job == host:
        raise ClusterError(
            f"The host name of this pod is {host!r}, but pod {index} of an Indexed Job is called "
            f"<job>-{index}. Leave `hostname` out of the pod's template, and `hostNetwork` off."
        )
    service = environ["MIRRORKIT_SERVICE"]
    return Cluster(
        workers=tuple(f"{job}-{i}.{service}:{port}" for i in range(count)),
        task_index=index,
        source="Kubernetes Indexed Job",
    )
