"""A Ray cluster on this machine, with as many nodes as a test wants: each is a raylet of its own.

Run by `RayNodes`: python ray_nodes.py; prints the address, then reads numbers of nodes and prints each in turn.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any

NODE = {"object_store_memory": 80 << 20, "include_dashboard": False}


class RayNodes:
    """A head without room for workers, and nodes with room for one each; `environment` names it."""

    def __init__(self, nodes: int) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._folder = tempfile.mkdtemp(prefix="mkr", dir="/tmp")  # the names of sockets have 107 bytes at most
        environment = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            # Not `temp_dir` of the head: Ray writes to the folder of this variable too, and makes only the one it uses.
            env=environment | {"RAY_TMPDIR": self._folder},
        )
        self.environment = {"RAY_ADDRESS": self._line()}
        self.count = 0
        self.set(nodes)

    def set(self, nodes: int) -> None:
        """Add nodes, or take the newest away as a power cut does."""
        if nodes == self.count:
            return
        assert self._process.stdin is not None
        print(nodes, file=self._process.stdin, flush=True)
        self.count = int(self._line())

    def close(self) -> None:
        self._process.communicate(timeout=60)
        self._errors.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            self._errors.seek(0)
            said = self._errors.read()[-2000:]
            self.close()  # Ray's reaper ends the head
            raise AssertionError(f"the nodes of Ray did not start or change; Ray said: {said}")
        return line


def main() -> None:
    import ray
    from ray.cluster_utils import Cluster

    # Where the machine's name is another's address, say, Ray waits for minutes, in C++ that no handler interrupts.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(120)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **NODE})
    cluster.connect()  # as the launcher will: that must work too
    ray.shutdown()
    signal.alarm(0)
    print(cluster.address, flush=True)
    nodes: list[Any] = []
    for line in sys.stdin:
        while len(nodes) < int(line):
            nodes.append(cluster.add_node(num_cpus=1, **NODE))
        while len(nodes) > int(line):
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        print(len(nodes), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
