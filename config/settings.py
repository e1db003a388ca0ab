"""duly.toml: read, checked as a whole, every fault at once with its line."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from config.kinds import MAX_CALL_LIMIT, KindPolicy, KindSettings, default_settle, lease_for, least_settle
from config.locate import dotted, locate, syntax_error
from config.messages import explain
from config.problems import ConfigError, Problem
from provider.registry import describe, parse_provider
from provider.settings import (
    ConnectionSettings,
    MissingVariableError,
    ProviderSettings,
    expand,
)

SECTIONS = ("providers", "connections", "kinds")
NAME_LIMIT = 100  # characters of a provider's, connection's or kind's name; they stand in queues, metrics and tables

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Settings:
    """What duly.toml says. Made by ``load``, so it is consistent."""

    path: Path
    providers: Mapping[str, ProviderSettings]
    connections: Mapping[str, ConnectionSettings]
    kinds: Mapping[str, KindSettings]
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Values that came from the environment, when it was given: not for logs. Addresses are none."""

    def policy(self, kind: str) -> KindPolicy:
        """The kind with all that follows from it. Raises KeyError for a kind that is not in duly.toml."""
        settings = self.kinds[kind]
        connection = self.connections[settings.connection]
        provider = self.providers[connection.provider]
        descriptor = describe(provider)
        lease = lease_for(provider.call_limit)
        return KindPolicy(
            name=kind,
            connection=settings.connection,
            provider=connection.provider,
            owner=settings.owner,
            required=tuple(settings.required),
            max_attempts=settings.max_attempts,
            call_limit=provider.call_limit,
            lease=lease,
            settle=settings.settle or default_settle(lease, descriptor.max_processing),
            accepted_bound=settings.accepted_bound,
            start_lead=settings.start_lead,
            look_ups=tuple(settings.look_ups) if descriptor.look_up_by else (),
            look_up_lag=descriptor.look_up_lag,
            look_up_conclusive=descriptor.look_up_conclusive,
            repeat_within=descriptor.retention_safe if settings.repeat and descriptor.replays_keys else 0.0,
            stores_errors=descriptor.stores_errors,
            second_person=settings.second_person,
            backoff_base=settings.backoff.base,
            backoff_cap=settings.backoff.cap,
        )

    def ledger_rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Kinds and connections as ``ledger.transitions.configure`` takes them; durations in seconds."""
        kept_here = {"provider", "backoff_base", "backoff_cap"}  # the ledger takes delays, not how they are made
        kinds = [
            {name: value for name, value in asdict(self.policy(kind)).items() if name not in kept_here}
            for kind in sorted(self.kinds)
        ]
        for row in kinds:
            row["required"], row["look_ups"] = list(row["required"]), list(row["look_ups"])
        connections = [
            {"name": name, "provider": settings.provider} for name, settings in sorted(self.connections.items())
        ]
        return kinds, connections

    def used_providers(self) -> list[str]:
        """Names of the providers that a connection uses. Each has a task queue of its own."""
        return sorted({connection.provider for connection in self.connections.values()})


def load(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Reads and checks duly.toml. With ``environ`` also that each ``${NAME}`` of a used provider is there.

    Raises ConfigError with every fault found.
    """
    text = _read(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line, message = syntax_error(error, text)
        raise ConfigError(
            [Problem(str(path), line, "", f"this is not TOML: {message}", "See https://toml.io")]
        ) from None
    check = _Check(path, text)
    providers, connections, kinds = check.sections(document)
    check.references(providers, connections, kinds)
    if environ is not None:
        check.variables(document, connections, environ)
    if check.problems:
        raise ConfigError(sorted(check.problems, key=lambda problem: problem.line or 0))
    return Settings(path, providers, connections, kinds, frozenset(check.secrets))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        remedy = "Set DULY_CONFIG to the file, or start from the duly.toml of the repository"
        raise ConfigError([Problem(str(path), None, "", f"cannot be read: {error.strerror}", remedy)]) from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ConfigError([Problem(str(path), line, "", "this is not UTF-8", "Save the file as UTF-8")]) from None


class _Check:
    """Collects the faults of one document."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        self.problems: list[Problem] = []
        self.secrets: set[str] = set()

    def add(self, path: Sequence[str], what: str, remedy: str) -> None:
        self.problems.append(Problem(str(self.path), locate(path, self.text), dotted(path), what, remedy))

    def sections(
        self, document: Mapping[str, Any]
    ) -> tuple[dict[str, ProviderSettings], dict[str, ConnectionSettings], dict[str, KindSettings]]:
        for name in document:
            if name not in SECTIONS:
                self.add((name,), "is not known here", f"Known are: {', '.join(SECTIONS)}")
        for name in SECTIONS:
            if name not in document:
                self.add((name,), "is missing", f"Add a table [{name}.NAME]")
        return (
            self._tables(document, "providers", parse_provider),
            self._tables(document, "connections", ConnectionSettings.model_validate),
            self._tables(document, "kinds", KindSettings.model_validate),
        )

    def _tables(
        self, document: Mapping[str, Any], section: str, parse: Callable[[Mapping[str, Any]], Model]
    ) -> dict[str, Model]:
        found: dict[str, Model] = {}
        tables = document.get(section, {})
        if not isinstance(tables, Mapping):
            self.add((section,), "must hold tables", f"Write [{section}.NAME]")
            return found
        for name, table in tables.items():
            at = (section, name)
            if not _is_name(name):
                self.add(
                    at, "is not a usable name", f"Use 1 to {NAME_LIMIT} of A-Z a-z 0-9 . _ - and begin with a letter"
                )
            if not isinstance(table, Mapping):
                self.add(at, "must be a table", f"Write [{dotted(at)}]")
                continue
            try:
                found[name] = parse(table)
            except ValidationError as error:
                for fault in error.errors(include_url=False):
                    place, what, remedy = explain(fault, parse)
                    self.add((*at, *place), what, remedy)
            except ValueError as error:  # the adapter
                self.add((*at, "adapter"), str(error), 'For most providers: adapter = "http"')
        return found

    def references(
        self,
        providers: Mapping[str, ProviderSettings],
        connections: Mapping[str, ConnectionSettings],
        kinds: Mapping[str, KindSettings],
    ) -> None:
        for name, provider in providers.items():
            if provider.call_limit > MAX_CALL_LIMIT:
                self.add(("providers", name, "call_limit"), "is over ten minutes", 'Give at most "10m"')
        known = self._named("providers")
        for name, connection in connections.items():
            if connection.provider not in known:
                self._unknown(("connections", name, "provider"), connection.provider, known)
        known = self._named("connections")
        for name, kind in kinds.items():
            at = ("kinds", name)
            if kind.connection not in known:
                self._unknown((*at, "connection"), kind.connection, known)
            if kind.backoff.base > kind.backoff.cap:
                self.add((*at, "backoff"), "has a base longer than its cap", "Swap them, or raise the cap")
            used = connections.get(kind.connection)
            used_provider = providers.get(used.provider) if used else None
            if used_provider and kind.settle is not None:
                least = least_settle(lease_for(used_provider.call_limit), describe(used_provider).max_processing)
                if kind.settle < least:
                    what = f"is shorter than {least:g} s, until when a request of a frozen worker may still take effect"
                    self.add((*at, "settle"), what, "Absence would be believed too early. Leave it out for the default")

    def _named(self, section: str) -> list[str]:
        """Names in the document, also of tables with other faults: one fault must not cause a second message."""
        tables = tomllib.loads(self.text).get(section)
        return list(tables) if isinstance(tables, Mapping) else []

    def _unknown(self, path: Sequence[str], name: str, known: Sequence[str]) -> None:
        near = difflib.get_close_matches(name, known, 1)
        remedy = f"Did you mean {near[0]!r}?" if near else f"There is: {', '.join(known) or 'none'}"
        self.add(path, f"names {name!r}, which does not exist", remedy)

    def variables(
        self, document: Mapping[str, Any], connections: Mapping[str, ConnectionSettings], environ: Mapping[str, str]
    ) -> None:
        used = [("connections", name) for name in connections]
        used += [("providers", name) for name in sorted({c.provider for c in connections.values()})]
        for section, name in used:
            table = document.get(section, {})
            for path, text in _texts(table.get(name), (section, name)):
                for variable in self._missing(text, environ):
                    what = f"the environment variable {variable} is not set (or empty)"
                    self.add(path, what, f"Say: export {variable}=…")

    def _missing(self, text: str, environ: Mapping[str, str]) -> list[str]:
        """Variables that ``text`` needs and ``environ`` lacks. The values of the others are kept as secrets."""
        missing: dict[str, str] = {}
        while True:
            try:
                expand(text, {**environ, **missing}, self._note_secret)
            except MissingVariableError as error:
                missing[error.name] = "…"
            else:
                return list(missing)

    def _note_secret(self, _variable: str, value: str) -> None:
        if not value.startswith(("http://", "https://")):
            self.secrets.add(value)


def _is_name(name: str) -> bool:
    plain = name.replace(".", "").replace("_", "").replace("-", "")
    return plain.isalnum() and name.isascii() and name[0].isalpha() and len(name) <= NAME_LIMIT


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _texts(part, (*path, name))
