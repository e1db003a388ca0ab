"""The generic HTTP adapter: everything about a provider that can be said in duly.toml.

This is also the one to copy for a provider that needs code of its own.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from provider.answers import AnswerTable
from provider.documents import id_at, parse
from provider.http_look_up import LookUp
from provider.http_request import Address, Headers, body_of, rendering_of, scope_of
from provider.port import Call, Descriptor, Finding, FindingName, Outcome, OutcomeName, Query
from provider.retry_after import retry_after
from provider.settings import ConnectionSettings, HttpProviderSettings
from provider.text import REFERENCE_MAX, clean, complaint, strings_within
from provider.transport import Exchange, Phase, Transport
from provider.values import UnfitError, values_of_call


class HttpAdapter:
    """One connection of a provider that is described by settings. Sends the payload as JSON."""

    settings_type: ClassVar[type[HttpProviderSettings]] = HttpProviderSettings

    def __init__(
        self,
        name: str,
        settings: HttpProviderSettings,
        connection: ConnectionSettings,
        environ: Mapping[str, str],
        *,
        before_first_byte: Callable[[], None] | None = None,
    ) -> None:
        """Takes the secrets from ``environ`` now.

        Raises MissingVariableError, or ValueError for what cannot be used once the variables are filled in.
        """
        if connection.username is not None:
            raise ValueError(f"connection {name}: an HTTP provider takes its credential from headers, not username")
        self._name = name
        self._settings = settings
        self._answers = AnswerTable(settings.answers)
        self._secrets: set[str] = set()
        self._address = Address(name, settings.url, environ, self._secrets)
        self._headers = Headers(settings, connection, environ, self._secrets)
        self._descriptor = self.describe(settings)
        self._scope = scope_of(connection.provider, name, self._address, self._headers)
        self._rendering = rendering_of(settings, self._address, self._headers)
        self._transport = Transport(
            ca_file=settings.ca_file, secrets=self._secrets, before_first_byte=before_first_byte
        )
        self._look_up: LookUp | None = None
        if settings.look_up is not None:
            self._look_up = LookUp(
                settings.look_up,
                name,
                environ,
                self._secrets,
                transport=self._transport,
                headers=self._headers.of_query,
            )

    def __repr__(self) -> str:
        return f"HttpAdapter({self._name}: {self._settings.method} {self._address.shown})"

    @property
    def descriptor(self) -> Descriptor:
        """What the settings say that the provider can do."""
        return self._descriptor

    @property
    def scope(self) -> str:
        """Provider, connection, host and a fingerprint of whatever says who we are there."""
        return self._scope

    @property
    def rendering(self) -> str:
        """Changes with method, address, plain headers and the rule for the body."""
        return self._rendering

    async def perform(self, call: Call) -> Outcome:
        """One request; see the port."""
        try:
            url = self._address.fill(values_of_call(call))
            headers = self._headers.of_call(call)
            body = body_of(call.payload)
        except UnfitError as exc:
            return Outcome(OutcomeName.INVALID, sent=False, detail=clean(str(exc)))
        except Exception as exc:  # noqa: BLE001 - ours, and nothing has left: the port asks for an outcome
            return Outcome(
                OutcomeName.DEFECT, sent=False, detail=self._clean(f"{type(exc).__name__}: {exc}", call.payload)
            )
        exchange = await self._transport.send(
            self._settings.method, url, headers, body, time_limit=call.time_limit, send_before=call.send_before
        )
        try:
            outcome, reference, detail = self._judged(exchange)
        except Exception as exc:  # noqa: BLE001 - a fault in reading an answer must not lose that bytes left
            outcome = OutcomeName.UNKNOWN if exchange.sent else OutcomeName.DEFECT
            reference, detail = None, f"could not read the answer: {_told(exc)}"
        return Outcome(
            outcome,
            sent=exchange.sent,
            status_code=exchange.status,
            reference=reference,
            detail=self._clean(detail, call.payload) if detail else "",
            retry_after=retry_after(exchange.values("retry-after"), exchange.values("date"), time.time()),
            request_digest=self._digest(call, body),
            call_seconds=exchange.call_seconds,
        )

    async def look_up(self, query: Query) -> Finding:
        """A request for each page; see the port. A cancellation passes: there is nothing to record."""
        if self._look_up is None:
            return Finding(FindingName.CANNOT_TELL, detail="this provider cannot be asked")
        try:
            found = await self._look_up.ask(query)
        except Exception as exc:  # noqa: BLE001 - a fault of ours proves nothing about the effect
            found = Finding(FindingName.CANNOT_TELL, detail=f"could not ask: {_told(exc)}")
        return replace(found, detail=self._clean(found.detail, query.payload))

    async def close(self) -> None:
        """Release connections."""
        await self._transport.close()

    @staticmethod
    def describe(settings: HttpProviderSettings) -> Descriptor:
        """What the settings say that the provider can do, and no more."""
        idempotency = settings.idempotency
        look_up = settings.look_up
        table = AnswerTable(settings.answers)
        retention = (idempotency.retention if idempotency else None) or 0.0
        return Descriptor(
            key_carrier=f"header:{idempotency.header}" if idempotency else None,
            key_max_length=idempotency.max_length if idempotency else Descriptor().key_max_length,
            retention_published=retention,
            retention_safe=retention / 2,  # the other half is for clocks, queues and the provider's optimism
            replays_keys=retention > 0,
            stores_errors=idempotency.stores_errors if idempotency else False,
            compares_body=idempotency.compares_body if idempotency else None,
            not_processed_codes=frozenset(
                status for status in range(300, 600) if table.outcome(status) is OutcomeName.NOT_PROCESSED
            ),
            look_up_by=look_up.by if look_up else None,
            look_up_lag=look_up.lag if look_up else None,
            look_up_conclusive=look_up.conclusive if look_up else False,
            max_processing=settings.max_processing or 0.0,
        )

    def _judged(self, exchange: Exchange) -> tuple[OutcomeName, str | None, str]:
        """Outcome, reference and detail of one exchange."""
        if exchange.phase is Phase.UNKNOWN:
            return OutcomeName.UNKNOWN, None, exchange.detail
        if exchange.status is None:
            if exchange.untrusted:
                return OutcomeName.DENIED, None, exchange.detail
            return (OutcomeName.DEFECT if exchange.own_fault else OutcomeName.NOT_SENT), None, exchange.detail
        outcome = self._answers.outcome(exchange.status)
        if outcome not in (OutcomeName.DELIVERED, OutcomeName.ACCEPTED):
            said = complaint(
                exchange.status,
                exchange.body,
                parse(exchange.body) if exchange.body else None,
                next(iter(exchange.values("location")), None),
            )
            return outcome, None, ": ".join([said, exchange.detail] if exchange.detail else [said])
        reference = self._reference(exchange)
        notes = []
        if exchange.body is None or exchange.truncated:
            notes.append("receipt incomplete" + (f": {exchange.detail}" if exchange.detail else ""))
        if self._settings.reference is not None and reference is None:
            notes.append("no reference in the answer")
        if "true" in (value.lower() for value in exchange.values("idempotent-replayed")):
            notes.append("replayed by the provider")
        return outcome, reference, "; ".join(notes)

    def _reference(self, exchange: Exchange) -> str | None:
        place = self._settings.reference
        if place is None:
            return None
        found: str | None = None
        if place.header is not None:
            found = next(iter(exchange.values(place.header)), None)
        elif place.json_path is not None and exchange.body is not None:
            found = id_at(parse(exchange.body), place.json_path)
        return clean(found, self._secrets, REFERENCE_MAX) or None if found else None

    def _digest(self, call: Call, body: bytes) -> str:
        where = f"{self._settings.method} {self._address.public(values_of_call(call))}\n"
        return hashlib.sha256(where.encode() + body).hexdigest()

    def _clean(self, text: str, payload: Mapping[str, Any]) -> str:
        """Without secrets and without what the payload says: providers like to repeat it in their errors."""
        return clean(text, self._secrets | strings_within(payload))


def _told(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"
