"""The Keras that is installed, for tests of what only newer ones do."""

from __future__ import annotations

import pytest

from mirrorkit._keras import keras
from mirrorkit.supported import Version, written

KERAS: Version = tuple(int(part) for part in keras.__version__.split(".")[:2])


def needs_keras(oldest: Version, what: str) -> pytest.MarkDecorator:
    """Skip a test where Keras is older; `what` says what Keras itself does not do there."""
    return pytest.mark.skipif(oldest > KERAS, reason=f"{what} came with Keras {written(oldest)}")
