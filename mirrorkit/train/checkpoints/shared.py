"""Whether all workers see the folder of checkpoints: one writes there, and each of them restores from there."""

from __future__ import annotations

import time

import tensorflow as tf

from mirrorkit.errors import CheckpointError
from mirrorkit.strategy import addresses, num_workers, of_all_workers, place, texts_of_all_workers
from mirrorkit.train.checkpoints.place import Place

_TOKEN = 16  # bytes
_SEES = 60.0  # seconds until a network file system shows on one machine what another one wrote; NFS caches so long


def require_shared(strategy: tf.distribute.Strategy, where: Place) -> None:
    """Refuse a folder in which a worker does not find what the chief has written. Collective.

    Raises:
        CheckpointError: there is such a worker.
    """
    if num_workers(strategy) == 1:
        return
    with place("a look for the checkpoints of the chief"):
        token = texts_of_all_workers(strategy, where.token, _TOKEN)[0]
        sees = of_all_workers(strategy, _sees(where, token))
    blind = [name for name, sees_it in zip(addresses(strategy), sees, strict=True) if not sees_it]
    if blind:
        raise CheckpointError(
            f"Checkpoints are written to {where.name} by the chief, and every worker restores from there, but "
            f"{', '.join(blind)} {'does' if len(blind) == 1 else 'do'} not see the chief's files there. A folder that "
            "is local to one machine is lost with it. Choose one on a file system that all workers share, or an "
            "address such as 'gs://bucket/run'."
        )


def _sees(where: Place, token: str) -> bool:
    deadline = time.monotonic() + _SEES
    while where.owner().get("token") != token:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
