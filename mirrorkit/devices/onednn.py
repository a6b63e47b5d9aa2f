"""oneDNN's convolutions, pooling and matrix products on the CPU, and whether TensorFlow uses them.

TensorFlow decides by the processor: with AVX-512 VNNI, AVX-VNNI, AMX and the like it takes oneDNN, with AVX2 alone its
own older kernels, which are slower for convolutions. It decides when it is imported, so only the environment can change
that.
"""

from __future__ import annotations

import os

from mirrorkit import private, processor

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
HINT = (
    "TensorFlow left oneDNN off, as it does on processors without AVX-512 VNNI or the like. Convolutions are often "
    f"much faster with it: set {VARIABLE}=1 in the environment, before TensorFlow is imported, and compare; "
    f"{VARIABLE}=0 keeps it off and silences this message."
)


def enabled() -> bool | None:
    """Return whether TensorFlow uses oneDNN on the CPU; None where it does not say. GPUs are not affected."""
    # No public function tells it, and TensorFlow's rule, repeated here, would be wrong on the next processor.
    tells = private.get("_pywrap_util_port.IsMklEnabled")
    return tells and tells()


def left_off() -> bool:
    """Return whether oneDNN is off on a processor with AVX2 and nobody decided that by $TF_ENABLE_ONEDNN_OPTS."""
    return VARIABLE not in os.environ and "avx2" in processor.flags() and enabled() is False
