"""Whole numbers from environment variables, with an error that names the variable."""

from __future__ import annotations

from collections.abc import Mapping

from mirrorkit.errors import ClusterError


def number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return the whole number in the variable `name`, or `default` where it is not set."""
    text = environ.get(name, "" if default is None else str(default))
    if not text.isascii() or not text.isdigit():
        found = f"is {text!r}" if name in environ else "is not set"
        raise ClusterError(f"The environment variable {name} must be a whole number, but it {found}.")
    return int(text)
