"""How long lists are printed, and addresses: without user, password and query.

Errors, log lines and the doctor pass through here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

# scheme://user:password@host/path?query; a password may hold slashes, and digits up to a slash are a port. Packages
# may name an address without scheme and host. The numbers keep the time short that a long text takes.
_USER = r"(?:[^\s/@:'\"]{0,999}(?::(?!\d+[/?])\S{0,999})?@)?"
_ADDRESS = re.compile(
    rf"([A-Za-z][\w+.-]{{1,19}}:/+){_USER}([^\s?'\"]*)(?:\?[^\s'\"]*)?|\?[^\s'\"?=]{{0,99}}=[^\s'\"]*"
    r"|(?<![^\s'\"])[^\s/@:'\"]{1,99}:[^\s/@'\"]{1,99}@"
)
_WITHIN = {ord("\n"): "\n  ", ord("\r"): "\\r", 27: "\\x1b"}  # 27 begins what a terminal takes for a command


def shown(text: str) -> str:
    """Return a text as it may be printed: addresses in it lose user and password, and the query becomes "?..."."""
    return _ADDRESS.sub(lambda found: f"{found[1] or ''}{found[2] or ''}{'?...' if '?' in found[0] else ''}", text)


def few(texts: Sequence[str], most: int = 3, between: str = ", ") -> str:
    """Return the first texts of a list, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def _keep_secrets(record: logging.LogRecord) -> bool:
    """Print a record as it may be; no name in it that somebody else chose begins a line of its own."""
    text = record.getMessage()
    if (safe := shown(text).translate(_WITHIN)) != text:
        record.msg, record.args = safe, None
    return True


logging.getLogger("mirrorkit").addFilter(_keep_secrets)
