"""Models by name: `create("mnist_cnn")`, `names()`, and `register` for your own.

```python
model = mk.models.create("mnist_cnn")
model = mk.models.create("wide_resnet", num_classes=100, depth=16, width=4)
```

Every model takes `input_shape` and `num_classes`, takes pixels from 0 to 255, and returns logits. The builders'
docstrings (`help(mk.models.mnist_cnn)`) give each model's default size: trainable parameters, and the FLOPs of one
forward pass, counted as two per multiply-add of the convolutions and dense layers.
"""

from __future__ import annotations

from mirrorkit.models.cnn import cifar_cnn, mnist_cnn
from mirrorkit.models.dense import linear, mlp
from mirrorkit.models.registry import (
    create,
    find as find,  # for mirrorkit's other packages
    names,
    register,
)
from mirrorkit.models.resnet import resnet20, resnet32, resnet56, speed_net, wide_resnet

__all__ = [
    "cifar_cnn",
    "create",
    "linear",
    "mlp",
    "mnist_cnn",
    "names",
    "register",
    "resnet20",
    "resnet32",
    "resnet56",
    "speed_net",
    "wide_resnet",
]
