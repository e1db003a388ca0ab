"""The port every provider adapter implements: one call in, one outcome out.

The outcome names are design section 5. An adapter that cannot prove anything answers ``UNKNOWN``:
that is the default everywhere, never "failed".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class OutcomeName(StrEnum):
    """What one attempt proved. The closed list; the ledger holds the same names."""

    DELIVERED = "delivered"  # the provider confirmed the effect
    ACCEPTED = "accepted"  # taken, finishes later; poll, never send again
    NOT_SENT = "not_sent"  # no request header left this machine
    NOT_PROCESSED = "not_processed"  # the adapter vouches that nothing was done
    THROTTLED = "throttled"  # refused for rate; the connection waits
    IN_FLIGHT = "in_flight"  # the provider says this key is being processed
    UNKNOWN = "unknown"  # anything after the first header byte without proof
    DUPLICATE = "duplicate"  # the provider says that it has it already
    REJECTED = "rejected"  # validation, decline: never again
    DENIED = "denied"  # 401, 403, TLS trust: the connection is held
    KEY_MISMATCH = "key_mismatch"  # same key, other body
    INVALID = "invalid"  # the payload does not fit its kind
    DEFECT = "defect"  # our own exception


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt to be carried out. ``send_before`` and ``time_limit`` bound it in time."""

    key: str
    kind: str
    attempt: int
    connection: str
    idempotency_key: str
    payload: Mapping[str, Any]
    time_limit: float
    """Seconds: the total limit for the whole call, connect to last byte."""
    send_before: float
    """CLOCK_BOOTTIME in seconds (see ``provider.clock``) after which no first byte may leave."""
    trace_context: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the call proved, with what is worth keeping about it."""

    name: OutcomeName
    sent: bool
    """Whether a request header may have left: proved by the transport's trace, not by an exception's name."""
    status_code: int | None = None
    reference: str | None = None
    """The provider's own id of the effect, when it told us."""
    detail: str = ""
    """Cleaned, bounded text (no NUL, no lone surrogate, no secret)."""
    retry_after: float | None = None
    """Seconds the provider asked us to wait, already made relative."""
    request_digest: str | None = None
    """SHA-256 of method, URL and body as sent, hex. Credentials are not part of it."""
    call_seconds: float | None = None
    """Duration of the call on the monotonic clock."""


class FindingName(StrEnum):
    """What one look-up found. The closed list; anything else a provider says is ``CANNOT_TELL``."""

    APPLIED = "applied"  # exactly one effect, by exact key or matching in all that was asked for
    ABSENT = "absent"  # the provider's own not-found answer; whether that concludes anything is for the policy to say
    WORKING = "working"  # taken and not finished
    REFUSED = "refused"  # finished without effect, and the provider says so
    SEVERAL = "several"  # more than one effect
    CANNOT_TELL = "cannot tell"  # an error, no access, a full page, a match in doubt


@dataclass(frozen=True, slots=True)
class Query:
    """One look-up: what is known about the operation whose effect is in doubt."""

    key: str
    kind: str
    connection: str
    idempotency_keys: tuple[str, ...]
    """The provider-side keys that were used, newest first."""
    reference: str | None
    """The provider's reference, when it accepted the operation."""
    payload: Mapping[str, Any]
    time_limit: float
    """Seconds: the total limit of the look-up, all pages."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the provider said to a look-up."""

    name: FindingName
    reference: str | None = None
    detail: str = ""
    """Cleaned, bounded text."""
    status_code: int | None = None


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a provider can do. Every default is the cautious value: one attempt, then a person."""

    key_carrier: str | None = None
    """Where the idempotency key travels (``header:Idempotency-Key``), or None."""
    key_alphabet: str = "A-Za-z0-9._:-"
    key_max_length: int = 255
    retention_published: float = 0.0
    """Seconds the provider says it remembers a key. 0: nothing published."""
    retention_safe: float = 0.0
    """Seconds within which a repeat is allowed, counted from the first send (half the published)."""
    scope: tuple[str, ...] = ("connection",)
    """What the key is unique within; a change forbids an automatic repeat."""
    stores_errors: bool = False
    replays_keys: bool = False
    compares_body: bool | None = None
    look_up_by: str | None = None
    look_up_lag: float | None = None
    """Seconds after which an effect is visible to a look-up; None: unknown, absence never concludes."""
    look_up_conclusive: bool = False
    not_processed_codes: frozenset[int] = frozenset()
    cancel_by_key: bool = False
    max_processing: float = 0.0
    """Seconds the provider may still work on a request after we stopped waiting."""


class Adapter(Protocol):
    """One provider. ``perform`` makes exactly one request and never raises for a provider's answer."""

    @property
    def descriptor(self) -> Descriptor: ...

    @property
    def scope(self) -> str:
        """What an idempotency key is unique within: provider, account, region and a fingerprint of the credential
        (never the credential). A change forbids an automatic repeat."""
        ...

    @property
    def rendering(self) -> str:
        """Fingerprint of how bytes are made: the same rendering, key and payload are the same bytes."""
        ...

    async def perform(self, call: Call) -> Outcome:
        """Carry the call out once; the outcome says what that proved."""
        ...

    async def look_up(self, query: Query) -> Finding:
        """Ask whether the effect exists. Never raises for a provider's answer; CANNOT_TELL when it cannot be asked."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
