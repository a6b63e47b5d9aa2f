"""An S3 server in a process of its own, and a bad network before it: connections that break, 503s, slow answers."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from mirrorkit import subprocesses

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
_BEGIN = (b"PUT ", b"POST ", b"GET ", b"HEAD ", b"DELETE ", b"HTTP/1.1 ")  # of a request, or of an answer
_BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Network:
    """Forwards connections to a server.

    Args:
        server: its port.
        broken: the share of requests, and of answers, within which the connection breaks.
        busy: the share of connections that are answered by 503.
        delay: seconds that each piece of a checkpoint waits.
    """

    def __init__(self, server: int, *, broken: float = 0.0, busy: float = 0.0, delay: float = 0.0) -> None:
        self.broken, self.busy, self.delay = broken, busy, delay
        self.faults = 0  # that have happened
        self.uploads = 0  # that have begun
        self.asked: Counter[tuple[str, str]] = Counter()  # how often: what GET requests ask for, and which bytes of it
        self._server, self._random = server, random.Random(0)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """What leads the clients of S3 through this network."""
        return {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                if self._random.random() < self.busy:
                    self.faults += 1
                    threading.Thread(target=_refuse, args=(client,), daemon=True).start()
                    continue
                server = socket.create_connection(("127.0.0.1", self._server))
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(one, other), daemon=True).start()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            is_object, pieces = False, -1
            while piece := one.recv(2**16):
                if piece.startswith(b"GET "):
                    bytes_of = re.search(rb"\r\nrange: ([^\r]*)", piece, re.IGNORECASE)
                    self.asked[piece.split(b" ")[1].decode(), bytes_of[1].decode() if bytes_of else ""] += 1
                if piece.startswith(_BEGIN):
                    is_object = piece.startswith(b"PUT ") and b".npz" in piece.partition(b"\r\n")[0]
                    self.uploads += is_object
                    pieces = (
                        self._random.randrange(50 if is_object else 2) if self._random.random() < self.broken else -1
                    )
                if is_object:
                    time.sleep(self.delay)
                if pieces == 0:
                    self.faults += 1
                    break
                pieces -= 1
                other.sendall(piece)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextlib.contextmanager
def store(folder: Path, **options: Any) -> Iterator[Network]:
    """A server with the empty bucket "bucket", behind a network; what this process asks goes straight to the server.

    `options` are those of `Network`; `network.environment` is what a process needs whose requests go through it.
    """
    import s3fs

    with s3_server(folder) as port:
        network = Network(port, **options)
        s3fs.S3FileSystem.clear_instance_cache()  # that of a server before
        try:
            with mock.patch.dict(os.environ, {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}):
                s3fs.S3FileSystem().mkdir("bucket")
                yield network
        finally:
            network.close()
            s3fs.S3FileSystem.clear_instance_cache()


def _refuse(client: socket.socket) -> None:
    with contextlib.suppress(OSError), client:
        client.recv(2**16)
        client.sendall(_BUSY)


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[int]:
    """A server on this machine; gives its port. It is gone at the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with open(folder / "s3.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=subprocesses.with_mirrorkit(os.environ))
        try:
            deadline = time.monotonic() + 60
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"The S3 server did not start:\n{(folder / 's3.log').read_text()}")
                time.sleep(0.1)
            yield port
        finally:
            process.kill()
            process.wait()
