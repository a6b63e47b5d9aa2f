"""Optimizer arithmetic as a pure function: (weights, slots, gradients) -> (new weights, new slots).

```python
new_weights, new_slots = mk.optim.functional_apply(optimizer, weights, slots, gradients)
```
"""

from __future__ import annotations

from mirrorkit.optim.functional import functional_apply

# The names "as" themselves are for mirrorkit's other packages.
from mirrorkit.optim.functional import schedule_of as schedule_of
from mirrorkit.optim.functional import trainable_variables as trainable_variables
from mirrorkit.optim.packed import Packed as Packed

__all__ = ["functional_apply"]
