"""`python -m mirrorkit doctor`: checks of versions, GPUs, network and storage before the first step.

Each file holds the checks of one kind; a check yields `Finding`s. What needs TensorFlow runs in a child process with a
time limit (`probe.py`), so the other checks work even if TensorFlow cannot be imported.
"""

from __future__ import annotations

# For mirrorkit's command line.
from mirrorkit.doctor.versions import in_a_line as in_a_line

__all__: list[str] = []
