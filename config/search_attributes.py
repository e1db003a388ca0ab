"""The search attributes that Duly's workflows carry: their types, which the namespace has, adding what it lacks.

Never personal data: search attributes are not encrypted. Importing this module does not import the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from temporalio.client import Client

SEARCH_ATTRIBUTES: Final[Mapping[str, str]] = {
    "DulyKind": "Keyword",
    "DulyState": "Keyword",
    "DulyProvider": "Keyword",
    "DulyTenant": "Keyword",
    "DulyDue": "Datetime",
    "DulyDeadline": "Datetime",
    "DulyWaitingSince": "Datetime",
}
"""Name to type: what operators filter by in the web UI."""

RPC_LIMIT: Final = timedelta(seconds=5)  # an answer takes milliseconds


async def registered(client: Client) -> dict[str, str]:
    """Custom attributes of the namespace, name to type (``Keyword``). Raises RPCError."""
    from temporalio.api.enums.v1 import IndexedValueType
    from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest

    answer = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace), timeout=RPC_LIMIT
    )
    return {
        name: _short(IndexedValueType.Name(value))  # type: ignore[arg-type, unused-ignore]
        for name, value in answer.custom_attributes.items()
    }


async def register(client: Client) -> list[str]:
    """Adds those that are missing and returns their names. Raises RPCError.

    Asking for an existing one with another type would be silently accepted, so only missing ones are asked for.
    """
    from temporalio.api.enums.v1 import IndexedValueType
    from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest

    there = await registered(client)
    missing = {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in there}
    if missing:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=client.namespace,
                search_attributes={
                    name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}") for name, kind in missing.items()
                },
            ),
            timeout=RPC_LIMIT,
        )
    return sorted(missing)


def usable(there: Mapping[str, str]) -> list[str]:
    """Those of ours that may be set here: registered, and of our type (another type would refuse the start)."""
    return [name for name in SEARCH_ATTRIBUTES if name not in wrong(there)]


def wrong(there: Mapping[str, str]) -> dict[str, str]:
    """Attributes that are missing or of another type, with what was found."""
    return {
        name: there.get(name, "missing")
        for name, kind in SEARCH_ATTRIBUTES.items()
        if there.get(name, "missing").lower() != kind.lower()
    }


def _short(name: str) -> str:
    return name.removeprefix("INDEXED_VALUE_TYPE_").title().replace("_", "")
