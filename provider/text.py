"""Makes text from outside fit to be kept: bounded, printable, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

LIMIT = 500  # characters of one detail: a few lines in a terminal, small beside the row that keeps it
REFERENCE_MAX = 200  # characters of a provider's id that are kept; the longest in use (URLs) are shorter
MASK = "[hidden]"
# A shorter "secret" would mask ordinary words, and nobody protects an account with three letters.
SECRET_MIN = 4
# Control characters (NUL cannot enter Postgres text), bidirectional controls (they forge what a terminal
# shows), lone surrogates (they cannot be encoded).
_UNFIT = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_SPACE = re.compile(r"\s+")


def clean(text: str | bytes, secrets: Iterable[str] = (), limit: int = LIMIT) -> str:
    """One line of at most ``limit`` characters in which none of ``secrets`` occurs. Never raises."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    # Before anything is cut, so that no half of a secret stays; the longest first, so that one that
    # contains another goes whole.
    for secret in sorted((s for s in secrets if len(s) >= SECRET_MIN), key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _SPACE.sub(" ", _UNFIT.sub("\ufffd", text)).strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def strings_within(value: Any) -> set[str]:
    """Every text in a JSON value: what must not come back to us in somebody's error message."""
    found: set[str] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            found.add(item)
        elif isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
    return found


def complaint(status: int, body: bytes | None, document: Any, location: str | None = None) -> str:
    """Status, where a redirect points, and what the body (and its JSON) says."""
    said = [f"status {status}"]
    if location is not None:
        said.append(f"Location: {location}")
    if body:
        said.append(clean(_words(document) or body))
    return ": ".join(said)


def _words(document: Any) -> str:
    """Code and message of the commonest forms of an error in JSON (RFC 9457, Stripe, PayPal, atproto)."""
    if isinstance(document, Mapping):
        inner = document.get("error")
        if isinstance(inner, Mapping):
            return _words(inner)
        names = ("type", "code", "error", "name", "title", "message", "detail", "error_description")
        return ", ".join(str(document[name]) for name in names if isinstance(document.get(name), str | int))
    return ""
