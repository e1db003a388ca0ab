"""How many effects one operation may have had, from its record alone: pure rules over ``ledger.queries.operation``.

Cautious: an effect is counted unless the record proves that there was none, and two attempts count as one effect only
where the same bytes went out with the same key while the provider remembered it, or the provider gave one reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Record = Mapping[str, Any]

NOTHING_LEFT = frozenset({"not_sent", "invalid", "defect"})
"""Our own words; they prove that there was no effect only where no byte left."""

PROVIDER_SAYS_NONE = frozenset({"not_processed", "throttled", "denied", "key_mismatch", "rejected"})
"""The provider's words that prove the same."""

STAND_IN = "unknown"
"""The scope of an attempt that stands for calls which a restored ledger has lost."""

SAME = "they carried the same bytes with the same key"


@dataclass(frozen=True, slots=True)
class Excluded:
    """An attempt without effect, and by what. ``decision``: only by a person's word."""

    attempt: int
    by: str
    decision: int | None = None
    evidence: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Effect:
    """At most one effect. ``proved``: it happened. Several attempts: they are one because of ``same``."""

    attempts: tuple[int, ...]
    proved: bool
    reference: str | None
    same: str | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """What may have happened outside. ``more``: why there may be effects beyond these, each with what says so."""

    excluded: tuple[Excluded, ...]
    effects: tuple[Effect, ...]
    more: tuple[str, ...]

    @property
    def proved(self) -> int:
        """Effects that certainly happened."""
        return sum(effect.proved for effect in self.effects)

    @property
    def at_most(self) -> int | None:
        """Effects that can have happened; None: no bound is known."""
        return None if self.more else len(self.effects)

    @property
    def on_word(self) -> tuple[int, ...]:
        """The decisions by which alone an attempt counts as without effect."""
        return tuple(sorted({each.decision for each in self.excluded if each.decision is not None}))


def account(record: Record) -> Account:
    """Counts. The rows are those of ``ledger.queries.operation``."""
    attempts = record["attempt"]
    excluded = [found for found in (_excluded(row, record) for row in attempts) if found is not None]
    without = {each.attempt for each in excluded}
    effects: list[Effect] = []
    for row in attempts:
        if row["number"] not in without:
            _add(effects, row, record)
    return Account(tuple(excluded), tuple(effects), tuple(_more(record, without)))


def _excluded(attempt: Record, record: Record) -> Excluded | None:
    """By what this attempt is known to be without effect; None: it may have had one."""
    number, outcome = attempt["number"], attempt["outcome"]
    if attempt["effect"] is not False or outcome == "delivered" or contradicting(record, number):
        return None
    status = "" if attempt["status_code"] is None else f", status {attempt['status_code']}"
    if outcome in NOTHING_LEFT and attempt["sent"] is False:
        return Excluded(number, f"no byte of it left ({outcome})")
    if outcome in PROVIDER_SAYS_NONE:
        return Excluded(number, f"the provider's reply proves it ({outcome}{status})")
    by = attempt["resolved_by"] or ""
    if found := re.fullmatch(r"decision (\d+)", by):
        decision = int(found[1])
        return Excluded(number, f"{named_decision(record, decision)} says so", decision=decision)
    if found := re.fullmatch(r"look-up, evidence (\d+)", by):
        last = int(found[1])
        rows = {row["id"]: row for row in record["evidence"]}
        if last in rows and rows[last]["finding"] == "refused":
            said = f"the provider finished it without effect (evidence {last})"
            return Excluded(number, said, evidence=(last,))
        first = [row["id"] for row in record["evidence"] if row["id"] < last and counting_absence(row)]
        both = (*first[-1:], last)
        named = " and ".join(str(each) for each in both)
        return Excluded(number, f"look-ups did not find it (evidence {named})", evidence=both)
    return None


def counting_absence(row: Record) -> bool:
    """Whether this evidence is an absence that meets every rule but the second one."""
    detail = row["detail"] or {}
    return row["source"] == "look-up" and row["finding"] == "absent" and bool(detail.get("counts"))


def contradicting(record: Record, number: int) -> list[int]:
    """Evidence that this attempt was applied, though it is believed to be without effect."""
    return [
        row["id"]
        for row in record["evidence"]
        if row["attempt"] == number and row["source"] == "look-up" and row["finding"] == "applied"
    ]


def named_decision(record: Record, number: int) -> str:
    """``decision 3 of anna``; with the second person's name where there is one."""
    for row in record["decision"]:
        if row["id"] == number:
            second = [each["approved_by"] for each in record["approval"] if each["decision"] == number]
            return f"decision {number} of {row['decided_by']}" + (f", approved by {second[0]}," if second else "")
    return f"decision {number}"


def repeats(record: Record) -> set[int]:
    """Attempts that were claimed as permitted repeats: same bytes, same key, by every rule of that moment."""
    return {
        row["attempt"]
        for row in record["history"]
        if row["attempt"] is not None and (row["before"], row["after"]) == ("unknown", "calling")
    }


def remembered_until(record: Record, epoch: int) -> datetime | None:
    """Until when the provider surely recognises this epoch's key; None: it is not known to recognise any."""
    within = record["policy"]["repeat_within"]
    sent = [row["claimed_at"] for row in record["attempt"] if row["epoch"] == epoch]
    return min(sent) + within if within and sent else None


def _add(effects: list[Effect], attempt: Record, record: Record) -> None:
    """One more effect, unless this attempt can only be the effect of an earlier one."""
    reference = _reference(attempt, record)
    proved = attempt["effect"] is True or attempt["outcome"] == "delivered"
    rows = {row["number"]: row for row in record["attempt"]}
    if attempt["outcome"] != "delivered" and any(
        rows[number]["epoch"] != attempt["epoch"] for effect in effects for number in effect.attempts
    ):
        # Whoever found one effect, a look-up or a person, may have found that of the earlier epoch.
        proved = False
    for index, effect in enumerate(effects):
        same = None
        if reference is not None and reference == effect.reference:
            same = f"the provider gave both the reference {reference}"
        elif reference is None or effect.reference is None:
            same = _same_key(rows[effect.attempts[0]], attempt, record)
        if same is not None:
            effects[index] = Effect(
                (*effect.attempts, attempt["number"]), effect.proved or proved, effect.reference or reference, same
            )
            return
    effects.append(Effect((attempt["number"],), proved, reference))


def _reference(attempt: Record, record: Record) -> str | None:
    """The provider's reference of this attempt's effect, from its reply or from the look-up that found it."""
    if not attempt["effect"]:
        return None
    if attempt["provider_reference"] is None and (
        by := re.fullmatch(r"look-up, evidence (\d+)", attempt["resolved_by"])
    ):
        for row in record["evidence"]:
            if row["id"] == int(by[1]):
                found: str | None = (row["detail"] or {}).get("reference")
                return found
    reference: str | None = attempt["provider_reference"]
    return reference


def _same_key(first: Record, second: Record, record: Record) -> str | None:
    """Why the provider made one effect of both; None: it may have made two."""
    same = ("epoch", "idempotency_key", "scope", "rendering")
    if first["scope"] == STAND_IN or any(first[name] != second[name] for name in same):
        return None
    if second["number"] in repeats(record):
        return f"{SAME}, and a repeat is claimed only while the provider remembers it"
    until = remembered_until(record, second["epoch"])
    if until is not None and second["claimed_at"] + record["policy"]["call_limit"] <= until:
        return f"{SAME}, which the provider remembered until {until:%Y-%m-%d %H:%M:%SZ}"
    return None


def _more(record: Record, without: set[int]) -> Iterator[str]:
    for row in record["attempt"]:
        if row["scope"] == STAND_IN and row["number"] not in without:
            yield f"attempt {row['number']} stands for calls that this ledger has lost, and how many is not known"
    for row in record["evidence"]:
        if row["source"] == "look-up" and row["finding"] == "several":
            yield f"a look-up found more than one effect (evidence {row['id']})"
        elif (row["detail"] or {}).get("lost_attempt"):
            yield f"a reply came to attempt {row['attempt']}, which this ledger has lost (evidence {row['id']})"
