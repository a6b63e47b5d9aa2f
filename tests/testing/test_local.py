from __future__ import annotations

import pytest

from mirrorkit import testing
from mirrorkit.errors import DeviceError, StrategyError


@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
def test_virtual_replicas_takes_the_first_devices(kind):
    strategy = testing.virtual_replicas(3, kind=kind)
    assert [name[-5:] for name in strategy.extended.worker_devices] == ["CPU:0", "CPU:1", "CPU:2"]


def test_more_than_there_are_after_the_start():
    with pytest.raises(DeviceError, match="already started with 4"):
        testing.virtual_replicas(5)


def test_a_kind_that_cannot_have_replicas():
    with pytest.raises(StrategyError, match="2 devices"):
        testing.virtual_replicas(2, kind="one_device")
