"""Data: load it, make batches of it, augment it, read it from disk, hand it to a strategy.

```python
digits = mk.data.load("mnist")                                # or mk.data.synthetic(), mk.data.arrays(images, labels)
train = mk.data.batches(digits.train, global_batch_size=256, shuffle=True, seed=0)
for x, y in train.dataset(epoch=0):                           # a tf.data.Dataset of global batches
    ...
```

`batches` and `records` (TFRecord shards, for data larger than memory) give a `Recipe`: it makes the batches of any
epoch from any step on, and the order of the examples is a pure function of (seed, epoch, position).
"""

from __future__ import annotations

from mirrorkit.data import augment
from mirrorkit.data.batches import Batches, batches
from mirrorkit.data.distribute import distribute
from mirrorkit.data.recipe import Recipe
from mirrorkit.data.records import Records, records
from mirrorkit.data.resident import Resident, resident
from mirrorkit.data.shards import write_records
from mirrorkit.data.sources import load
from mirrorkit.data.splits import DataSet, Split, arrays, class_indices, one_hot
from mirrorkit.data.synthetic import synthetic

__all__ = [
    "Batches",
    "DataSet",
    "Recipe",
    "Records",
    "Resident",
    "Split",
    "arrays",
    "augment",
    "batches",
    "class_indices",
    "distribute",
    "load",
    "one_hot",
    "records",
    "resident",
    "synthetic",
    "write_records",
]
