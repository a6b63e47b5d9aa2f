"""Items of objects that give them by number, as the arrays of batches: `Fetcher`, `fetched`. Loads no TensorFlow."""

from __future__ import annotations

from mirrorkit.fetching.ahead import fetched as fetched
from mirrorkit.fetching.fetcher import Fetcher as Fetcher, holds_arrays as holds_arrays, lengths as lengths
from mirrorkit.fetching.forms import (
    Leaf as Leaf,
    described as described,
    empty as empty,
    lists_arrays as lists_arrays,
    pack as pack,
)
from mirrorkit.fetching.served import Processes as Processes
