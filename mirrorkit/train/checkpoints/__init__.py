"""Checkpoints: save a run now and then, go on from the newest one, save and leave when the machine is taken away.

Started again after it was interrupted, the same script finishes the epochs that it was asked for.
"""

from __future__ import annotations

from mirrorkit.train.checkpoints.callback import Checkpoints
from mirrorkit.train.checkpoints.restore import Restored, restore_newest

__all__ = ["Checkpoints", "Restored", "restore_newest"]
