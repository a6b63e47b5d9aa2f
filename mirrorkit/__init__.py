"""mirrorkit: building blocks for distributed training with TensorFlow 2 and Keras 3.

```python
import mirrorkit as mk

strategy = mk.strategy.create("auto")
```

Importing mirrorkit changes nothing: no environment variable, no logging set-up, no device is touched. Submodules load
when they are first used, so what needs no TensorFlow (errors, batching, the command line) starts without it.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__version__ = "0.1.0"

_SUBMODULES = (
    "batching",
    "bench",
    "checks",
    "cluster",
    "data",
    "devices",
    "errors",
    "launch",
    "models",
    "optim",
    "parallel",
    "reproducible",
    "strategy",
    "testing",
    "timing",
    "train",
)

__all__ = [*_SUBMODULES, "__version__"]


def __getattr__(name: str) -> ModuleType:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_SUBMODULES)}")


def __dir__() -> list[str]:
    return sorted(__all__)
