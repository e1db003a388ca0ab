"""Makes a mail of an operation: the same bytes each time. Nothing of it depends on the clock, the machine or chance."""

from __future__ import annotations

import email.policy
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final

from provider.templates import Template
from provider.values import UnfitError, Values

MESSAGE_RULE: Final = (1, *sys.version_info[:3])
"""Version of ``compose``: its own, counted up by whoever changes the bytes it makes, and that of Python's ``email``."""

# 7bit: so that every server can take it, whatever it offers. The lines are folded by RFC 5322 2.1.1.
_POLICY = email.policy.SMTP.clone(cte_type="7bit")
# RFC 5321 4.1.2, in ASCII: what goes into a command as it stands.
_ADDRESS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_PLAIN = re.compile(r"[A-Za-z0-9_-]")
# No header may carry them (RFC 5322 2.2), whatever they would do to whoever reads it; and no body a NUL (2.3).
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_EPOCH = re.compile(r"\d{1,11}(?:\.\d{1,9})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Mail:
    """One message with its envelope."""

    sender: str
    recipient: str
    message_id: str
    message: bytes
    """Header and body, lines ended by CRLF, dots not doubled yet."""


def compose(templates: Mapping[str, Template], values: Values, idempotency_key: str, domain: str | None) -> Mail:
    """The mail. ``templates``: from, to, subject, body and perhaps date. Raises UnfitError for what is no mail."""
    message = EmailMessage(policy=_POLICY)
    texts = {name: template.fill(values) for name, template in templates.items()}
    sender = _one_address(message, "From", texts["from"])
    recipient = _one_address(message, "To", texts["to"])
    message_id = f"<{_local_part(idempotency_key)}@{domain or sender.rpartition('@')[2]}>"
    if _CONTROL.search(texts["subject"]) or "\0" in texts["body"]:
        raise UnfitError("subject or body has a control character")
    try:
        message["Subject"] = texts["subject"]
        message["Message-ID"] = message_id
        if "date" in texts:
            message["Date"] = format_datetime(_date(texts["date"]))
        message.set_content(texts["body"])
        written = message.as_bytes()
    except (ValueError, LookupError) as exc:  # a lone surrogate, or what the library knows better
        raise UnfitError(f"no mail can be made of it: {exc}") from exc
    return Mail(sender, recipient, message_id, written)


def domain_of(address: str) -> str:
    """The domain of the address in ``From``. Raises UnfitError."""
    return _one_address(EmailMessage(policy=_POLICY), "From", address).rpartition("@")[2]


def _one_address(message: EmailMessage, name: str, text: str) -> str:
    """Write the header and return the bare address."""
    if _CONTROL.search(text):
        raise UnfitError(f"{name} has a control character")
    try:
        message[name] = text
    except (ValueError, LookupError) as exc:
        raise UnfitError(f"{name} cannot be written: {exc}") from exc
    header: Any = message[name]  # an AddressHeader with its defects, which no type describes
    if len(header.addresses) != 1 or len(header.groups) != 1 or header.groups[0].display_name is not None:
        raise UnfitError(f"{name} is not exactly one address")
    address = str(header.addresses[0].addr_spec)
    if header.defects or not _ADDRESS.fullmatch(address):
        raise UnfitError(f"{name} is not an address that every server takes")
    return address


def _local_part(key: str) -> str:
    """The key as the left side of a Message-ID (RFC 5322 3.6.4: no colon, no two dots), one to one."""
    return "".join(char if _PLAIN.fullmatch(char) else f"={ord(char):02X}" for char in key)


def _date(text: str) -> datetime:
    try:
        when = datetime.fromtimestamp(float(text), UTC) if _EPOCH.fullmatch(text) else datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError) as exc:
        raise UnfitError("date is neither ISO 8601 nor epoch seconds") from exc
    if when.tzinfo is None:
        raise UnfitError("date has no zone")
    return when.astimezone(UTC)
