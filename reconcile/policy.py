"""What follows each outcome: pure data, the same table as ``duly.rule`` in the database (a test compares them).

``duly retry-table`` prints it. The default for anything not listed is ``unknown``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from provider.port import Outcome, OutcomeName


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table. ``counts``: whether it uses up one of the kind's ``max_attempts``."""

    then: str
    ends_as: str | None
    counts: bool
    example: str
    delay: str
    alert: str
    replay: str


TABLE: Mapping[OutcomeName, Rule] = MappingProxyType(
    {
        OutcomeName.DELIVERED: Rule(
            "end", "delivered", True,
            "complete 2xx; a 2xx whose body was cut", "none", "no", "refused",
        ),
        OutcomeName.ACCEPTED: Rule(
            "accepted", None, True,
            "202, queued at the provider", "accepted_bound", "age", "never sent again",
        ),
        OutcomeName.NOT_SENT: Rule(
            "again", None, False,
            "connection refused, DNS, pool: no request header left", "backoff", "when it lasts", "automatic, same key",
        ),
        OutcomeName.NOT_PROCESSED: Rule(
            "again", None, True,
            "421, refused stream: the adapter vouches", "hint or backoff", "when it lasts", "automatic, same key",
        ),
        OutcomeName.THROTTLED: Rule(
            "again", None, False,
            "429", "hint or backoff, for the whole connection", "queue age", "automatic, same key",
        ),
        OutcomeName.IN_FLIGHT: Rule(
            "unknown", None, True,
            "this key is being processed", "none", "age", "by evidence or decision",
        ),
        OutcomeName.UNKNOWN: Rule(
            "unknown", None, True,
            "after the first header byte: reset, time-out, 5xx, odd 3xx, worker death", "none", "age, by kind",
            "by evidence or decision",
        ),
        OutcomeName.DUPLICATE: Rule(
            "unknown", None, True,
            "the provider says that it has it already", "none", "age", "by evidence or decision",
        ),
        OutcomeName.REJECTED: Rule(
            "end", "rejected", True,
            "validation, decline", "none", "owner", "a newer version",
        ),
        OutcomeName.DENIED: Rule(
            "again", None, False,
            "401, 403, TLS trust", "until the connection is released", "one per connection", "release, same key",
        ),
        OutcomeName.KEY_MISMATCH: Rule(
            "block", None, True,
            "same key, other body", "none", "page", "after investigation",
        ),
        OutcomeName.INVALID: Rule(
            "end", "rejected", True,
            "the payload does not fit its kind", "none", "owner", "a newer version",
        ),
        OutcomeName.DEFECT: Rule(
            "block", None, True,
            "our own exception (unknown instead, if bytes may have left)", "until a deploy", "page",
            "by key, after a deploy",
        ),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential with full jitter. Seconds."""

    base: float
    cap: float

    def delay(self, attempt: int, hint: float | None, rng: random.Random) -> float:
        """Seconds before the next attempt: never less than the provider's hint, never less than a second.

        Full jitter, so that what failed together does not come back together.
        """
        ceiling = min(self.cap, self.base * 2.0 ** min(attempt - 1, 30))
        return max(1.0, hint or 0.0, rng.uniform(0.0, ceiling))


def delay_ms(outcome: Outcome, attempt: int, backoff: Backoff, rng: random.Random) -> int:
    """Milliseconds to wait after this outcome; 0 where nothing is sent again by itself."""
    if TABLE[outcome.name].then != "again" or outcome.name == OutcomeName.DENIED:
        return 0
    return round(backoff.delay(attempt, outcome.retry_after, rng) * 1000)
