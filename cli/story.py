"""One operation's record as a timeline that a person can read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from cli.output import age, clock

# Control characters and the ones that turn text around: providers wrote some of this, and it goes to a terminal.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

NEXT = {
    "scheduled": "It is sent when it is due, if nothing forbids it then.",
    "calling": "An attempt may be in flight. Its reply, or the end of its lease, moves it on.",
    "accepted": "The provider took it and finishes later.",
    "unknown": "Nobody knows whether it happened. ./duly unknown says what is next. Look at the provider, then:\n"
    "    ./duly resolve {key} --delivered REFERENCE --reason TEXT\n"
    "    ./duly resolve {key} --not-delivered --reason TEXT\n"
    "    ./duly resolve {key} --abandon --reason TEXT",
    "blocked": "Somebody must mend something first. No call is made meanwhile. Then:\n"
    "    ./duly resolve {key} --release --reason TEXT",
}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Head, timeline, and what comes next."""
    yield f"{found['key']}: {found['state'].upper()}{_how(found)}, for {age(found['age_s'])}"
    yield f"  kind       {found['kind']}" + (f"   tenant {found['tenant']}" if found["tenant"] else "")
    if found["subject"]:
        yield f"  subject    {found['subject']}, version {found['version']}"
    yield f"  due        {clock(found['due_at'])}   deadline {clock(found['deadline'])}"
    yield f"  attempts   {found['attempts']}, of which {found['open_attempts']} not resolved"
    if found["provider_reference"]:
        yield f"  reference  {fit(found['provider_reference'])}"
    for name, label in (("waiting_for", "waits for"), ("stop_requested", "stop"), ("dispatch_error", "not started")):
        if found[name] and not found["ended_at"]:
            yield f"  {label:<10} {fit(found[name])}"
    if found["contradicted"]:
        yield "  CONTRADICTED: evidence says something else than the ending"
    yield ""
    for at, text in sorted(_events(found), key=lambda event: event[0]):
        yield f"{clock(at)}  {text}"
    following = NEXT.get(found["state"])
    if following:
        yield ""
        yield following.format(key=found["key"])


def _how(found: dict[str, Any]) -> str:
    return f" (settled by {found['settled_by']})" if found["settled_by"] else ""


def fit(text: Any) -> str:
    """Without what a terminal would obey."""
    return _UNFIT.sub("\ufffd", str(text))


def _events(found: dict[str, Any]) -> Iterator[tuple[datetime, str]]:
    for row in found["history"]:
        if row["before"] is None or row["before"] == row["after"]:
            move = row["after"] if row["before"] is None else "·"
        else:
            move = f"{row['before']} → {row['after']}"
        yield row["at"], f"{move}  {fit(row['why'])}  [{fit(row['who'])}]"
    for row in found["attempt"]:
        if row["recorded_at"] is None:
            yield (
                row["claimed_at"],
                f"attempt {row['number']}  in flight, or died; lease until {clock(row['lease_until'])}",
            )
            continue
        parts = [
            f"attempt {row['number']}  {row['outcome']}",
            f"HTTP {row['status_code']}" if row["status_code"] else "",
            "" if row["sent"] is None else "sent" if row["sent"] else "not sent",
            f"reference {fit(row['provider_reference'])}" if row["provider_reference"] else "",
            f"{row['call_ms']:.0f} ms" if row["call_ms"] is not None else "",
            fit(row["detail"]) if row["detail"] else "",
            f"resolved by {fit(row['resolved_by'])}" if row["resolved_by"] else "NOT RESOLVED",
        ]
        yield row["recorded_at"], ", ".join(part for part in parts if part)
    for row in found["evidence"]:
        yield (
            row["at"],
            f"evidence  {fit(row['source'])}: {fit(row['finding'])}{_detail(row['detail'])}  [{fit(row['who'])}]",
        )
    for row in found["decision"]:
        reference = f", reference {fit(row['reference'])}" if row["reference"] else ""
        who = row["decided_by"] + (f" ({row['label']})" if row["label"] else "")
        shown = _detail(row["evidence"])
        effective = f", effective {clock(row['effective_at'])}" if row["effective_at"] > row["at"] else ""
        yield (
            row["at"],
            f"decision {row['id']}  {row['choice']}{reference}{effective}: {fit(row['reason'])}{shown}  "
            f"[{fit(who)}, {row['by_right']}]",
        )
    for row in found["approval"]:
        who = f"[{fit(row['approved_by'])}, {row['by_right']}]"
        yield row["at"], f"decision {row['decision']}  approved: {fit(row['reason'])}  {who}"
    for row in found["plan"]:
        if row["applied_at"] is not None:
            yield row["applied_at"], f"plan {row['plan']}  {fit(row['answer'])}  [{fit(row['applied_by'])}]"


def told(sentences: list[Any]) -> Iterator[str]:
    """What ``reconcile.explain`` says, as lines: the story with its times, then what stands."""
    about = "story"
    for sentence in sentences:
        if sentence.about != about:
            about = sentence.about
            yield ""
        yield f"{clock(sentence.at)}  {fit(sentence.text)}" if sentence.at else fit(sentence.text)


def _detail(detail: Any) -> str:
    if not isinstance(detail, dict) or not detail:
        return ""
    return " (" + ", ".join(f"{name} {fit(value)}" for name, value in detail.items()) + ")"
