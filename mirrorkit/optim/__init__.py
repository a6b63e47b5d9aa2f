"""Optimizer arithmetic as a pure function: (weights, slots, gradients) -> (new weights, new slots).

```python
new_weights, new_slots = mk.optim.functional_apply(optimizer, weights, slots, gradients)
```
"""

from __future__ import annotations

# The names "as" themselves are for mirrorkit's other packages.
from mirrorkit.optim.flat_pieces import FlatPiece as FlatPiece
from mirrorkit.optim.flat_pieces import build_for_pieces as build_for_pieces
from mirrorkit.optim.flat_pieces import decays as decays
from mirrorkit.optim.flat_pieces import ordinary_slots as ordinary_slots
from mirrorkit.optim.functional import functional_apply
from mirrorkit.optim.functional import schedule_of as schedule_of
from mirrorkit.optim.functional import trainable_variables as trainable_variables
from mirrorkit.optim.packed import Joined as Joined
from mirrorkit.optim.packed import Packed as Packed
from mirrorkit.optim.packed import slots_by_name as slots_by_name
from mirrorkit.optim.packed import treats_numbers_alike as treats_numbers_alike

__all__ = ["functional_apply"]
