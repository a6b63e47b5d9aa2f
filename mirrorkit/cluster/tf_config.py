"""TF_CONFIG: the JSON by which TensorFlow's own tools, Kubernetes's TFJob and cloud services describe a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping

from mirrorkit.cluster.cluster import TASK_TYPES, Cluster
from mirrorkit.errors import ClusterError


def read(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster that $TF_CONFIG describes; None where it is not set or holds no cluster.

    Source: https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
    """
    if "TF_CONFIG" not in environ:
        return None
    text = environ["TF_CONFIG"]
    try:
        config = json.loads(text)
        if "sparseCluster" in config:
            raise ClusterError("TF_CONFIG holds a 'sparseCluster'. Turn off enableDynamicWorker in the TFJob.")
        jobs, task = config.get("cluster", {}), config.get("task", {})
        if not (any(jobs.values()) or task):
            return None
        if unknown := sorted(jobs.keys() - set(TASK_TYPES)):
            raise ClusterError(
                f"TF_CONFIG names the jobs {unknown}. The jobs are {sorted(TASK_TYPES)}; an old 'master' is now called "
                "'chief'."
            )
        chief, *others = jobs.get("chief") or [None]
        if others:
            raise ClusterError(f"TF_CONFIG: 'chief' must be a list of one address, found {jobs['chief']!r}.")
        task_type, index = task["type"], task["index"]
        return Cluster(
            workers=jobs.get("worker", ()),
            ps=jobs.get("ps", ()),
            chief=chief,
            task_type=task_type,
            task_index=int(index) if isinstance(index, str) else index,  # some services write it as a string
            source="TF_CONFIG",
        )
    except ClusterError:
        raise
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise ClusterError(
            f"TF_CONFIG is set but cannot be read ({type(error).__name__}: {error}): {text[:200]!r}. Write for example "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}, '
            "or unset it to train with this process alone."
        ) from error
