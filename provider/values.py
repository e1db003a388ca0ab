"""What the texts of duly.toml take from an operation: ``{key}``, ``{payload.order.email}`` and the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from provider.documents import text_at
from provider.port import Call, Query
from provider.templates import PAYLOAD

Values = Callable[[str], str]
"""A placeholder's value for one operation. Raises UnfitError for what this operation does not have."""


class UnfitError(Exception):
    """The operation cannot be sent, or asked about, as it is."""


def values_of_call(call: Call) -> Values:
    """For a call."""

    def value(name: str) -> str:
        if name.startswith(f"{PAYLOAD}."):
            return _field(call.payload, name)
        return str(getattr(call, name))

    return value


def values_of_query(query: Query, idempotency_key: str) -> Values:
    """For a look-up under one of the keys that were used."""

    def value(name: str) -> str:
        if name.startswith(f"{PAYLOAD}."):
            return _field(query.payload, name)
        if name == "idempotency_key":
            return idempotency_key
        if name == "reference":
            if not query.reference:
                raise UnfitError("the provider gave no reference to ask by")
            return query.reference
        return str(getattr(query, name))

    return value


def _field(payload: Mapping[str, Any], name: str) -> str:
    path = name.partition(".")[2]
    found = text_at(payload, path)
    if found is None:
        raise UnfitError(f"the payload has no text or number {path}")
    return found
