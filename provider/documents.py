"""Values in JSON documents, named by dotted paths: a provider's answers and an operation's payload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

PATH = r"^[^.]+(\.[^.]+)*$"
"""A dotted path, ``data.id``; a number picks from a list."""


def parse(body: bytes) -> Any:
    """The JSON, or None for what is none (and for ``null``)."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def at(document: Any, path: str) -> Any:
    """What a dotted path names, or None."""
    for step in path.split("."):
        if isinstance(document, Mapping):
            document = document.get(step)
        elif isinstance(document, list) and step.isascii() and step.isdigit() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document


def text_at(document: Any, path: str) -> str | None:
    """A text, number or truth value as text; None for anything else, absent values included."""
    found = at(document, path)
    if isinstance(found, str):
        return found
    return json.dumps(found) if isinstance(found, bool | int | float) else None


def id_at(document: Any, path: str) -> str | None:
    """A text or whole number as text; None for anything else."""
    found = at(document, path)
    return str(found) if isinstance(found, str | int) and not isinstance(found, bool) else None
