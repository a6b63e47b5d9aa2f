"""`python -m mirrorkit doctor`: what goes wrong before the first step, found before the first step.

Each file holds checks of one kind; a check returns `Finding`s. What needs TensorFlow runs in a child process with a
time limit (`probe.py`), so the settings are checked even where TensorFlow cannot be imported.
"""

from __future__ import annotations

# For mirrorkit's command line.
from mirrorkit.doctor.versions import in_a_line as in_a_line

__all__: list[str] = []
