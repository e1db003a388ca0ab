"""The SMTP adapter: one mail to one recipient.

SMTP knows neither idempotency keys nor look-ups, so nothing here is ever repeated by itself after an unknown, and only
a person can settle one. The Message-ID is made from the idempotency key: it is what a person looks for.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from provider.http_request import fingerprint
from provider.mail import MESSAGE_RULE, Mail, compose, domain_of
from provider.port import Call, Descriptor, Finding, FindingName, Outcome, OutcomeName, Query
from provider.settings import ConnectionSettings
from provider.smtp_exchange import Exchange, Server, Step, deliver
from provider.smtp_settings import PLACEHOLDERS, SmtpProviderSettings, is_loopback
from provider.templates import Template
from provider.text import REFERENCE_MAX, clean, strings_within
from provider.transport import Phase
from provider.values import UnfitError, values_of_call

# RFC 5321 4.2.1: 4yz means "not accepted, the action may be asked for again"; 4.2.5: after the dot too, the server
# "MUST NOT make a subsequent attempt to deliver".
_NOT_PROCESSED = frozenset(range(400, 500))
# RFC 4954 4 and 6, RFC 3207 4: about who we are, not about this mail.
_ABOUT_US = frozenset({530, 534, 535, 538})
# What these refuse for good they would refuse every mail of this connection; but a mail can be too large (RFC 1870).
_OF_THE_CONNECTION = frozenset({Step.GREETING, Step.HELLO, Step.TLS, Step.LOGIN, Step.SENDER})
_TOO_LARGE = 552
# Where servers say under which name they keep a mail: Postfix, Sendmail's kin, Exim, Exchange.
_QUEUED = re.compile(r"queued as ([^\s;,]+)|\bid=([^\s;,]+)|InternalId=([^\s;,\]]+)", re.IGNORECASE)

_OK = re.compile(r"^(?:\d\.\d{1,3}\.\d{1,3}\s+)?(?:ok\b[:\s]*)?", re.IGNORECASE)  # with RFC 3463's code before it


class SmtpAdapter:
    """One connection of a mail server."""

    settings_type: ClassVar[type[SmtpProviderSettings]] = SmtpProviderSettings

    def __init__(
        self,
        name: str,
        settings: SmtpProviderSettings,
        connection: ConnectionSettings,
        environ: Mapping[str, str],
        *,
        before_first_byte: Callable[[], None] | None = None,
    ) -> None:
        """Takes the secrets from ``environ`` now. ``before_first_byte`` is called just before the final dot.

        Raises MissingVariableError, or ValueError for what cannot be used once the variables are filled in.
        """
        if connection.headers:
            raise ValueError(f"connection {name}: a mail server takes username and password, not headers")
        self._name = name
        self._before_dot = before_first_byte
        texts = {
            "from": settings.sender,
            "to": settings.to,
            "subject": settings.subject,
            "body": settings.body,
            **({"date": settings.date} if settings.date is not None else {}),
        }
        self._templates = {part: Template(text, environ, None, PLACEHOLDERS) for part, text in texts.items()}
        self._domain = settings.domain
        host, username, password = (
            None if text is None else Template(text, environ, None, ()).fill(str)
            for text in (settings.host, connection.username, connection.password)
        )
        assert host is not None
        if settings.tls == "none" and not is_loopback(host):
            raise ValueError(f'connection {name}: tls = "none" is for 127.0.0.1 only')
        self._server = Server(
            host=host,
            port=settings.port,
            hello=settings.hello or self._sender_domain(),
            tls=None if settings.tls == "none" else ssl.create_default_context(cafile=settings.ca_file),
            starttls=settings.tls == "starttls",
            username=username,
            password=password,
        )
        self._secrets = frozenset(filter(None, (username, password)))
        self._descriptor = self.describe(settings)
        self._scope = "/".join((connection.provider, name, self._where, _fingerprint(username, password)))
        parts = sorted((part, template.fill(_named)) for part, template in self._templates.items())
        made_of = json.dumps([MESSAGE_RULE, parts, self._domain])
        self._rendering = hashlib.sha256(made_of.encode()).hexdigest()[:16]  # 64 bits: no two by chance

    def __repr__(self) -> str:
        return f"SmtpAdapter({self._name}: {self._where})"

    @property
    def descriptor(self) -> Descriptor:
        """What every mail server can do: very little."""
        return self._descriptor

    @property
    def scope(self) -> str:
        """Provider, connection, server and a fingerprint of the account."""
        return self._scope

    @property
    def rendering(self) -> str:
        """Changes with the texts, the rule for messages and the version of Python, whose library writes them."""
        return self._rendering

    async def perform(self, call: Call) -> Outcome:
        """One mail; see the port. ``sent``: the dot may have left, or the server has judged what we asked for."""
        try:
            if not 0 < len(call.idempotency_key) <= self._descriptor.key_max_length:
                raise ValueError(f"the idempotency key has not 1 to {self._descriptor.key_max_length} characters")
            mail = compose(self._templates, values_of_call(call), call.idempotency_key, self._domain)
        except UnfitError as exc:
            return Outcome(OutcomeName.INVALID, sent=False, detail=self._clean(str(exc), call.payload))
        except Exception as exc:  # noqa: BLE001 - ours, and nothing has left: the port asks for an outcome
            detail = self._clean(f"{type(exc).__name__}: {exc}", call.payload)
            return Outcome(OutcomeName.DEFECT, sent=False, detail=detail)
        exchange = await deliver(
            self._server,
            mail,
            time_limit=call.time_limit,
            send_before=call.send_before,
            secrets=self._secrets,
            before_dot=self._before_dot,
        )
        outcome = judged(exchange)
        return Outcome(
            outcome,
            sent=exchange.phase is Phase.UNKNOWN or (exchange.code is not None and exchange.step not in _BEFORE_MAIL),
            status_code=exchange.code,
            reference=self._reference(exchange, call) if outcome is OutcomeName.DELIVERED else None,
            detail=self._clean(exchange.detail, call.payload),
            request_digest=self._digest(mail),
            call_seconds=exchange.call_seconds,
        )

    async def look_up(self, query: Query) -> Finding:
        """SMTP has no question for it."""
        return Finding(FindingName.CANNOT_TELL, detail="a mail server cannot be asked; look for the Message-ID")

    async def close(self) -> None:
        """Nothing is kept open."""

    @staticmethod
    def describe(settings: SmtpProviderSettings) -> Descriptor:
        """What the settings say that the provider can do, and no more."""
        return Descriptor(
            key_carrier="header:Message-ID",  # a label: no server compares it
            not_processed_codes=_NOT_PROCESSED,
            max_processing=settings.max_processing or 0.0,
        )

    @property
    def _where(self) -> str:
        return f"{self._server.host}:{self._server.port}"

    def _sender_domain(self) -> str:
        """Of the address that mail comes from, which a ``{placeholder}`` may not decide."""
        try:
            return domain_of(self._templates["from"].fill(_named))
        except UnfitError as exc:
            raise ValueError(f"connection {self._name}: from: {exc}") from exc

    def _reference(self, exchange: Exchange, call: Call) -> str | None:
        """The server's own name for the mail; else what it said beside OK, if that may be one."""
        said = self._clean(exchange.detail, call.payload)
        queued = _QUEUED.search(said)
        named = next(filter(None, queued.groups()), "") if queued else _OK.sub("", said)
        return clean(named, limit=REFERENCE_MAX) if any(char.isdigit() for char in named) else None

    def _digest(self, mail: Mail) -> str:
        envelope = f"smtp {self._where}\n{mail.sender}\n{mail.recipient}\n"
        return hashlib.sha256(envelope.encode() + mail.message).hexdigest()

    def _clean(self, text: str, payload: Mapping[str, Any]) -> str:
        """Without secrets and without what the payload says: servers like to repeat addresses."""
        return clean(text, self._secrets | strings_within(payload))


_BEFORE_MAIL = frozenset({Step.CONNECT, Step.GREETING, Step.HELLO, Step.TLS, Step.LOGIN})


def judged(exchange: Exchange) -> OutcomeName:
    """What one exchange proves."""
    if exchange.phase is Phase.UNKNOWN:
        return OutcomeName.UNKNOWN
    code = exchange.code
    if code is None:
        if exchange.denied:
            return OutcomeName.DENIED
        return OutcomeName.DEFECT if exchange.own_fault else OutcomeName.NOT_SENT
    if code // 100 == 2:
        return OutcomeName.DELIVERED
    if code in _NOT_PROCESSED:
        return OutcomeName.NOT_PROCESSED
    if code in _ABOUT_US or (exchange.step in _OF_THE_CONNECTION and code != _TOO_LARGE):
        return OutcomeName.DENIED
    return OutcomeName.REJECTED


def _fingerprint(username: str | None, password: str | None) -> str:
    return fingerprint({"username": username, "password": password} if username and password else {})


def _named(name: str) -> str:
    return f"{{{name}}}"
