"""How many steps a compiled call takes."""

from __future__ import annotations

import tensorflow as tf

from mirrorkit.strategy import of_all_workers

_CALL_SECONDS = 0.5  # what "auto" aims at: long enough to hide the dispatch, short enough for a progress bar
_PROBE_STEPS = 4
_LEARNING_CALLS = 4  # how many calls "auto" looks at
_LONGER = 4  # times as long as the last one, at most: a call of a small last batch says little of the others


class CallLength:
    """How many steps a call takes: what the user said, or about half a second's worth, found from the first calls.

    The chief of `strategy` decides for all workers. Where an update takes several steps, a call takes a `multiple` of
    them (rounded up).
    """

    def __init__(self, strategy: tf.distribute.Strategy, asked: int | str, multiple: int = 1) -> None:
        self._strategy = strategy
        self._auto = asked == "auto"
        self._multiple = multiple
        self._steps = 1 if self._auto else int(asked)
        self._calls = 0

    def next(self, left: int | None) -> int:
        """Return the length of the next call when `left` steps remain, or None where that is unknown."""
        (steps,) = self._whole(self._steps)
        return steps if left is None else min(steps, left)

    def probes(self) -> tuple[int, ...]:
        """Return the lengths of the calls with which to rehearse: one that compiles, and one to learn from."""
        return self._whole(1, _PROBE_STEPS) if self._auto and self._calls < 2 else self._whole(1)

    def _whole(self, *lengths: int) -> tuple[int, ...]:
        """Return lengths of whole updates."""
        return tuple(-(-steps // self._multiple) * self._multiple for steps in lengths)

    def learn(self, steps: int, seconds: float) -> None:
        """Take in how long a call of `steps` took: the first compiles, the second decides, the next two may lengthen.

        A short call takes longer for each step than a long one, and any may compile for a last batch of another size.
        """
        self._calls += 1
        if self._auto and self._calls == 1:
            self._steps = _PROBE_STEPS
        elif self._auto and self._calls <= _LEARNING_CALLS:
            wanted = max(1, round(_CALL_SECONDS * steps / max(seconds, 1e-6)))
            wanted = int(of_all_workers(self._strategy, wanted)[0])
            longer = max(self._steps, min(wanted, _LONGER * self._steps))
            self._steps = wanted if self._calls == 2 else longer
