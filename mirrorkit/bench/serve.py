"""The other end of a `Remote`: `python -m mirrorkit.bench.serve` makes an object and calls it on request.

Requests come as lines of JSON on standard input, and answers leave the same way on what was standard output. What the
object itself prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any


def main() -> None:
    """Serve until standard input ends."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**message: Any) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        job = json.loads(sys.stdin.readline())
        if job["core"] is not None:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[job["core"] % len(cores)]})
        module, _, name = job["target"].partition(":")
        subject = getattr(importlib.import_module(module), name)(**job["arguments"])
        answer(value=None)
        for line in sys.stdin:
            request = json.loads(line)
            answer(value=getattr(subject, request["call"])(**request["arguments"]))
    except Exception as error:
        traceback.print_exc()
        text = str(error).strip().partition("\n")[0]
        answer(error=f"{type(error).__name__}: {text[:300]}")
        sys.exit(1)


def _end_with_parent(parent: int) -> None:
    """A call that waits for ever would not see that nobody is there any more."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)  # a group of its own: see Remote


if __name__ == "__main__":
    main()
