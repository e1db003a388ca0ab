"""Adapter name to adapter. To add one: write its class, add a line to ``ADAPTERS`` and a harness for it to
``tests/conformance``, which then runs every scenario against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from provider.http_adapter import HttpAdapter
from provider.port import Adapter, Descriptor
from provider.settings import ConnectionSettings, ProviderSettings
from provider.smtp_adapter import SmtpAdapter


class AdapterType(Protocol):
    """What a class of adapters offers. Its settings are of ``settings_type``."""

    @property
    def settings_type(self) -> type[ProviderSettings]: ...

    def describe(self, settings: Any, /) -> Descriptor: ...

    def __call__(
        self,
        name: str,
        settings: Any,
        connection: ConnectionSettings,
        environ: Mapping[str, str],
        *,
        before_first_byte: Callable[[], None] | None = None,
    ) -> Adapter: ...


ADAPTERS: Mapping[str, AdapterType] = MappingProxyType(
    {
        "http": HttpAdapter,
        "smtp": SmtpAdapter,
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


def describe(settings: ProviderSettings) -> Descriptor:
    """What a provider can do by its table in duly.toml; the environment has no say in it."""
    return ADAPTERS[settings.adapter].describe(settings)


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
