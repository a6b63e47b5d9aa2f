"""Names that `mk.cluster` and `mk.devices` exported in 0.1."""

from __future__ import annotations

import pytest

import mirrorkit as mk
from mirrorkit.cluster import cluster, network, rendezvous
from mirrorkit.devices import layout, verification


@pytest.mark.parametrize(
    ("module", "name", "now", "advice"),
    [
        (mk.cluster, "TASK_TYPES", cluster.TASK_TYPES, "never meant for other projects"),
        (mk.cluster, "check_network", network.require_network, "never meant for other projects"),
        (mk.cluster, "meet", rendezvous.wait_for_all, "never meant for other projects"),
        (mk.devices, "share_hardware", layout.share_physical_device, "never meant for other projects"),
        (mk.devices, "Report", verification.Verification, "use mirrorkit.devices.Verification"),
    ],
)
def test_an_old_name_still_works_and_warns(module, name, now, advice):
    assert name not in module.__all__
    with pytest.warns(DeprecationWarning, match=advice):
        assert getattr(module, name) is now
