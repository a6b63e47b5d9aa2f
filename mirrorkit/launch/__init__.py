"""Rehearse a cluster on one machine: start a script once for every task, and leave nothing behind.

```
python -m mirrorkit launch --workers 2 train.py --epochs 3
```

Each task gets its own TF_CONFIG, so the same script runs on a real cluster. With `--on ray` it runs on the nodes of a
Ray cluster. The launcher needs no TensorFlow.
"""

from __future__ import annotations

from mirrorkit.launch.launcher import launch, on_ray
from mirrorkit.launch.layout import clusters as clusters  # for mk.testing

__all__ = ["launch", "on_ray"]
