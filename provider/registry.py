"""Adapter name to adapter. To add one: write its class and add a line to ``ADAPTERS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from provider.http_adapter import HttpAdapter
from provider.port import Adapter
from provider.settings import ConnectionSettings, ProviderSettings

ADAPTERS: Mapping[str, type[HttpAdapter]] = MappingProxyType(
    {
        "http": HttpAdapter,
    }
)


def parse_provider(table: Mapping[str, Any]) -> ProviderSettings:
    """One ``[providers.X]`` table, checked by the settings of the adapter that it names.

    Raises ValueError for an adapter that does not exist and pydantic's ValidationError (a ValueError
    too, with the path of each fault) for the rest.
    """
    name = table.get("adapter")
    if not isinstance(name, str) or name not in ADAPTERS:
        raise ValueError(f"adapter = {name!r} does not exist; there is: {', '.join(ADAPTERS)}")
    return ADAPTERS[name].settings_type.model_validate(dict(table))


def build(
    providers: Mapping[str, ProviderSettings],
    connections: Mapping[str, ConnectionSettings],
    environ: Mapping[str, str],
    *,
    before_first_byte: Callable[[], None] | None = None,
) -> dict[str, Adapter]:
    """One adapter for each connection, with its secrets taken from ``environ`` now.

    ``before_first_byte`` is called in each call just before the last check of ``send_before`` (crash points).
    Raises MissingVariableError, or ValueError naming the connection.
    """
    adapters: dict[str, Adapter] = {}
    for name, connection in connections.items():
        settings = providers.get(connection.provider)
        if settings is None:
            raise ValueError(f"connection {name}: there is no provider {connection.provider!r}")
        adapter = ADAPTERS[settings.adapter]
        adapters[name] = adapter(
            name,
            adapter.settings_type.model_validate(settings),
            connection,
            environ,
            before_first_byte=before_first_byte,
        )
    return adapters
