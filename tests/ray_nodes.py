"""A Ray cluster on this machine, with as many nodes as a test wants: each is a raylet of its own.

Run by `RayNodes`: python ray_nodes.py FOLDER; prints the address, then reads numbers of nodes and prints each in turn.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

NODE = {"object_store_memory": 80 << 20, "include_dashboard": False}


class RayNodes:
    """A head without room for workers, and nodes with room for one each; `environment` names it.

    Where Ray itself cannot start on this machine, twice, the test is skipped with what Ray said last.
    """

    def __init__(self, nodes: int) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        address = self._start() or self._start()
        if not address:
            pytest.skip(f"Ray does not start on this machine; it said: {self._said()}")
        self.environment = {"RAY_ADDRESS": address}
        self.count = 0
        self.set(nodes)

    def _start(self) -> str:
        """Start a cluster of a head alone; return its address, "" where a driver cannot connect to it within 60 s."""
        self._folder = tempfile.mkdtemp(prefix="mkr", dir="/tmp")  # the names of sockets have 107 bytes at most
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={key: value for key, value in os.environ.items() if key != "TF_CONFIG"},
        )
        assert self._process.stdout is not None
        address = self._process.stdout.readline().strip()
        if not address:
            self._process.wait()  # Ray's reaper ends the head with it
            shutil.rmtree(self._folder, ignore_errors=True)
        return address

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
        assert line, f"the nodes of Ray did not change; Ray said: {self._said()}"
        return line

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:]


def main() -> None:
    import ray
    from ray.cluster_utils import Cluster

    # Where the machine's name is another's address, say, Ray waits for minutes, in C++ that no handler interrupts.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "temp_dir": sys.argv[1], **NODE})
    cluster.connect()  # as the launcher will: that must work too
    ray.shutdown()
    signal.alarm(0)
    print(cluster.address, flush=True)
    nodes = []
    for line in sys.stdin:
        while len(nodes) < int(line):
            nodes.append(cluster.add_node(num_cpus=1, **NODE))
        while len(nodes) > int(line):
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        print(len(nodes), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
