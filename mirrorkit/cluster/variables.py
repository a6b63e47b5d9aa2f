"""What mirrorkit reads from environment variables itself, with errors that name the variable."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from mirrorkit.errors import ClusterError

JOB_TOKEN = "MIRRORKIT_JOB_TOKEN"


def number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return the whole number in the variable `name`, or `default` where it is not set."""
    text = environ.get(name, "" if default is None else str(default))
    if not re.fullmatch("[0-9]{1,18}", text):
        found = f"is {text!r}" if name in environ else "is not set"
        raise ClusterError(f"The environment variable {name} must be a whole number, but it {found}.")
    return int(text)


def job_token(environ: Mapping[str, str]) -> bytes | None:
    """Return the secret that all tasks of a job share; None where the variable is not set."""
    if JOB_TOKEN not in environ:
        return None
    if not environ[JOB_TOKEN]:
        raise ClusterError(f"{JOB_TOKEN} is set, but empty. Set it to the same secret in all tasks, or in none.")
    return os.fsencode(environ[JOB_TOKEN])
