"""The search attributes that Duly's workflows carry: which the namespace has, and adding what it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stack.temporal import SEARCH_ATTRIBUTES

if TYPE_CHECKING:
    from temporalio.client import Client

RPC_SECONDS: Final = 5  # an answer takes milliseconds


async def registered(client: Client) -> dict[str, str]:
    """Custom attributes of the namespace, name to type (``Keyword``). Raises RPCError."""
    from datetime import timedelta

    from temporalio.api.enums.v1 import IndexedValueType
    from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest

    answer = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace), timeout=timedelta(seconds=RPC_SECONDS)
    )
    return {
        name: _short(IndexedValueType.Name(value))  # type: ignore[arg-type, unused-ignore]
        for name, value in answer.custom_attributes.items()
    }


async def register(client: Client) -> list[str]:
    """Adds those that are missing and returns their names. Raises RPCError.

    Asking for an existing one with another type would be silently accepted, so only missing ones are asked for.
    """
    from datetime import timedelta

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
            timeout=timedelta(seconds=RPC_SECONDS),
        )
    return sorted(missing)


def wrong(there: dict[str, str]) -> dict[str, str]:
    """Attributes that are missing or of another type, with what was found."""
    return {
        name: there.get(name, "missing")
        for name, kind in SEARCH_ATTRIBUTES.items()
        if there.get(name, "missing").lower() != kind.lower()
    }


def _short(name: str) -> str:
    return name.removeprefix("INDEXED_VALUE_TYPE_").title().replace("_", "")
