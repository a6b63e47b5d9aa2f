"""Old names go on working for one release, and warn."""

from __future__ import annotations

import json
import sys
import types

import pytest

from mirrorkit._deprecation import old_argument, renamed
from mirrorkit.errors import ArgumentError


@pytest.fixture
def module(monkeypatch):
    old = types.ModuleType("mirrorkit_old")
    old.__getattr__ = renamed("mirrorkit_old", {"Wrong": "mirrorkit.errors.DataError", "meet": "json.dumps"})
    monkeypatch.setitem(sys.modules, "mirrorkit_old", old)
    return old


def test_an_old_name_is_the_new_thing_and_warns(module):
    message = r"mirrorkit_old\.meet is deprecated .* 0\.3: use json\.dumps"
    with pytest.warns(DeprecationWarning, match=message) as caught:
        assert module.meet is json.dumps
    assert caught[0].filename == __file__


def test_a_name_without_a_public_one_says_so(module):
    with pytest.warns(DeprecationWarning, match="never meant for other projects"):
        _ = module.Wrong  # mirrorkit.errors has no __all__


def test_an_unknown_name_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match="'mirrorkit_old' has no attribute 'other'"):
        _ = module.other


def test_an_old_argument_is_taken_and_warns():
    with pytest.warns(DeprecationWarning, match=r"f\(plot=\.\.\.\) is deprecated .*: use picture="):
        assert old_argument("f", "plot", "a.png", "picture", None) == "a.png"


def test_the_new_argument_is_silent(recwarn):
    assert old_argument("f", "plot", None, "picture", "a.png") == "a.png"
    assert not recwarn


def test_both_names_are_refused():
    with pytest.raises(ArgumentError, match="both picture= and plot="):
        old_argument("f", "plot", "a.png", "picture", "b.png")
