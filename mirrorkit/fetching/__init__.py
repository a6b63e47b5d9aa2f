"""Items of objects that give them by number, as the arrays of batches: `Fetcher`, `Processes`. Loads no TensorFlow."""

from __future__ import annotations

from mirrorkit.fetching.fetcher import (
    Fetcher as Fetcher,
    holds_arrays as holds_arrays,
    index_of as index_of,
    lengths as lengths,
)
from mirrorkit.fetching.forms import (
    Leaf as Leaf,
    as_arrays as as_arrays,
    described as described,
    lists_arrays as lists_arrays,
    pack as pack,
)
from mirrorkit.fetching.served import Processes as Processes
