"""mirrorkit: building blocks for distributed training with TensorFlow 2 and Keras 3.

```python
import mirrorkit as mk

strategy = mk.strategy.create("auto")
with strategy.scope():
    model = ...   # a Keras model, and model.compile(...)
mk.fit(model, x, y, batch_size=256, epochs=5)
```

Importing mirrorkit changes nothing: no environment variable, no logging set-up, no device is touched. Submodules load
when they are first used, so what needs no TensorFlow (errors, batching, the command line) starts without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mirrorkit.supported import __version__ as __version__

if TYPE_CHECKING:  # so that an editor and a type checker know what `mk.train` holds
    from mirrorkit import (
        batching as batching,
        checks as checks,
        cluster as cluster,
        data as data,
        devices as devices,
        errors as errors,
        launch as launch,
        models as models,
        optim as optim,
        parallel as parallel,
        reproducible as reproducible,
        strategy as strategy,
        testing as testing,
        timing as timing,
        train as train,
    )
    from mirrorkit.train import evaluate as evaluate, fit as fit, predict as predict

_SUBMODULES = (
    "batching",
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

_FUNCTIONS = ("evaluate", "fit", "predict")

__all__ = [*_SUBMODULES, *_FUNCTIONS, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(importlib.import_module("mirrorkit.train"), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
