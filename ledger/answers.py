"""What the ledger's functions answer: one dataclass per SQL composite type, with the same field names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Step:
    """What a workflow is told. ``act`` is attempt, wait or ended; ``delay_ms`` None means until a nudge."""

    act: str
    attempt: int
    delay_ms: int | None
    state: str
    reason: str
    generation: int
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim's answer. When ``granted`` the payload and limits are there; else the step to follow."""

    granted: bool
    act: str
    attempt: int
    delay_ms: int | None
    state: str
    reason: str
    generation: int
    kind: str
    connection: str
    idempotency_key: str
    payload: Mapping[str, Any]
    trace_context: Mapping[str, str] | None
    call_limit_ms: int
    send_within_ms: int
    lease_ms: int

    def step(self) -> Step:
        """The instruction in it."""
        return Step(self.act, self.attempt, self.delay_ms, self.state, self.reason, self.generation)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One row that needs a workflow now. ``fresh``: none was ever asked for."""

    key: str
    kind: str
    provider: str
    tenant: str | None
    generation: int
    fresh: bool
    state: str
    due_at: datetime
    deadline: datetime
    attempt: int
    delay_ms: int
    lease_ms: int
    marked_at: datetime
    wake_at: datetime


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The answer of ``schedule``: ``created`` False means that the same operation was there already."""

    key: str
    state: str
    created: bool
    due_utc: str
    deadline_utc: str
    note: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Which state won. ``done`` False: too late, or refused; ``answer`` says it in words."""

    key: str
    state: str
    done: bool
    answer: str


@dataclass(frozen=True, slots=True)
class Decided:
    """The answer to a decision; ``effective_utc`` may lie ahead."""

    key: str
    accepted: bool
    decision: int | None
    state: str | None
    effective_utc: str | None
    answer: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What is recorded about one attempt. Durations in milliseconds; ``detail`` is cleaned text."""

    outcome: str
    sent: bool
    status_code: int | None = None
    reference: str | None = None
    detail: str = ""
    request_digest: str | None = None
    call_ms: float | None = None
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask the provider about a doubt (``act`` look_up and no delay), or the step to follow instead."""

    act: str
    attempt: int
    delay_ms: int | None
    state: str
    reason: str
    generation: int
    kind: str
    connection: str
    idempotency_keys: list[str]
    reference: str | None
    payload: Mapping[str, Any]
    call_limit_ms: int
    settled: bool
    """No request of any attempt can still be under way."""
    conclusive: bool
    """Whether this kind's look-up may ever conclude absence."""
    lag_s: float | None
    absent_since_s: float | None
    """Seconds since the first absence that counts; None: there was none."""
    canary_key: str | None
    canary_idempotency_keys: list[str] | None
    canary_reference: str | None
    canary_payload: Mapping[str, Any] | None

    def step(self) -> Step:
        """The instruction in it."""
        return Step(self.act, self.attempt, self.delay_ms, self.state, self.reason, self.generation)


@dataclass(frozen=True, slots=True)
class Planned:
    """One item of a replay: as it stands, and what would follow. ``possible`` False: it would be refused."""

    plan: int | None
    key: str
    kind: str
    state: str
    attempts: int
    generation: int
    evidence: str | None
    consequence: str
    possible: bool


@dataclass(frozen=True, slots=True)
class PlanApplied:
    """What became of one item."""

    key: str
    done: bool
    answer: str


@dataclass(frozen=True, slots=True)
class Witness:
    """A history row to be remembered outside the ledger. ``seq`` None: there was no history yet."""

    ledger_id: UUID
    seq: int | None
    row_id: UUID | None
    timeline: str
    """Of the server: its identity and its timeline."""
    at: datetime
    """The ledger's clock when it was taken."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What a look at the ledger says about a witness. In quarantine there is none to take."""

    verdict: str
    """``same``, ``adopted``, ``lost``, ``other ledger``, ``newer timeline``, or ``none``: there was none to compare."""
    quarantine: str | None
    moved: bool
    """The server was promoted or recovered, or is another one: what was in hand is to be put in doubt."""
    served: bool
    """A worker has served this ledger before, so that a witness was kept."""
    witness: Witness | None
