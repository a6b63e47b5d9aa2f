"""Faults that a job is told of before it starts: each is an error that says what is wrong, not a wait."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jobs
from judged import Row

CREATE = """
import json, os, sys, time
import mirrorkit as mk
create = mk.strategy.create  # which imports TensorFlow
said = {}
for kind, config in json.loads(sys.argv[1]).items():
    os.environ["TF_CONFIG"], begun = config, time.time()
    try:
        create("auto", start_timeout=5)
        said[kind] = "no error", 0.0
    except Exception as error:
        said[kind] = f"{type(error).__name__}: {error}", time.time() - begun
print(json.dumps(said))
"""


def told(folder: Path, configs: Mapping[str, str]) -> dict[str, tuple[str, float]]:
    """What one process is told, to each TF_CONFIG in turn, and after how many seconds."""
    with jobs.process(folder, sys.executable, "-c", CREATE, json.dumps(configs)) as process:
        process.end()
    return json.loads(process.line("^{.*}$")[1])


def missing_peer() -> tuple[str, str]:
    """The TF_CONFIG of a task whose peer never starts, and what its error has to say."""
    return jobs.layout.clusters(2)["worker 0"].to_tf_config(), "worker 1 .* did not start within 5 s"


@contextlib.contextmanager
def taken_port() -> Iterator[tuple[str, str]]:
    """The same of a task at whose port another program of this machine listens."""
    cluster = jobs.layout.clusters(2)["worker 0"]
    port = int(cluster.workers[0].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        yield cluster.to_tf_config(), f"worker 0 should listen on port {port}"


def peer_never_starts(folder: Path) -> Row:
    """Named after `start_timeout`."""
    return _refused(folder, "a worker never starts (`start_timeout=5`)", *missing_peer())


def port_taken(folder: Path) -> Row:
    """By another program of this machine."""
    with taken_port() as taken:
        return _refused(folder, "port taken", *taken)


def _config(cluster: Any, job: str = "worker", index: int = 0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


BAD_CONFIGS = {
    "no JSON": ('{"cluster": ', "cannot be read"),
    "a list": ("[1]", "a JSON list"),
    "no task": ('{"cluster": {"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]}}', "'task' lacks"),
    "index out of range": (_config({"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]}, index=2), "worker 2, but there"),
    "unknown type": (_config({"worker": ["127.0.0.1:2222"]}, job="trainer"), "'trainer' is unknown"),
    "an address without port": (_config({"worker": ["127.0.0.1:2222", "127.0.0.1"]}), "Write host:port"),
    "port 0": (_config({"worker": ["127.0.0.1:0", "127.0.0.1:2223"]}), "between 1 and 65535"),
    "one address twice": (_config({"worker": ["127.0.0.1:2222", "127.0.0.1:2222"]}), "have the same address"),
    "the chief is worker 0 too": (
        _config({"chief": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2222", "127.0.0.1:2223"]}),
        "take its address out of the workers",
    ),
    "unknown host (`start_timeout=5`)": (
        _config({"worker": ["127.0.0.1:2222", "no-such-host.invalid:2222"]}),
        "No address was found within 5 s for 'no-such-host.invalid'",
    ),
}


def bad_config(kind: str, folder: Path) -> Row:
    """A TF_CONFIG that is refused before anything waits for anybody."""
    return _refused(folder, f"TF_CONFIG: {kind}", *BAD_CONFIGS[kind])


def _refused(folder: Path, fault: str, config: str, message: str) -> Row:
    seen, seconds = told(folder, {fault: config})[fault]
    return Row(fault, seen, seconds, [] if is_refusal(seen, message) else [f"the message lacks {message!r}"])


def is_refusal(seen: str, message: str) -> bool:
    """Whether an error is of the right kind, and says what it has to."""
    return re.match(f"ClusterError: .*{message}", seen) is not None
