"""TF_CONFIG: the JSON by which TensorFlow's own tools, Kubernetes's TFJob and cloud services describe a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from mirrorkit.cluster.cluster import Cluster
from mirrorkit.errors import ClusterError

_JOBS = {"worker", "ps", "chief", "evaluator"}


def read(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster that $TF_CONFIG describes; None where it is not set or holds no cluster.

    Source: https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
    """
    if "TF_CONFIG" not in environ:
        return None
    text = environ["TF_CONFIG"]
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(text, str(error)) from error
    if not isinstance(config, dict):
        raise _unreadable(text, f"a JSON {type(config).__name__}")
    if "sparseCluster" in config:
        raise ClusterError("TF_CONFIG holds a 'sparseCluster'. Turn off enableDynamicWorker in the TFJob.")
    jobs, task = config.get("cluster", {}), config.get("task", {})
    if not isinstance(jobs, dict) or not isinstance(task, dict):
        raise _unreadable(text, "'cluster' and 'task' must be objects")
    if not any(jobs.values()):
        if task:
            raise _unreadable(text, "a task, but no 'cluster'")
        return None
    if "type" not in task or "index" not in task:
        raise _unreadable(text, "'task' lacks 'type' or 'index'")
    if unknown := sorted(jobs.keys() - _JOBS):
        raise ClusterError(
            f"TF_CONFIG names the jobs {unknown}. The jobs are {sorted(_JOBS)}; an old 'master' is now called 'chief'."
        )
    chiefs = jobs.get("chief", [])
    if not isinstance(chiefs, list) or len(chiefs) > 1:
        raise ClusterError(f"TF_CONFIG: 'chief' must be a list of one address, found {chiefs!r}.")
    return Cluster(
        workers=jobs.get("worker", ()),
        ps=jobs.get("ps", ()),
        chief=chiefs[0] if chiefs else None,
        task_type=task["type"],
        task_index=_whole_number(task["index"]),
        source="TF_CONFIG",
    )


def _whole_number(index: Any) -> Any:
    # Some services write the index as a string.
    return int(index) if isinstance(index, str) and re.fullmatch("[0-9]{1,18}", index) else index


def _unreadable(text: str, found: str) -> ClusterError:
    return ClusterError(
        f"TF_CONFIG is set but cannot be read ({found}): {text[:200]!r}. Write for example "
        '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}, '
        "or unset it to train with this process alone."
    )
