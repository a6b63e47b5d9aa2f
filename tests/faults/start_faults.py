"""Faults that a job is told of before it starts: each is an error that says what is wrong, not a wait."""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

import jobs
from judged import Row, true_ones

CREATE = """
import time
import mirrorkit as mk
create = mk.strategy.create  # which imports TensorFlow
print("begins at", time.time(), flush=True)
create("auto", start_timeout=5)
"""
CREATE_EACH = """
import json, os, sys, time
import mirrorkit as mk
create = mk.strategy.create
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


def peer_never_starts(folder: Path) -> Row:
    """Named after `start_timeout`."""
    tasks = jobs.layout.clusters(2)
    config = tasks["worker 0"].to_tf_config()
    return _refused(folder, "a worker never starts (`start_timeout=5`)", config, "worker 1 .* did not start within 5 s")


def port_taken(folder: Path) -> Row:
    """By another program of this machine."""
    cluster = jobs.layout.clusters(2)["worker 0"]
    port = int(cluster.workers[0].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        return _refused(folder, "port taken", cluster.to_tf_config(), f"worker 0 is to listen at port {port}")


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
    config, message = BAD_CONFIGS[kind]
    return _refused(folder, f"TF_CONFIG: {kind}", config, re.escape(message))


def answers(folder: Path) -> dict[str, tuple[str, float]]:
    """What one process is told, to each bad TF_CONFIG in turn, and after how many seconds."""
    configs = json.dumps({kind: config for kind, (config, _) in BAD_CONFIGS.items()})
    process = jobs.Process([sys.executable, "-c", CREATE_EACH, configs], folder, jobs.environment(folder))
    try:
        process.end()
    finally:
        process.close()
    return json.loads(process.line("^{.*}$")[1])


def _refused(folder: Path, fault: str, config: str, message: str) -> Row:
    process = jobs.Process([sys.executable, "-c", CREATE], folder, jobs.environment(folder, TF_CONFIG=config))
    try:
        code = process.end()
    finally:
        process.close()
    moment, seen = process.line("ClusterError: ")
    begun = float(process.line("begins at")[1].split()[-1])
    wrong = {f"exit code {code}": code != 1, f"the message lacks {message!r}": not re.search(message, seen)}
    return Row(fault, seen, moment - begun, true_ones(wrong))
