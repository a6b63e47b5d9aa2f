"""Model parallelism: a model larger than one device, under the same `Step` and `Loop`."""

from __future__ import annotations

# The names "as" themselves are for mirrorkit's other packages.
from mirrorkit.parallel.balance import balanced_rules
from mirrorkit.parallel.following import follow_variables as follow_variables
from mirrorkit.parallel.layout import Layout
from mirrorkit.parallel.partitioned_table import PartitionedTable
from mirrorkit.parallel.recompute import Recompute

__all__ = ["Layout", "PartitionedTable", "Recompute", "balanced_rules"]
