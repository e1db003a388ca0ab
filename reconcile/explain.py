"""One operation's record as plain English: what happened, how it stands, why no second effect can have happened.

Pure: it reads nothing but the record that ``ledger.queries.operation`` gives. Attempts, decisions and evidence are
named by their numbers, so that every sentence can be checked against the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from reconcile.effects import (
    STAND_IN,
    Account,
    Record,
    account,
    contradicting,
    counting_absence,
    named_decision,
    repeats,
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """``about``: story (what happened, at its time), state (how it stands), effects (the account) or next."""

    about: str
    text: str
    at: datetime | None = None


def explain(record: Record) -> list[Sentence]:
    """The whole story in order, then how it stands, the account of its effects, and what comes next."""
    found = account(record)
    return [
        *sorted(_story(record), key=lambda sentence: sentence.at or record["created_at"]),
        Sentence("state", _stands(record)),
        *(Sentence("effects", text) for text in _effects(record, found)),
        *(Sentence("next", text) for text in _next(record)),
    ]


def clock(at: datetime | None) -> str:
    """UTC, to the second."""
    return "never" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def listed(numbers: Sequence[int]) -> str:
    """``1``, ``1 and 2``, ``1, 2 and 5``."""
    texts = [str(number) for number in numbers]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]


def attempts(numbers: Sequence[int]) -> str:
    """``attempt 1``, ``attempts 1 and 2``."""
    return f"attempt{'s' if len(numbers) > 1 else ''} {listed(numbers)}"


# What happened.


def _story(record: Record) -> Iterator[Sentence]:
    for row in record["history"]:
        yield Sentence("story", _moved(row, record), row["at"])
    for row in record["attempt"]:
        if row["recorded_at"] is not None:
            yield Sentence("story", _answered(row), row["recorded_at"])
    for row in record["evidence"]:
        yield Sentence("story", _evidence(row), row["at"])
    for row in record["decision"]:
        yield Sentence("story", _decided(row), row["at"])
    for row in record["approval"]:
        text = f"{row['approved_by']} ({row['by_right']}) approved decision {row['decision']}: {row['reason']}."
        yield Sentence("story", text, row["at"])
    for row in record["plan"]:
        yield Sentence("story", f"Plan {row['plan']} of {row['made_by']} took it in: {row['consequence']}.", row["at"])
        if row["applied_at"] is not None:
            text = f"Plan {row['plan']} was applied to it by {row['applied_by']}: {row['answer']}."
            yield Sentence("story", text, row["applied_at"])


def _moved(row: Record, record: Record) -> str:
    detail = row["detail"] or {}
    if row["before"] is None:
        times = f"due {detail.get('due', '')}, deadline {detail.get('deadline', '')}"
        return f"It was scheduled by {row['who']}: kind {record['kind']}, {times}."
    if row["before"] == row["after"]:
        return f"{_upper(row['why'])}; by {row['who']}."
    if row["after"] == "calling":
        how = ", a repeat of the same bytes with the same key," if row["attempt"] in repeats(record) else ""
        return f"Attempt {row['attempt']}{how} was claimed by {row['who']}: from then on it could be under way."
    if row["after"] == "delivered":
        reference = f", reference {detail['reference']}" if detail.get("reference") else ""
        return f"It became delivered, settled by {detail.get('settled_by')}{reference}: {row['why']}."
    return f"It became {row['after']}: {row['why']}."


def _answered(row: Record) -> str:
    number, outcome = row["number"], row["outcome"]
    facts = [
        f"status {row['status_code']}" if row["status_code"] is not None else "",
        f"reference {row['provider_reference']}" if row["provider_reference"] else "",
        row["detail"] or "",
    ]
    said = ", ".join(fact for fact in facts if fact)
    if row["scope"] == STAND_IN:
        return f"Attempt {number} stands for what this ledger does not know: {said}."
    if outcome == "unknown":
        return f"Nothing proves what attempt {number} did{': ' + said if said else ''}."
    left = "" if row["sent"] else ", and no byte of it left"
    return f"Attempt {number} was recorded as {outcome}{left}{': ' + said if said else ''}."


def _evidence(row: Record) -> str:
    detail = dict(row["detail"] or {})
    of = "" if row["attempt"] is None else f" about attempt {row['attempt']}"
    why = detail.get("why") or detail.get("refusal") or detail.get("problem") or detail.get("said")
    said = f"{row['finding']}{'; ' + str(why) if why else ''}"
    if detail.get("reference"):
        said += f", reference {detail['reference']}"
    return f"Evidence {row['id']}, {row['source']}{of}, from {row['who']}: {said}."


def _decided(row: Record) -> str:
    label = f", called {row['label']}" if row["label"] else ""
    parts = [
        f"reference {row['reference']}" if row["reference"] else "",
        f"deadline {clock(row['deadline'])}" if row["deadline"] else "",
        f"to {row['ending']}" if row["ending"] else "",
        f"in effect from {clock(row['effective_at'])}" if row["effective_at"] > row["at"] else "",
    ]
    what = ", ".join([f'"{row["choice"]}"', *(part for part in parts if part)])
    if row["by_right"] == "proposal":
        return (
            f"Decision {row['id']} is only a proposal by {row['decided_by']}{label}: {what}. Reason: {row['reason']}."
        )
    who = f"{row['decided_by']} (right: {row['by_right']}{label})"
    waits = " It needs a second person." if row["needs_approval"] else ""
    return f"Decision {row['id']} of {who}: {what}. Reason: {row['reason']}.{waits}"


# How it stands.


def _stands(record: Record) -> str:
    state, since = record["state"], clock(record["state_since"])
    if state == "delivered":
        by = {"reply": "the provider's reply", "look-up": "a look-up at the provider", "person": "a person's decision"}
        reference = f", reference {record['provider_reference']}" if record["provider_reference"] else ""
        text = f"It is delivered since {since}, settled by {by[record['settled_by']]}{reference}."
    elif record["ended_at"] is not None:
        text = f"It ended as {state} at {since}: {_last_why(record)}."
    else:
        text = f"It is {state} since {since}: {_last_why(record)}."
    if record["contradicted"]:
        text += f" It is contradicted: {_against(record)}."
    return text


def _last_why(record: Record) -> str:
    rows = [row for row in record["history"] if row["before"] != row["after"]]
    return str(rows[-1]["why"])


def _against(record: Record) -> str:
    """What speaks against how it stands."""
    rows = [
        row["id"]
        for row in record["evidence"]
        if row["source"] in ("late reply", "look-up", "reply") and not counting_absence(row)
    ]
    named = f"evidence {listed(rows)} says something else" if rows else "the replies to its attempts do not agree"
    return f"{named}, and nobody has corrected or confirmed it yet"


# The account of effects.


def _effects(record: Record, found: Account) -> Iterator[str]:
    yield from _without(found)
    yield from _possible(record, found)
    so_far = "" if record["ended_at"] is not None else "So far "
    if found.at_most is not None and found.at_most <= 1:
        yield _sentence(so_far + _why_not_two(record, found) + _on_word(record, found))
        return
    if found.proved > 1:
        named = "; ".join(
            f"{attempts(effect.attempts)}{f', reference {effect.reference}' if effect.reference else ''}"
            for effect in found.effects
            if effect.proved
        )
        yield f"{found.proved} effects happened: {named}."
    if found.more or len(found.effects) > max(found.proved, 1):
        word = "A second" if found.proved <= 1 else "A further"
        reasons = list(found.more)
        if len(found.effects) > 1:
            each = [number for effect in found.effects for number in effect.attempts]
            reasons.append(f"{attempts(each)} may have had {len(found.effects)} effects between them")
            reasons.extend(_permissions(record))
        yield f"{word} effect cannot be excluded: {'; '.join(reasons)}."


def _without(found: Account) -> Iterator[str]:
    """Each proof once, with the attempts that it covers."""
    by: dict[str, list[int]] = {}
    for each in found.excluded:
        by.setdefault(each.by, []).append(each.attempt)
    for reason, numbers in by.items():
        yield f"{_upper(attempts(numbers))} had no effect: {reason}."


def _possible(record: Record, found: Account) -> Iterator[str]:
    rows = {row["number"]: row for row in record["attempt"]}
    for effect in found.effects:
        reference = f", reference {effect.reference}" if effect.reference else ""
        if effect.proved and len(effect.attempts) == 1:
            yield f"Attempt {effect.attempts[0]} had an effect{reference}: {_by(rows[effect.attempts[0]], record)}."
            continue
        if effect.same is not None:
            sure = "made one effect" if effect.proved else "can have made one effect, not two"
            yield f"{_upper(attempts(effect.attempts))} {sure}{reference}: {effect.same}."
            continue
        for number in effect.attempts:
            yield f"Attempt {number} may have had an effect: {_doubt(rows[number], record)}."


def _by(row: Record, record: Record) -> str:
    if row["outcome"] == "delivered":
        return "the provider's reply proves it"
    by = str(row["resolved_by"])
    return f"{named_decision(record, int(by.split()[1]))} says so" if by.startswith("decision ") else by


def _doubt(row: Record, record: Record) -> str:
    against = contradicting(record, row["number"])
    if row["effect"] is False and against:
        return f"evidence {listed(against)} says so, though {row['resolved_by']} says that it had none"
    if row["effect"] is False:
        return f"its reply says so, though {row['resolved_by']} says that it had none"
    if row["outcome"] is None:
        return "it is in flight, or died there"
    if row["outcome"] == "accepted":
        return "the provider accepted it, and how it ended there is not known"
    if row["resolved_at"] is None:
        return "nothing has settled what it did"
    if row["effect"]:
        return f"{row['resolved_by']} says that one of them had, and may mean another"
    return f"{row['resolved_by']} set it aside, and nobody said what it did"


def _why_not_two(record: Record, found: Account) -> str:
    made = len(record["attempt"])
    if made == 0:
        return "no effect can have happened: nothing was ever sent"
    if not found.effects:
        each = "its only attempt" if made == 1 else f"each of its {made} attempts"
        return f"no effect can have happened: {each} is known to be without one"
    (effect,) = found.effects
    if made == 1:
        return "no second effect can have happened: one attempt was made, and no other"
    others = ", and each other attempt is known to be without" if made > len(effect.attempts) else ""
    alone = "alone can have had one" if len(effect.attempts) == 1 else "are one to the provider"
    return f"no second effect can have happened: {attempts(effect.attempts)} {alone}{others}"


def _on_word(record: Record, found: Account) -> str:
    if not found.on_word:
        return ""
    named = " and ".join(named_decision(record, number) for number in found.on_word)
    return f". That rests on a person's word, {named.rstrip(',')}"


def _permissions(record: Record) -> Iterator[str]:
    for row in record["decision"]:
        if row["choice"] == "new epoch" and any(_applied(history, row["id"]) for history in record["history"]):
            yield f"{named_decision(record, row['id']).rstrip(',')} permitted a new effect: {row['reason']}"


def _applied(history: Record, decision: int) -> bool:
    return history["before"] != history["after"] and (history["detail"] or {}).get("decision") == decision


# What comes next.


def _next(record: Record) -> Iterator[str]:
    if record["ended_at"] is not None:
        if record["contradicted"]:
            yield f"Somebody must look: ./duly resolve {record['key']} --correct ENDING --reason TEXT"
        return
    outlook = record["outlook"]
    if record["pending_decision"] is not None:
        yield f"Decision {record['pending_decision']} takes effect at {clock(record['pending_at'])}."
    if record["state"] in ("unknown", "accepted") and record["look_at"] is not None:
        yield f"The next look-up is due at {clock(record['look_at'])}."
    if record["state"] == "unknown":
        if outlook["repeat_at"] is not None and record["pending_decision"] is None:
            yield f"The same bytes may be sent again with the same key from {clock(outlook['repeat_at'])}."
        elif outlook["no_repeat"]:
            yield f"It is not repeated by itself: {outlook['no_repeat']}."
        yield f"A person may settle it: see ./duly unknown, and ./duly resolve {record['key']} --help"
    elif record["state"] == "blocked":
        yield "Somebody must mend what is wrong and release it; no call is made meanwhile."
    elif record["state"] == "scheduled":
        due = max(filter(None, (record["due_at"], record["retry_at"])))
        waits = f", and waits for: {record['waiting_for']}" if record["waiting_for"] else ""
        yield f"The next attempt is number {record['attempts'] + 1}, due {clock(due)}{waits}."
    elif record["state"] == "calling":
        yield f"Its reply is awaited until {clock(record['lease_until'])}; silence then means unknown."
    elif record["state"] == "accepted":
        yield f"The provider is asked until {clock(record['lease_until'])}; after that it is unknown."


def _upper(text: Any) -> str:
    return str(text)[:1].upper() + str(text)[1:]


def _sentence(text: str) -> str:
    return f"{_upper(text)}."
