"""A Ray cluster on this machine, with as many nodes as a test wants: each is a raylet of its own.

Run by `RayNodes`: python ray_nodes.py; prints the address, then reads numbers of nodes, and prints each when it is so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile


class RayNodes:
    """A head without room for workers, and nodes with room for one each; `environment` names it."""

    def __init__(self, nodes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={key: value for key, value in os.environ.items() if key != "TF_CONFIG"},
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

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the Ray cluster did not start"
        return line


def main() -> None:
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="mkr", dir="/tmp")  # the names of sockets have 107 bytes at most
    try:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "temp_dir": folder})
        print(cluster.address, flush=True)
        nodes = []
        for line in sys.stdin:
            while len(nodes) < int(line):
                nodes.append(cluster.add_node(num_cpus=1))
            while len(nodes) > int(line):
                cluster.remove_node(nodes.pop(), allow_graceful=False)
            print(len(nodes), flush=True)
        cluster.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
