"""Call the function of a job on Ray in one of its tasks: `python -m mirrorkit.launch.called`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from mirrorkit.launch.ray_slot import CALL, RESULT


def main() -> None:
    """Read the function, call it, and on worker 0 write what it returns."""
    from ray import cloudpickle

    path = Path(os.environ[CALL])
    result = cloudpickle.loads(path.read_bytes())()
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        path.with_name(RESULT).write_bytes(cloudpickle.dumps(result))


if __name__ == "__main__":
    main()
