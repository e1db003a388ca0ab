"""How an HTTP request is made from an operation: address, headers, body; and what fingerprints that."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

from provider.port import Call
from provider.settings import ConnectionSettings, HttpProviderSettings
from provider.templates import PLACEHOLDERS, Template
from provider.text import MASK
from provider.values import UnfitError, Values, values_of_call

BODY_RULE: Final = 1
"""Version of ``body_of``. Whoever changes the bytes it makes counts this up: a repeat must be the same request."""

# RFC 9110 5.5, without the tab and obs-text: what every server and proxy passes on unchanged.
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
# W3C Trace Context: the two headers that carry it.
_TRACE_HEADERS = ("traceparent", "tracestate")


def body_of(payload: Mapping[str, Any]) -> bytes:
    """The same bytes for the same payload, always. Raises UnfitError for what is no JSON."""
    try:
        text = json.dumps(payload, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as exc:  # UnicodeEncodeError, for surrogates, is a ValueError
        raise UnfitError(f"the payload cannot be written as JSON: {type(exc).__name__}") from exc


class Address:
    """A URL with its variables filled in, waiting for the operation."""

    def __init__(
        self,
        connection: str,
        text: str,
        environ: Mapping[str, str],
        secrets: set[str],
        placeholders: Collection[str] = PLACEHOLDERS,
    ) -> None:
        """Adds to ``secrets`` what may not be shown. Raises MissingVariableError, ValueError for what is no address."""
        hidden: dict[str, str] = {}

        def note(variable: str, value: str) -> None:
            # An address is no secret; anything else in a URL (a bot's token) is.
            if not value.startswith(("http://", "https://")):
                hidden[variable] = value

        self._url = Template(text, environ, note, placeholders)
        secrets.update(hidden.values())
        self.hidden: Mapping[str, str] = hidden
        """What may not be shown, by its variable."""
        url = self._url.fill(_named)
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:
            good = False
        if not good or re.search(r"[\x00-\x20\x7f]", url):
            raise ValueError(f"connection {connection}: the provider's url is not an http(s) address")
        if parts.username is not None or parts.fragment:
            raise ValueError(f"connection {connection}: no user, password or #fragment in a url; use a header")
        self._public = Template(text, {**environ, **dict.fromkeys(hidden, MASK)}, None, placeholders)
        self.shown = self._public.fill(_named)
        """As text, without what may not be shown."""
        self.host = urlsplit(self.shown).netloc

    def fill(self, values: Values) -> str:
        """The URL. Quoted, so that no key can change where the request goes."""
        return self._url.fill(lambda name: quote(values(name), safe=":"))

    def public(self, values: Values) -> str:
        """The same without secrets, so that a new token is not a new request."""
        return self._public.fill(lambda name: quote(values(name), safe=":"))


class Headers:
    """All headers of a connection's requests, checked and encoded as far as they are the same for all."""

    def __init__(
        self,
        settings: HttpProviderSettings,
        connection: ConnectionSettings,
        environ: Mapping[str, str],
        secrets: set[str],
    ) -> None:
        """Adds to ``secrets``. Raises MissingVariableError, or ValueError naming a header that cannot be sent."""
        self._idempotency = settings.idempotency
        self.plain: dict[str, str] = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": "duly",
            **{name.lower(): text for name, text in settings.headers.items()},
        }
        """The provider's own, as written in duly.toml. What may be a credential is in ``account`` too."""
        own = {name.lower(): text for name, text in connection.headers.items()}
        texts = {**self.plain, **own}
        if self._idempotency is not None and self._idempotency.header.lower() in texts:
            raise ValueError(f"{self._idempotency.header} is the idempotency header; it cannot be among the others too")
        templates = {name: Template(text, environ, lambda _, value: secrets.add(value)) for name, text in texts.items()}
        for name, template in templates.items():
            _encoded(name, template.fill(_named))  # refused now rather than at the first call
        self._fixed = {name: _encoded(name, made.fill(_named)) for name, made in templates.items() if made.fixed}
        self._templates = {name: made for name, made in templates.items() if not made.fixed}
        self.account = {
            name: templates[name].fill(_named) for name, text in texts.items() if name in own or "${" in text
        }
        """Whatever says who we are to the provider, filled in: secret."""

    def of_call(self, call: Call) -> list[tuple[bytes, bytes]]:
        """Raises ValueError for what no header may carry."""
        values = values_of_call(call)
        headers = {name: template.fill(values) for name, template in self._templates.items()}
        idempotency = self._idempotency
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

    def of_query(self, values: Values) -> list[tuple[bytes, bytes]]:
        """Those of a call that a question can have too: it is no attempt, has no body and repeats nothing."""
        headers = {
            name: _encoded(name, template.fill(values))
            for name, template in self._templates.items()
            if "attempt" not in template.names
        }
        fixed = {name: pair for name, pair in self._fixed.items() if name != "content-type"}
        return list({**fixed, **headers}.values())


def scope_of(provider: str, connection: str, address: Address, headers: Headers) -> str:
    """See ``Adapter.scope``. Everything that the connection adds counts as the account's."""
    return "/".join((provider, connection, address.host, fingerprint({**headers.account, **address.hidden})))


def rendering_of(settings: HttpProviderSettings, address: Address, headers: Headers) -> str:
    """See ``Adapter.rendering``. Credentials are the scope's."""
    idempotency = settings.idempotency
    made_of = [
        BODY_RULE,
        settings.method,
        address.shown,
        sorted((name, text) for name, text in headers.plain.items() if name not in headers.account),
        [idempotency.header.lower(), idempotency.quoted] if idempotency else None,
    ]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[
        :16
    ]  # 64 bits: two by chance are out of the question


def fingerprint(credential: Mapping[str, str]) -> str:
    """Changes with the credential and does not show it: 12 hex digits of a digest made for this purpose only."""
    if not credential:
        return "none"
    return hashlib.sha256(f"duly scope 1\n{json.dumps(sorted(credential.items()))}".encode()).hexdigest()[:12]


def _named(name: str) -> str:
    return f"{{{name}}}"


def _encoded(name: str, value: str) -> tuple[bytes, bytes]:
    """One header for the wire. Raises ValueError that names it; its value may be a secret."""
    if not _HEADER_VALUE.fullmatch(value) or value != value.strip():
        raise ValueError(f"the value of header {name} has a character that no header may carry, or spaces around it")
    return name.encode(), value.encode()
