"""Objects in Python processes of their own: `Remote`, for benchmarks and the doctor. Loads no TensorFlow."""

from __future__ import annotations

from mirrorkit.remote.caller import Member as Member
from mirrorkit.remote.caller import Remote as Remote
