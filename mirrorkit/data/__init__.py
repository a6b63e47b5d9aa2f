"""Data: load it, make batches of it, augment it, read it from disk, distribute it to the replicas.

```python
digits = mk.data.load("mnist")                                # or mk.data.synthetic(), mk.data.arrays(images, labels)
train = mk.data.batches(digits.train, global_batch_size=256, shuffle=True, seed=0)
for x, y in train.dataset(epoch=0):                           # a tf.data.Dataset of global batches
    ...
```

`batches`, `resident` (kept on the devices), `records` (TFRecord files, for data larger than memory), `image_folder`
(image files), `parquet` (tables), `source` (any object that returns examples by index), `from_function` (your own
datasets, one for each worker) and `mix` (several of these) give a `Recipe`. It makes the batches of any epoch, from any
step on. The order of the examples is a pure function of (seed, epoch, position).
"""

from __future__ import annotations

from mirrorkit.data import augment
from mirrorkit.data.distribution import distribute
from mirrorkit.data.drawn_digits import synthetic
from mirrorkit.data.image_files import image_folder
from mirrorkit.data.in_memory import Batches, batches
from mirrorkit.data.mixture import mix
from mirrorkit.data.on_device import Resident, resident
from mirrorkit.data.own_function import FromFunction as FromFunction, from_function
from mirrorkit.data.parquet_files import parquet
from mirrorkit.data.random_access import RandomAccess as RandomAccess, source
from mirrorkit.data.recipe import Recipe
from mirrorkit.data.record_files import write_records
from mirrorkit.data.sources import load
from mirrorkit.data.splits import Split, Splits, arrays, class_indices, one_hot
from mirrorkit.data.tfrecords import Records, records

# for mirrorkit's other packages
from mirrorkit.data.augment import RowsToMake as RowsToMake  # isort: skip
from mirrorkit.data.disk import crc32 as crc32  # isort: skip
from mirrorkit.data.distribution import untuned as untuned  # isort: skip
from mirrorkit.data.nests import of_user as of_user, without_none as without_none  # isort: skip
from mirrorkit.data.order import order_of as order_of  # isort: skip
from mirrorkit.data.worker_rows import bounds as bounds, own_rows as own_rows  # isort: skip
from mirrorkit.data.preparation import PreparedRecipe as PreparedRecipe  # isort: skip
from mirrorkit.data.stored_array import HOST as HOST  # isort: skip

__all__ = [
    "Batches",
    "Recipe",
    "Records",
    "Resident",
    "Split",
    "Splits",
    "arrays",
    "augment",
    "batches",
    "class_indices",
    "distribute",
    "from_function",
    "image_folder",
    "load",
    "mix",
    "one_hot",
    "parquet",
    "records",
    "resident",
    "source",
    "synthetic",
    "write_records",
]
