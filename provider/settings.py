"""The shape of ``[providers.X]`` and ``[connections.X]`` in duly.toml."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from provider.answers import check_overrides
from provider.documents import PATH
from provider.durations import PositiveDuration
from provider.look_up_settings import LookUpSettings
from provider.port import OutcomeName
from provider.table import Table, check_address
from provider.templates import MissingVariableError, check_template, expand

__all__ = [
    "ConnectionSettings",
    "HttpProviderSettings",
    "IdempotencySettings",
    "MissingVariableError",  # who reads these tables also fills in their variables
    "ProviderSettings",
    "ReferenceSettings",
    "Table",
    "expand",
]

# RFC 9110 5.1: a field name is a token.
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# Written by the transport or by the adapter; a second one would contradict the first.
_RESERVED = frozenset({"host", "content-length", "transfer-encoding", "connection", "expect", "te", "upgrade"})


def _check_headers(headers: dict[str, str]) -> dict[str, str]:
    seen: set[str] = set()
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name!r} is not a header name")
        if name.lower() in _RESERVED:
            raise ValueError(f"{name} is written by Duly itself; leave it out")
        if name.lower() in seen:
            raise ValueError(f"{name} is there twice")
        seen.add(name.lower())
        check_template(value)
    return headers


Headers = Annotated[dict[str, str], AfterValidator(_check_headers), Field(repr=False)]  # may hold a secret


class IdempotencySettings(Table):
    """``[providers.X.idempotency]``: how the provider recognises a repeat."""

    header: Annotated[str, Field(pattern=_TOKEN.pattern)]
    retention: PositiveDuration | None = None
    """Seconds for which the provider publishes that it replays its answer to a key. Given: it replays."""
    quoted: bool = False
    """Send the key as a structured-field String (the IETF draft) instead of bare."""
    stores_errors: bool = False
    """Whether the provider replays an error too (Stripe does), so that the same key can never succeed."""
    compares_body: bool | None = None
    max_length: Annotated[int, Field(ge=16, le=1000)] = 255  # 255: Stripe's limit, the commonest


class ReferenceSettings(Table):
    """``[providers.X.reference]``: where a good answer carries the provider's own id."""

    json_path: Annotated[str | None, Field(alias="json", pattern=PATH)] = None
    """Dotted path in the JSON body, ``data.id``; a number picks from a list."""
    header: Annotated[str | None, Field(pattern=_TOKEN.pattern)] = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.json_path is None) == (self.header is None):
            raise ValueError('give exactly one of json = "id" and header = "Location"')
        return self


class ProviderSettings(Table):
    """What every ``[providers.X]`` table has, whatever its adapter."""

    adapter: str
    call_limit: PositiveDuration = 10.0
    """Seconds: the total limit of one call, connecting included."""
    concurrency: Annotated[int, Field(ge=1, le=1000)] = 20
    """Calls at once, in each worker."""
    max_processing: PositiveDuration | None = None
    """Seconds for which the provider may still work on a request after we stopped waiting."""


class HttpProviderSettings(ProviderSettings):
    """``[providers.X]`` with ``adapter = "http"``."""

    adapter: Literal["http"]
    url: Annotated[str, Field(min_length=1), AfterValidator(check_address)]
    method: Literal["POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: Headers = Field(default_factory=dict)
    idempotency: IdempotencySettings | None = None
    answers: dict[str, str] = Field(default_factory=dict)
    """Status or class to outcome; see ``provider.answers`` for the default and for what is refused."""
    reference: ReferenceSettings | None = None
    look_up: LookUpSettings | None = None
    """How to ask whether an effect exists; None: it cannot be asked."""
    ca_file: str | None = None
    """PEM file with the authorities to trust instead of the public ones."""

    @field_validator("answers")
    @classmethod
    def _provable(cls, answers: dict[str, str]) -> dict[str, str]:
        check_overrides(answers)
        return answers

    @model_validator(mode="after")
    def _in_flight_needs_a_key(self) -> Self:
        if self.idempotency is None and OutcomeName.IN_FLIGHT in self.answers.values():
            raise ValueError('an answer "in_flight" means asking again with the same key: give [idempotency] header')
        return self


class ConnectionSettings(Table):
    """``[connections.X]``: one account at one provider."""

    provider: str
    headers: Headers = Field(default_factory=dict)
    """HTTP: added to the provider's own; the same name here wins."""
    username: str | None = None
    """SMTP: the account."""
    password: Annotated[str | None, Field(repr=False)] = None
    """SMTP: ``"${NAME}"``, so that it does not stand in a file."""

    @model_validator(mode="after")
    def _secret_elsewhere(self) -> Self:
        if self.password is not None and not self.password.startswith("${"):
            raise ValueError('a password does not belong in a file: write password = "${SMTP_PASSWORD}"')
        if (self.username is None) is not (self.password is None):
            raise ValueError("username and password belong together")
        return self
