"""The shape of ``[kinds.X]`` in duly.toml, and the numbers that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from provider.durations import Duration, PositiveDuration
from provider.settings import Table

SEND_SLACK: Final = 5.0
"""Seconds a claim may take to become a first byte (COMMIT, connection, a busy loop). A longer freeze sends nothing."""

STALL_BOUND: Final = 30.0
"""Seconds: the longest stall of a process between last check and first byte; the watchdog kills a longer one. A worker
that finds that it stood still for longer (the whole machine did) ends itself and names the attempts in flight."""

WATCHDOG_LIMIT: Final = 20.0
"""Seconds without a tick of the event loop after which the watchdog kills the worker. With a tick, a look and what it
forgives (reconcile/watchdog.py) below STALL_BOUND: a test adds them up. Twice what makes the worker not live, and far
more than any pause of a loaded two-core machine, because it costs every call in flight."""

FLIGHT_BOUND: Final = 60.0
"""Seconds: the longest that bytes of ours are still under way (retransmission, proxies) once the process is gone."""

SETTLE_MARGIN: Final = 30.0
"""Seconds for clock steps and rounding. With the two above: 2 minutes, what the providers with a known lag suggest."""

MAX_CALL_LIMIT: Final = 600.0
"""Seconds. A provider that needs longer should accept (202) and be polled: the worker's shutdown waits for calls."""

FieldName = Annotated[str, Field(min_length=1, max_length=200)]


class BackoffSettings(Table):
    """``backoff``: wait after an attempt without effect; doubles from base to cap."""

    base: PositiveDuration = 2.0  # seconds; the usual first wait of HTTP clients that back off
    cap: PositiveDuration = 300.0  # seconds; five minutes, so that a provider that is back is noticed soon


class KindSettings(Table):
    """``[kinds.X]`` as written."""

    connection: str
    owner: Annotated[str, Field(min_length=1, max_length=100)]
    """Who owns its dead list and its alerts."""
    required: list[FieldName] = Field(default_factory=list)
    """Payload fields that must be present."""
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 5
    """Attempts that count: not-sent and throttled ones do not."""
    backoff: BackoffSettings = Field(default_factory=BackoffSettings)
    start_lead: Duration = 0.0
    """Seconds before the due time at which the workflow starts, for those who want to see it in the Temporal UI."""
    settle: PositiveDuration | None = None
    """Seconds before "absent" or "not delivered" is believed; None: see ``Settings.policy``."""
    accepted_bound: PositiveDuration = 3600.0
    """Seconds for which an accepted operation is polled before it is unknown."""
    look_ups: Annotated[list[PositiveDuration], Field(min_length=1, max_length=50)] = Field(
        # Soon, because most lost replies were effects; then ever more slowly, and daily for as long as it is open.
        default_factory=lambda: [10.0, 60.0, 300.0, 3600.0, 86400.0]
    )
    """When to ask about a doubt, each counted from the one before; the last repeats. If the provider can be asked."""
    repeat: bool = True
    """Send the same bytes again with the same key, where the provider is known to recognise them and all rules hold."""
    second_person: bool = False
    """Choices after which something may be sent need a second person's approval."""


@dataclass(frozen=True, slots=True)
class KindPolicy:
    """A kind with everything that follows from its provider. Durations in seconds."""

    name: str
    connection: str
    provider: str
    owner: str
    required: tuple[str, ...]
    max_attempts: int
    call_limit: float
    lease: float
    settle: float
    accepted_bound: float
    start_lead: float
    look_ups: tuple[float, ...]
    look_up_lag: float | None
    look_up_conclusive: bool
    repeat_within: float
    stores_errors: bool
    second_person: bool
    backoff_base: float
    backoff_cap: float


def lease_for(call_limit: float) -> float:
    """Seconds from the claim to the moment when silence means unknown."""
    return call_limit + SEND_SLACK


def least_settle(lease: float, max_processing: float) -> float:
    """The inequality that every conclusion of absence rests on. No setting may be below.

    A process that was frozen just after its last look at ``send_before``, from where the settle time counts, writes
    within STALL_BOUND or is dead by then; what it wrote arrives within FLIGHT_BOUND; and the provider is done with it
    after its longest processing time.
    """
    return max(STALL_BOUND + FLIGHT_BOUND + max_processing, lease)


def default_settle(lease: float, max_processing: float) -> float:
    """Seconds after which no request of an attempt can still take effect; never below the lease."""
    return max(least_settle(0.0, max_processing) + SETTLE_MARGIN, lease)
