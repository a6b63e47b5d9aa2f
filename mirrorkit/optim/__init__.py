"""Optimizer arithmetic as a pure function: (weights, slots, gradients) -> (new weights, new slots).

```python
new_weights, new_slots = mk.optim.functional_apply(optimizer, weights, slots, gradients)
```
"""

from __future__ import annotations

# The names "as" themselves are for mirrorkit's other packages.
from mirrorkit.optim.by_rows import ByRows as ByRows, leaves_rows_alone as leaves_rows_alone
from mirrorkit.optim.functional import (
    functional_apply,
    schedule_of as schedule_of,
    trainable_variables as trainable_variables,
)
from mirrorkit.optim.other_weights import (
    StandIn as StandIn,
    build_for as build_for,
    decays as decays,
    twin_for as twin_for,
)
from mirrorkit.optim.packed import Joined as Joined, Packed as Packed, groups_of as groups_of
from mirrorkit.optim.slots import (
    places_of as places_of,
    slots_of as slots_of,
    treats_numbers_alike as treats_numbers_alike,
)

__all__ = ["functional_apply"]
