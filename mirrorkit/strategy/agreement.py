"""What all workers must agree on: settings, compared by name, and what the chief tells the others."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from mirrorkit.errors import ClusterError
from mirrorkit.printing import few
from mirrorkit.strategy.barrier import saying_what_is_missing
from mirrorkit.strategy.exchange import bytes_of_all_workers, of_all_workers, place
from mirrorkit.strategy.workers import by_worker, num_workers

_LONGEST = 200  # characters of a value in an error
_CURE = "All workers must run the same script with the same options and versions."


def require_same(strategy: tf.distribute.Strategy, where: str, settings: Mapping[str, Any]) -> None:
    """See that all workers have the same settings, by name; values are what JSON can say. Collective.

    A checksum is all that is sent where nothing differs.

    Args:
        strategy: the strategy of the workers.
        where: which part of the program this is; workers that are at different ones are told so.
        settings: names and values.

    Raises:
        ClusterError: a setting differs, or some workers are elsewhere in the program.
    """
    if num_workers(strategy) == 1:
        return
    said = json.dumps(settings).encode()
    digest = hashlib.sha256(said).digest()
    with saying_what_is_missing(where), place(where):
        if len(set(bytes_of_all_workers(strategy, digest, len(digest)))) == 1:
            return
        longest = int(max(of_all_workers(strategy, len(said))))
        values = [json.loads(data.rstrip(b"\0")) for data in bytes_of_all_workers(strategy, said, longest)]
    raise ClusterError(_difference(strategy, where, values))


def of_chief(strategy: tf.distribute.Strategy, data: bytes) -> bytes:
    """Return the chief's bytes, whatever the others give. Collective."""
    length = int(of_all_workers(strategy, len(data))[0])
    return bytes_of_all_workers(strategy, data, length)[0]


def _difference(strategy: tf.distribute.Strategy, where: str, values: list[dict[str, Any]]) -> str:
    """Say what differs, the first few of it, with each worker's value."""
    differing = []
    keys = itertools.chain.from_iterable(values)
    for key in dict.fromkeys(keys):
        shown = [_shown(of_worker, key) for of_worker in values]
        if len(set(shown)) > 1:
            differing.append(f"{key} is {by_worker(strategy, shown)}")
    return f"The workers do not have the same {where}: {few(differing, between='; ')}. {_CURE}"


def _shown(values: Mapping[str, Any], key: str) -> str:
    text = repr(values[key]) if key in values else "missing"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({hashlib.sha256(text.encode()).hexdigest()[:8]})"
