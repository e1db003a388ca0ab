"""The shape of ``[providers.X]`` with ``adapter = "smtp"``: where mail goes in, and how one is made of an operation."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from provider.durations import PositiveDuration
from provider.settings import ProviderSettings
from provider.templates import PAYLOAD, check_template

PLACEHOLDERS = ("key", "idempotency_key", "kind", PAYLOAD)
"""What a message may take from the operation. Not the attempt: each attempt is the same bytes."""

# RFC 5321 4.5.3.2.6: a server may take ten minutes to answer the final dot.
MAX_PROCESSING = 600.0

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")  # RFC 1035: at most 253 characters

Text = Annotated[str, AfterValidator(lambda text: check_template(text, PLACEHOLDERS)), Field(min_length=1)]


class SmtpProviderSettings(ProviderSettings):
    """``[providers.X]`` with ``adapter = "smtp"``. User and password belong to the connection."""

    adapter: Literal["smtp"]
    host: Annotated[str, Field(min_length=1)]
    """Name or address of the server; ``${NAME}`` allowed."""
    port: Annotated[int, Field(ge=1, le=65535)] = 587  # RFC 6409: submission
    tls: Literal["starttls", "tls", "none"] = "starttls"
    """``starttls``: and nothing without it. ``none``: only to this machine itself."""
    ca_file: str | None = None
    """PEM file with the authorities to trust instead of the public ones."""
    sender: Annotated[Text, Field(alias="from")]
    """``"Orders <orders@example.com>"``: header From, and the envelope's sender."""
    to: Text
    """``"{payload.email}"``. One recipient: of several, some could be refused, and one attempt has one outcome."""
    subject: Text
    body: Text
    """Plain text."""
    date: Text | None = None
    """``"{payload.ordered_at}"``: ISO 8601 with zone, or epoch seconds, the same in each attempt. None: the server that
    takes the message in writes the header (RFC 6409 8.1)."""
    domain: str | None = None
    """Right side of the Message-ID; None: the sender's domain."""
    hello: str | None = None
    """What this machine calls itself in EHLO; None: the sender's domain."""
    max_processing: PositiveDuration | None = MAX_PROCESSING

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.tls == "none" and not is_loopback(self.host):
            raise ValueError(f'tls = "none" would send mail and password readable to {self.host}: only 127.0.0.1 may')
        if self.tls == "none" and self.ca_file is not None:
            raise ValueError('ca_file means nothing with tls = "none"')
        for name in (self.domain, self.hello):
            if name is not None and not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a domain name")
        return self


def is_loopback(host: str) -> bool:
    """Whether this can only be the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
