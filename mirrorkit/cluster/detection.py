"""Ask each environment in turn which cluster this process belongs to."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mirrorkit.cluster import kubernetes, slurm, tf_config
from mirrorkit.cluster.cluster import Cluster


def detect(environ: Mapping[str, str] | None = None) -> Cluster | None:
    """Return the cluster this process is a part of, or None where it trains alone.

    ```python
    print(mk.cluster.detect())  # None
    ```

    The first that applies: TF_CONFIG (also set by `python -m mirrorkit launch` and by Kubernetes's TFJob), a Slurm
    step of several tasks (`srun`), a Kubernetes Indexed Job with $MIRRORKIT_WORKERS. Nothing is opened or contacted.

    Args:
        environ: the environment variables; None takes those of this process.

    Raises:
        ClusterError: the environment describes an invalid cluster.
    """
    for environment in (tf_config, slurm, kubernetes):
        cluster = environment.read(os.environ if environ is None else environ)
        if cluster is not None:
            return cluster
    return None
