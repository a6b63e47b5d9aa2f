"""Messages between tasks that are about to start: lines of JSON, bounded in length, signed by a job token.

A line is `MAC JSON`. The host opens a connection with a nonce, and the guest's first line holds one of its own. Where
there is a token, MAC is the HMAC-SHA256 of sender, both nonces and JSON under it, so that a line is worth nothing on
another connection; the token itself is never sent. Without a token MAC is "-". What comes in is not trusted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNSIGNED = "-"
_GREETING = "mirrorkit "
_NONCE = re.compile(r"[0-9a-f]{32}")
_LEAST = 2**16  # bytes that a line may have, in any cluster


class NotOurs(ValueError):
    """What came is not a message of this protocol."""


def longest(hello: Mapping[str, Any]) -> int:
    """Return the most bytes that a line may have, given what one task says of itself: the others say about as much."""
    return max(_LEAST, 4 * len(json.dumps(hello)))


def new_nonce() -> str:
    """Return a number that no other connection has."""
    return secrets.token_hex(16)


def greeting(nonce: str) -> bytes:
    """Return the line with which the host opens a connection."""
    return f"{_GREETING}{nonce}\n".encode()


def nonce_of_greeting(line: bytes) -> str:
    """Return the host's nonce."""
    return require_nonce(line.decode("ascii", "replace").removeprefix(_GREETING).removesuffix("\n"))


def require_nonce(found: object) -> str:
    """Return `found`, which must be a nonce."""
    if not _NONCE.fullmatch(str(found)):
        raise NotOurs
    return str(found)


@dataclass(frozen=True)
class Message:
    """What a line held."""

    mac: str
    text: str  # that `mac` signs
    values: dict[str, Any]


def read(line: bytes) -> Message:
    """Take a line apart. It may come from anybody: see `Signature.fits`.

    Raises:
        NotOurs: it is none of a task.
        RecursionError: it holds too many lists or dicts within each other.
    """
    try:
        mac, _, text = line.decode("ascii").removesuffix("\n").partition(" ")
        values = json.loads(text)
    except ValueError as error:
        raise NotOurs from error
    if not isinstance(values, dict):
        raise NotOurs
    return Message(mac, text, values)


@dataclass(frozen=True)
class Signature:
    """Signs and checks the lines of one connection."""

    token: bytes | None
    host: str  # nonce
    guest: str

    def line(self, sender: str, values: Mapping[str, Any]) -> bytes:
        """Return a signed line; `sender` is "host" or "guest"."""
        text = json.dumps(values)
        return f"{self._mac(sender, text)} {text}\n".encode()

    def fits(self, sender: str, message: Message) -> bool:
        """Return whether the sender has the same token as this task; True where both have none."""
        return hmac.compare_digest(self._mac(sender, message.text), message.mac)

    def _mac(self, sender: str, text: str) -> str:
        if self.token is None:
            return UNSIGNED
        return hmac.new(self.token, f"{sender} {self.host} {self.guest} {text}".encode(), hashlib.sha256).hexdigest()


def printable(text: object, *, length: int = 2000) -> str:
    """Return a text that came from another machine as a message may show it: short, without control characters."""
    shown = "".join(c if c.isprintable() else "?" for c in str(text)[:length])
    return shown if len(str(text)) <= length else f"{shown}..."
