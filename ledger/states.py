"""States and legal moves, as one pure table. The migration holds the same table; a test compares them."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where an operation stands. Each comment says who moves it on."""

    SCHEDULED = "scheduled"  # waits for its time; the claim moves it on (or its deadline, a cancel, a newer version)
    CALLING = "calling"  # an attempt may be in flight; its own reply, or the end of its lease, moves it on
    ACCEPTED = "accepted"  # the provider finishes later; polling, its bound or a person moves it on
    UNKNOWN = "unknown"  # sent, no proof either way; only evidence or a decision moves it on
    BLOCKED = "blocked"  # something must be mended first; a person's release moves it on
    # endings: nothing moves these on but a recorded decision
    DELIVERED = "delivered"  # the effect is proved; settled_by says by what
    REJECTED = "rejected"  # the provider refused, or the payload is invalid
    EXPIRED = "expired"  # the deadline came first, and no attempt is in doubt
    EXHAUSTED = "exhausted"  # attempts used up, each proved without effect
    CANCELLED = "cancelled"  # the application withdrew it in time
    SUPERSEDED = "superseded"  # a newer version of its subject took its place
    INELIGIBLE = "ineligible"  # the application's own check said no at claim time
    ABANDONED = "abandoned"  # a person decided to leave it unsettled for ever


ENDINGS = frozenset(
    {
        State.DELIVERED,
        State.REJECTED,
        State.EXPIRED,
        State.EXHAUSTED,
        State.CANCELLED,
        State.SUPERSEDED,
        State.INELIGIBLE,
        State.ABANDONED,
    }
)

UNCERTAIN = frozenset({State.CALLING, State.ACCEPTED, State.UNKNOWN})
"""States in which an effect may exist or come to exist without proof."""

ENDINGS_DESPITE_DOUBT = frozenset({State.DELIVERED, State.ABANDONED})
"""The only endings allowed while an attempt is unresolved (``open_attempts`` above zero)."""

DEAD = frozenset({State.REJECTED, State.EXHAUSTED, State.EXPIRED, State.BLOCKED})
"""The dead list: somebody owns it, per kind."""

MOVES: dict[State, frozenset[State]] = {
    State.SCHEDULED: frozenset(
        {
            State.CALLING,
            State.UNKNOWN,  # Temporal knows a run that the ledger does not: an older ledger was restored
            State.DELIVERED,  # a late reply withdraws a repeat that nobody has claimed yet
            State.ACCEPTED,  # the same
            State.REJECTED,
            State.EXPIRED,
            State.EXHAUSTED,
            State.CANCELLED,
            State.SUPERSEDED,
            State.INELIGIBLE,
            State.BLOCKED,
        }
    ),
    State.CALLING: frozenset(
        {
            State.DELIVERED,
            State.ACCEPTED,
            State.SCHEDULED,
            State.UNKNOWN,
            State.REJECTED,
            State.EXPIRED,
            State.EXHAUSTED,
            State.CANCELLED,
            State.SUPERSEDED,
            State.BLOCKED,
        }
    ),
    State.ACCEPTED: frozenset({State.DELIVERED, State.REJECTED, State.UNKNOWN, State.ABANDONED}),
    State.UNKNOWN: frozenset(
        {
            State.CALLING,
            State.DELIVERED,
            State.ACCEPTED,
            State.SCHEDULED,
            State.REJECTED,
            State.EXPIRED,
            State.EXHAUSTED,
            State.CANCELLED,
            State.SUPERSEDED,
            State.BLOCKED,
            State.ABANDONED,
        }
    ),
    State.BLOCKED: frozenset(
        {
            State.SCHEDULED,
            State.DELIVERED,  # a late reply to an earlier attempt
            State.ACCEPTED,  # the same
            State.EXPIRED,
            State.CANCELLED,
            State.SUPERSEDED,
            State.ABANDONED,
        }
    ),
    # Endings move on by a recorded decision only: reopen (the next generation) or correct (what evidence shows).
    State.DELIVERED: frozenset({State.REJECTED, State.ABANDONED}),
    State.REJECTED: frozenset({State.SCHEDULED, State.DELIVERED}),
    State.EXPIRED: frozenset({State.SCHEDULED, State.DELIVERED}),
    State.EXHAUSTED: frozenset({State.SCHEDULED, State.DELIVERED}),
    State.CANCELLED: frozenset({State.DELIVERED}),
    State.SUPERSEDED: frozenset({State.DELIVERED}),
    State.INELIGIBLE: frozenset({State.DELIVERED}),
    State.ABANDONED: frozenset({State.DELIVERED, State.REJECTED}),
}


def may_follow(before: State, after: State) -> bool:
    """Whether ``after`` may directly follow ``before``."""
    return after in MOVES[before]
