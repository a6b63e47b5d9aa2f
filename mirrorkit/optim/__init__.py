"""Optimizer arithmetic as a pure function: (weights, slots, gradients) -> (new weights, new slots).

```python
new_weights, new_slots = mk.optim.functional_apply(optimizer, weights, slots, gradients)
```
"""

from __future__ import annotations

from mirrorkit.optim.functional import functional_apply

__all__ = ["functional_apply"]
