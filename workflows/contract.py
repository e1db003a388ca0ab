"""What workflow, activities and sweep say to each other: names, instructions, typed activity stubs.

Temporal receives keys, states, numbers and provider references, never a payload.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from temporalio import activity

WORKFLOW = "Operation"
NUDGE = "nudge"
RESOLVE = "resolve"
GENERATION = "generation"
"""The memo field with the generation that a run serves."""

STATE_ATTRIBUTE = "DulyState"
WAITING_ATTRIBUTE = "DulyWaitingSince"
"""The search attributes that the workflow itself touches, on the way into and out of unknown and blocked. The second
one is there only meanwhile."""


def task_queue(provider: str) -> str:
    """One queue per provider, for workflow and activity tasks: a slow provider does not hold up the others."""
    return f"duly-{provider}"


class Act(StrEnum):
    """What an instruction asks for."""

    ATTEMPT = "attempt"  # carry out this attempt
    LOOK_UP = "look_up"  # ask the provider, as often as the ledger's plan says
    WAIT = "wait"  # until the delay is over or a nudge comes, then ask
    ASK = "ask"  # ask the ledger
    ENDED = "ended"  # this run is done


@dataclass(frozen=True, slots=True)
class Instruction:
    """From the ledger to the workflow. ``delay`` in seconds; None: until a nudge. The ledger's clock computed it."""

    act: Act
    attempt: int = 0
    delay: float | None = 0.0
    state: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """A workflow's input: one key, one generation."""

    key: str
    generation: int
    first: Instruction
    attempt_limit: float
    """Seconds for one attempt activity: claim, call and record. Ends after the lease, so silence means unknown."""
    attributes: list[str] = field(default_factory=list)
    """Search attributes registered in this namespace; others are never touched."""


@dataclass(frozen=True, slots=True)
class AttemptOrder:
    """Carry out attempt ``attempt`` of ``key``."""

    key: str
    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """A reply that the ledger could not take: the workflow's history keeps it until a ``record`` succeeds."""

    token: str
    outcome: str
    sent: bool
    status_code: int | None
    reference: str | None
    detail: str
    request_digest: str | None
    call_ms: float | None
    delay_ms: int


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """The next instruction, or the reply that is still to be recorded."""

    instruction: Instruction | None = None
    unrecorded: Unrecorded | None = None


@dataclass(frozen=True, slots=True)
class RecordOrder:
    """Record a reply that the attempt activity could not."""

    key: str
    generation: int
    attempt: int
    unrecorded: Unrecorded


@dataclass(frozen=True, slots=True)
class Question:
    """What should the workflow of this generation do now?"""

    key: str
    generation: int


@dataclass(frozen=True, slots=True)
class Received:
    """A signal or update that may carry a person's choice. ``number`` counts signals of this name in this run;
    ``update_id`` names an update instead; ``arguments`` are texts of JSON where they could be read, else what came."""

    key: str
    name: str
    number: int
    arguments: list[str]
    update_id: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """The ledger's answer to what was received, in words."""

    accepted: bool
    answer: str


# Stubs: typed calls in the workflow without reaching the code behind them. activities/ implements them by name.


@activity.defn(name="attempt")
async def attempt(order: AttemptOrder) -> AttemptReport:
    """Claim, call, record: at most one request to the provider."""
    raise NotImplementedError


@activity.defn(name="record")
async def record(order: RecordOrder) -> Instruction:
    """Record a reply kept in the workflow's history. Safe to repeat."""
    raise NotImplementedError


@activity.defn(name="instruct")
async def instruct(question: Question) -> Instruction:
    """Ask the ledger."""
    raise NotImplementedError


@activity.defn(name="look_up")
async def look_up(question: Question) -> Instruction:
    """Ask the provider about a doubt, again and again by the ledger's plan, until there is something else to do."""
    raise NotImplementedError


@activity.defn(name="settle")
async def settle(received: Received) -> Settled:
    """Hand what a signal or update said to the ledger."""
    raise NotImplementedError
