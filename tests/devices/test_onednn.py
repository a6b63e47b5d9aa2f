from __future__ import annotations

import pytest

from mirrorkit.devices import onednn


@pytest.mark.parametrize(
    ("variable", "flags", "enabled", "expected"),
    [
        (None, {"avx2"}, False, True),
        ("0", {"avx2"}, False, False),
        (None, {"avx2", "avx512_vnni"}, True, False),
        (None, set(), False, False),
        (None, {"avx2"}, None, False),
    ],
    ids=["AVX2", "decided", "on", "not x86", "not known"],
)
def test_onednn_is_left_off_only_where_it_could_be_on_and_nobody_decided(
    monkeypatch, variable, flags, enabled, expected
):
    monkeypatch.delenv(onednn.VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(onednn.VARIABLE, variable)
    monkeypatch.setattr(onednn.processor, "flags", lambda: frozenset(flags))
    monkeypatch.setattr(onednn, "enabled", lambda: enabled)
    assert onednn.left_off() is expected
