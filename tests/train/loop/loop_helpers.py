"""Plain functions for the tests of the loop."""

from __future__ import annotations

import mirrorkit as mk


def calls_of(loop: mk.train.Loop, steps: int | str) -> mk.train.Loop:
    """Another loop over the same step, with calls of other lengths: nothing is compiled again for it."""
    again = mk.train.Loop(loop.strategy, loop.step, steps_per_call=steps)
    assert again._passes is not None
    assert loop._passes is not None
    again._passes.calls = loop._passes.calls
    return again
