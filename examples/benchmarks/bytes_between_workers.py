"""Count the bytes that a training step sends between two workers: a recommender with sparse or dense gradients.

    python examples/benchmarks/bytes_between_workers.py --optimizers adagrad adam --rounds 3

Two processes on this machine train the recommender of kinds/models.py under `multi_worker`. Before and after an epoch,
each asks the system how many bytes its connections to the other have sent (Linux: `tcpi_bytes_acked` of tcp(7)). All
traffic counts, including gRPC's own. A warm-up epoch is not counted.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from harness.processes import Group
from harness.report import Column, figures, parsed, parser_of, present, report_of
from harness.topology import Topology
from kinds.contenders import Loop

import mirrorkit as mk

GRADIENTS = {"rows": "auto", "dense": False}  # as in Step(sparse_embeddings=)
_SENT, _RECEIVED = 120, 128  # where the kernel's struct tcp_info has tcpi_bytes_acked and tcpi_bytes_received


class Worker(Loop):
    """One of the workers; `gradients` are those of the tables."""

    def __init__(self, gradients: str, **options: Any) -> None:
        self.gradients = gradients
        super().__init__(work="recommender", **options)

    def build(self) -> Callable[..., Any]:
        """See Contender."""
        how = GRADIENTS[self.gradients]
        step = mk.train.Step(self.model, self.optimizer, loss=self.work.loss, sparse_embeddings=how)
        return mk.train.Loop(self.strategy, step).fit

    def count(self, epochs: int) -> list[tuple[float, float]]:
        """Train; return what a step of each epoch has sent and received, in bytes."""
        options: dict[str, Any] = {"epochs": 1, "steps_per_epoch": self.steps, "verbose": 0}
        self.train(self.data, **options)
        found = []
        for _ in range(epochs):
            before = connections()
            self.train(self.data, **options)
            after = connections()
            if before.keys() != after.keys():
                raise RuntimeError("A connection was opened or closed, and its bytes are not known. Start again.")
            pairs = [(after[one], before[one]) for one in after]
            found.append(tuple(sum(new[i] - old[i] for new, old in pairs) / self.steps for i in (0, 1)))
        return found


def connections() -> dict[tuple[Any, Any], tuple[int, int]]:
    """Return how many bytes each TCP connection of this process to another one has sent and received, by addresses."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            own = os.dup(int(name))
        except OSError:  # closed by now
            continue
        try:
            with socket.socket(fileno=own) as one:  # closes the duplicate
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    ends = one.getsockname()[:2], one.getpeername()[:2]
                    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    found[ends] = struct.unpack_from("Q", info, _SENT)[0], struct.unpack_from("Q", info, _RECEIVED)[0]
        except OSError:  # no socket, or one that listens
            continue
    own_ends = {own for own, _ in found}
    return {(own, other): values for (own, other), values in found.items() if other not in own_ends}


def measured(gradients: str, optimizer: str, *, steps: int, epochs: int) -> list[tuple[float, float]]:
    """Return the bytes of a step that the first worker has sent and received, for each epoch."""
    members = Topology.of("workers", 2).members(gradients=gradients, optimizer=optimizer, steps=steps)
    with Group("bytes_between_workers:Worker", *members) as workers:
        return workers.call("count", epochs=epochs)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--optimizers", nargs="+", default=["adagrad", "adam"], help="as keras.optimizers.get takes")
    parser.add_argument("--gradients", nargs="+", choices=GRADIENTS, default=list(GRADIENTS), help="of the tables")
    parser.add_argument("--steps", type=int, default=5, help="of an epoch")
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each, after one that does not count")
    options = parsed(parser)
    rows: list[dict[str, Any]] = []
    for optimizer in options.optimizers:
        for gradients in options.gradients:
            both = zip(*measured(gradients, optimizer, steps=options.steps, epochs=options.rounds), strict=True)
            for worker, values in enumerate(both):  # what the first one receives, the second one has sent
                what = f"{gradients}, {optimizer}, sent by worker {worker}"
                keys = {"gradients": gradients, "optimizer": optimizer, "worker": worker}
                rows.append({"what": what, **keys, **figures(values, smaller_is_better=True)})
    columns = [
        *(Column("what", "gradients of the tables"), Column("median", "bytes of a step, median", ",.0f")),
        *(Column("best", "fewest", ",.0f"), Column("n", "n", "d"), Column("spread", "spread", ".2%")),
    ]
    title = f"A recommender on two workers, epochs of {options.steps} steps: bytes of a step between them"
    present(report_of("bytes_between_workers", title, columns, rows, unit="bytes of a step"), options)


if __name__ == "__main__":
    main()
