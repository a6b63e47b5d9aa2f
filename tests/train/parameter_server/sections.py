"""Functions whose results, or errors, a script prints for the tests, each under its name."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any


def run(*sections: Callable[[], Any]) -> None:
    """Run each, and print one line of JSON: for each name a "result", or the "error" of this section alone."""
    seen: dict[str, dict[str, Any]] = {}
    for section in sections:
        try:
            seen[section.__name__] = {"result": section()}
        except Exception:
            seen[section.__name__] = {"error": traceback.format_exc()}
    print(json.dumps(seen))


def result(seen: dict[str, dict[str, Any]], name: str) -> Any:
    """What a section returned; an AssertionError with its traceback where it failed."""
    assert "error" not in seen[name], f"{name} failed:\n{seen[name]['error']}"
    return seen[name]["result"]
