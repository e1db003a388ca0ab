"""The generic HTTP adapter: everything about a provider that can be said in duly.toml.

This is also the one to copy for a provider that needs code of its own.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from provider.answers import AnswerTable
from provider.port import Call, Descriptor, Outcome, OutcomeName
from provider.retry_after import retry_after
from provider.settings import ConnectionSettings, HttpProviderSettings
from provider.templates import Template, expand
from provider.text import MASK, clean, strings_within
from provider.transport import Exchange, Phase, Transport

REFERENCE_MAX = 200  # characters of a provider's id that are kept; the longest in use (URLs) are shorter
# RFC 9110 5.5, without the tab and obs-text: what every server and proxy passes on unchanged.
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
# W3C Trace Context: the two headers that carry it.
_TRACE_HEADERS = ("traceparent", "tracestate")


class _UnfitError(Exception):
    """The payload cannot be sent as it is."""


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
        self._name = name
        self._settings = settings
        self._answers = AnswerTable(settings.answers)
        self._secrets: set[str] = set()
        self._url, self._public_url, shown = self._filled_in_url(environ)
        self._shown = f"{settings.method} {shown}"
        headers = self._filled_in_headers(connection, environ)
        self._templates = {name: template for name, template in headers.items() if not template.fixed}
        self._fixed = {name: _encoded(name, template.fill(str)) for name, template in headers.items() if template.fixed}
        self._transport = Transport(
            ca_file=settings.ca_file, secrets=self._secrets, before_first_byte=before_first_byte
        )
        self._descriptor = _descriptor(settings)

    def __repr__(self) -> str:
        return f"HttpAdapter({self._name}: {self._shown})"

    @property
    def descriptor(self) -> Descriptor:
        """What the settings say that the provider can do."""
        return self._descriptor

    async def perform(self, call: Call) -> Outcome:
        """One request; see the port."""
        try:
            url = _filled_url(self._url, call)
            headers = self._call_headers(call)
            body = _body(call.payload)
        except _UnfitError as exc:
            return Outcome(OutcomeName.INVALID, sent=False, detail=clean(str(exc)))
        except Exception as exc:  # noqa: BLE001 - ours, and nothing has left: the port asks for an outcome
            return Outcome(OutcomeName.DEFECT, sent=False, detail=self._clean(f"{type(exc).__name__}: {exc}", call))
        exchange = await self._transport.send(
            self._settings.method, url, headers, body, time_limit=call.time_limit, send_before=call.send_before
        )
        try:
            outcome, reference, detail = self._judged(exchange)
        except Exception as exc:  # noqa: BLE001 - a fault in reading an answer must not lose that bytes left
            outcome = OutcomeName.UNKNOWN if exchange.sent else OutcomeName.DEFECT
            reference, detail = None, f"could not read the answer: {type(exc).__name__}: {exc}"
        return Outcome(
            outcome,
            sent=exchange.sent,
            status_code=exchange.status,
            reference=reference,
            detail=self._clean(detail, call) if detail else "",
            retry_after=retry_after(exchange.values("retry-after"), exchange.values("date"), time.time()),
            request_digest=self._digest(call, body),
            call_seconds=exchange.call_seconds,
        )

    async def close(self) -> None:
        """Release connections."""
        await self._transport.close()

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
            return outcome, None, _complaint(exchange)
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
        found: Any = None
        if place.header is not None:
            found = next(iter(exchange.values(place.header)), None)
        elif place.json_path is not None and exchange.body is not None:
            found = _at(_json(exchange.body), place.json_path)
        if isinstance(found, bool) or not isinstance(found, str | int):
            return None
        return clean(str(found), self._secrets, REFERENCE_MAX) or None

    def _call_headers(self, call: Call) -> list[tuple[bytes, bytes]]:
        """What is the same for all calls was checked and encoded once."""
        headers = {name: _filled(template, call) for name, template in self._templates.items()}
        idempotency = self._settings.idempotency
        if idempotency is not None:
            if not 0 < len(call.idempotency_key) <= idempotency.max_length:
                raise ValueError(f"the idempotency key has not 1 to {idempotency.max_length} characters")
            quoted = f'"{call.idempotency_key}"' if idempotency.quoted else call.idempotency_key
            headers[idempotency.header.lower()] = quoted
        for name in _TRACE_HEADERS:
            if name in call.trace_context:
                headers[name] = call.trace_context[name]
        encoded = {name: _encoded(name, value) for name, value in headers.items()}
        return list({**self._fixed, **encoded}.values())

    def _filled_in_headers(self, connection: ConnectionSettings, environ: Mapping[str, str]) -> dict[str, Template]:
        """By lower-case name."""
        texts = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": "duly",
        }
        for name, text in [*self._settings.headers.items(), *connection.headers.items()]:
            texts[name.lower()] = text
        idempotency = self._settings.idempotency
        if idempotency is not None and idempotency.header.lower() in texts:
            raise ValueError(f"{idempotency.header} is the idempotency header; it cannot be among the others too")
        templates = {name: Template(text, environ, self._note_secret) for name, text in texts.items()}
        for name, template in templates.items():
            _encoded(name, template.fill(str))  # refused now rather than at the first call
        return templates

    def _note_secret(self, variable: str, value: str) -> None:
        self._secrets.add(value)

    def _filled_in_url(self, environ: Mapping[str, str]) -> tuple[Template, Template, str]:
        """The URL; the one to digest, without secrets, so that a new token is not a new request; that one as text."""
        hidden: set[str] = set()

        def note(variable: str, value: str) -> None:
            # An address is no secret; anything else in a URL (a bot's token) is.
            if not value.startswith(("http://", "https://")):
                hidden.add(variable)
                self._secrets.add(value)

        template = Template(self._settings.url, environ, note)
        url = template.fill(str)
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:
            good = False
        if not good or re.search(r"[\x00-\x20\x7f]", url):
            raise ValueError(f"connection {self._name}: the provider's url is not an http(s) address")
        if parts.username is not None or parts.fragment:
            raise ValueError(f"connection {self._name}: no user, password or #fragment in a url; use a header")
        public = {**environ, **dict.fromkeys(hidden, MASK)}
        return template, Template(self._settings.url, public), expand(self._settings.url, public)

    def _digest(self, call: Call, body: bytes) -> str:
        where = f"{self._settings.method} {_filled_url(self._public_url, call)}\n"
        return hashlib.sha256(where.encode() + body).hexdigest()

    def _clean(self, text: str, call: Call) -> str:
        """Without secrets and without what the payload says: providers like to repeat it in their errors."""
        return clean(text, self._secrets | strings_within(call.payload))


def _descriptor(settings: HttpProviderSettings) -> Descriptor:
    idempotency = settings.idempotency
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
        max_processing=settings.max_processing or 0.0,
    )


def _filled(template: Template, call: Call) -> str:
    return template.fill(lambda name: str(getattr(call, name)))


def _filled_url(template: Template, call: Call) -> str:
    """Quoted, so that no key can change where the request goes."""
    return template.fill(lambda name: quote(str(getattr(call, name)), safe=":"))


def _body(payload: Mapping[str, Any]) -> bytes:
    """The same bytes for the same payload, always: a repeat must be the same request."""
    try:
        text = json.dumps(payload, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as exc:  # UnicodeEncodeError, for surrogates, is a ValueError
        raise _UnfitError(f"the payload cannot be written as JSON: {type(exc).__name__}") from exc


def _encoded(name: str, value: str) -> tuple[bytes, bytes]:
    """One header for the wire. Raises ValueError that names it; its value may be a secret."""
    if not _HEADER_VALUE.fullmatch(value) or value != value.strip():
        raise ValueError(f"the value of header {name} has a character that no header may carry, or spaces around it")
    return name.encode(), value.encode()


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _at(document: Any, path: str) -> Any:
    """What a dotted path names, or None."""
    for step in path.split("."):
        if isinstance(document, Mapping):
            document = document.get(step)
        elif isinstance(document, list) and step.isascii() and step.isdigit() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document


def _complaint(exchange: Exchange) -> str:
    """Status, where a redirect points, and what the body says."""
    said = [f"status {exchange.status}"]
    said += [f"Location: {place}" for place in exchange.values("location")[:1]]
    if exchange.body:
        said.append(clean(_words(_json(exchange.body)) or exchange.body))
    return ": ".join([*said, exchange.detail] if exchange.detail else said)


def _words(document: Any) -> str:
    """Code and message of the commonest forms of an error in JSON (RFC 9457, Stripe, PayPal, atproto)."""
    if isinstance(document, Mapping):
        inner = document.get("error")
        if isinstance(inner, Mapping):
            return _words(inner)
        names = ("type", "code", "error", "name", "title", "message", "detail", "error_description")
        return ", ".join(str(document[name]) for name in names if isinstance(document.get(name), str | int))
    return ""
