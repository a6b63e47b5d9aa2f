"""Items of objects that give them by number, as the arrays of batches: `Fetcher`, `Processes`. Loads no TensorFlow."""

from __future__ import annotations

from mirrorkit.fetching.fetcher import Fetcher as Fetcher
from mirrorkit.fetching.fetcher import holds_arrays as holds_arrays
from mirrorkit.fetching.fetcher import lengths as lengths
from mirrorkit.fetching.forms import Leaf as Leaf
from mirrorkit.fetching.forms import as_arrays as as_arrays
from mirrorkit.fetching.forms import described as described
from mirrorkit.fetching.forms import lists_arrays as lists_arrays
from mirrorkit.fetching.forms import pack as pack
from mirrorkit.fetching.served import Processes as Processes
