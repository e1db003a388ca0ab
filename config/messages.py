"""What pydantic found, in words for the person who edits duly.toml."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import ErrorDetails

from config.kinds import BackoffSettings, KindSettings
from provider.registry import parse_provider
from provider.settings import (
    ConnectionSettings,
    HttpProviderSettings,
    IdempotencySettings,
    ReferenceSettings,
    Table,
)

# What the last part of a path means for the fields that it may hold.
_NESTED: Mapping[str, type[Table]] = {
    "idempotency": IdempotencySettings,
    "reference": ReferenceSettings,
    "backoff": BackoffSettings,
}
_TOP: Mapping[Any, type[Table]] = {
    parse_provider: HttpProviderSettings,
    ConnectionSettings.model_validate: ConnectionSettings,
    KindSettings.model_validate: KindSettings,
}
_EXAMPLES = {
    "owner": 'owner = "orders"',
    "connection": 'connection = "main"',
    "provider": 'provider = "sandbox"',
    "url": 'url = "https://api.example.com/messages"',
    "header": 'header = "Idempotency-Key"',
}
_TYPES = {
    "string_type": ("must be text", 'Put it in quotes: "…"'),
    "int_type": ("must be a whole number", "Write it without quotes and without a point"),
    "bool_type": ("must be true or false", "Write it without quotes"),
    "list_type": ("must be a list", 'Write ["one", "two"]'),
    "dict_type": ("must be a table", 'Write { name = "value" }'),
    "model_type": ("must be a table", 'Write { name = "value" }'),
    "model_attributes_type": ("must be a table", 'Write { name = "value" }'),
}


def explain(fault: ErrorDetails, parse: Callable[..., Any]) -> tuple[tuple[str, ...], str, str]:
    """Path inside the table, what is wrong, and the remedy."""
    # A list index has no line of its own.
    place = tuple(part for part in fault["loc"] if isinstance(part, str))
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in _TYPES:
        return (place, *_TYPES[kind])
    if kind == "missing":
        return place, "is missing", f"Add for example {_EXAMPLES.get(place[-1], place[-1] + ' = …')}"
    if kind == "extra_forbidden":
        return place, "is not known here", _known_fields(place, parse)
    if kind == "value_error":
        # Written by our own validators, with the remedy in it.
        return place, str(context.get("error", fault["msg"])), ""
    if kind == "literal_error":
        return place, f"is {fault['input']!r}", f"Give one of {context.get('expected', '')}"
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = context.get("ge", context.get("le"))
        return place, f"is {fault['input']!r}", f"Give at {'least' if 'ge' in context else 'most'} {bound}"
    return place, f"is not usable: {fault['msg'][:1].lower()}{fault['msg'][1:]}", "Correct it"


def _known_fields(place: tuple[str, ...], parse: Callable[..., Any]) -> str:
    table = _NESTED.get(place[-2]) if len(place) > 1 else _TOP.get(parse)
    if table is None:
        return "Remove it"
    known = [field.alias or name for name, field in table.model_fields.items()]
    near = difflib.get_close_matches(place[-1], known, 1)
    return f"Did you mean {near[0]}?" if near else f"Known are: {', '.join(known)}"
