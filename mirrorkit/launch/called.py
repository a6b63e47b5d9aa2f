"""Call the function of a job on Ray in one of its tasks: `python -m mirrorkit.launch.called`."""

from __future__ import annotations

import base64
import json
import os
import sys

from mirrorkit.launch.process import CALL

RESULT = "result "  # beginning of the line with what the function returned, pickled


def main() -> None:
    """Read the function from stdin, call it, and on worker 0 write what it returns to the launcher's pipe."""
    from ray import cloudpickle

    result = cloudpickle.load(sys.stdin.buffer)()
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        with open(os.environ[CALL], "a") as pipe:
            pipe.write(f"{RESULT}{base64.b64encode(cloudpickle.dumps(result)).decode()}\n")


if __name__ == "__main__":
    main()
