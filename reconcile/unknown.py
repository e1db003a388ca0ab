"""What a finding permits: pure rules, tested one by one. The ledger enforces them again (``duly.found``).

An effect that is found settles at any time. Absence concludes only when every rule below holds, twice, a lag apart; then
the same key may be sent again. Nothing is concluded because somebody got tired of asking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from provider.port import Finding, FindingName


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when a look-up has answered. Times were compared by the ledger's clock."""

    conclusive: bool
    """The look-up is by exact key, and authoritative or with a known lag: the provider's own word in duly.toml."""
    settled: bool
    """No request of any attempt can still be under way: stall bound, flight, processing and lag have passed since."""
    canary: FindingName | None
    """What the same query found of an operation delivered by reply on this connection; None: there is none at hand."""
    absent_before: bool
    """An absence that met every rule was seen before."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """``counts``: this absence meets every rule but the second one. ``why`` is kept and shown."""

    counts: bool
    why: str


ABSENCE_RULES: tuple[tuple[Callable[[Facts], bool], str], ...] = (
    (
        lambda facts: facts.conclusive,
        "this provider's look-up cannot prove absence: it is not by exact key with a known lag",
    ),
    (lambda facts: facts.settled, "a request may still be under way: the settle time has not passed"),
    (
        lambda facts: facts.canary is not None,
        "no canary at hand: nothing delivered lately on this connection shows that the query works",
    ),
    (
        lambda facts: facts.canary == FindingName.APPLIED,
        "the canary was not found by the same query, so the look-up itself is in doubt",
    ),
)
"""In this order; the first that does not hold is the reason why an absence concludes nothing."""

SAID = {
    FindingName.APPLIED: "found: it was delivered",
    FindingName.WORKING: "the provider is still working on it",
    FindingName.REFUSED: "the provider finished it without effect",
    FindingName.SEVERAL: "more than one effect was found: a person must look",
    FindingName.CANNOT_TELL: "the provider could not tell",
}


def judge(finding: Finding, facts: Facts) -> Judgement:
    """What this finding is worth."""
    if finding.name != FindingName.ABSENT:
        return Judgement(False, SAID[finding.name])
    for holds, reason in ABSENCE_RULES:
        if not holds(facts):
            return Judgement(False, f"absent, which concludes nothing: {reason}")
    if facts.absent_before:
        return Judgement(True, "absent again, a lag after the first: it was not delivered")
    return Judgement(True, "absent; a second absence a lag later concludes")
