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
    "unknown": "Nobody knows whether it happened. It is not sent again by itself. Look at the provider, then:\n"
    "    ./duly resolve {key} --delivered REFERENCE --reason TEXT\n"
    "    ./duly resolve {key} --not-delivered --reason TEXT\n"
    "    ./duly resolve {key} --abandon --reason TEXT",
    "blocked": "Somebody must mend something first. No call is made meanwhile. Then schedule a newer version, or:\n"
    "    ./duly cancel {key} --reason TEXT",
}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Head, timeline, and what comes next."""
    yield f"{found['key']}: {found['state'].upper()}{_how(found)}, for {age(found['age_s'])}"
    yield f"  kind       {found['kind']}" + (f"   tenant {found['tenant']}" if found["tenant"] else "")
    if found["subject"]:
        yield f"  subject    {found['subject']}, version {found['version']}"
    yield f"  due        {clock(found['due_at'])}   deadline {clock(found['deadline'])}"
    yield f"  attempts   {found['attempts']}" + (
        f", of which {found['open_attempts']} not resolved" if found["attempts"] else ""
    )
    if found["provider_reference"]:
        yield f"  reference  {_fit(found['provider_reference'])}"
    for name, label in (("waiting_for", "waits for"), ("stop_requested", "stop"), ("dispatch_error", "not started")):
        if found[name] and not found["ended_at"]:
            yield f"  {label:<10} {_fit(found[name])}"
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


def _fit(text: Any) -> str:
    return _UNFIT.sub("\ufffd", str(text))


def _events(found: dict[str, Any]) -> Iterator[tuple[datetime, str]]:
    for row in found["history"]:
        if row["before"] is None or row["before"] == row["after"]:
            move = row["after"] if row["before"] is None else "·"
        else:
            move = f"{row['before']} → {row['after']}"
        why = "" if row["why"] == move else f"  {_fit(row['why'])}"
        yield row["at"], f"{move}{why}  [{_fit(row['who'])}]"
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
            f"reference {_fit(row['provider_reference'])}" if row["provider_reference"] else "",
            f"{row['call_ms']:.0f} ms" if row["call_ms"] is not None else "",
            _fit(row["detail"]).rstrip(".") if row["detail"] else "",
            f"resolved by {_fit(row['resolved_by'])}" if row["resolved_by"] else "NOT RESOLVED",
        ]
        yield row["recorded_at"], ", ".join(part for part in parts if part)
    for row in found["evidence"]:
        yield (
            row["at"],
            f"evidence  {_fit(row['source'])}: {_fit(row['finding'])}{_detail(row['detail'])}  [{_fit(row['who'])}]",
        )
    for row in found["decision"]:
        reference = f", reference {_fit(row['reference'])}" if row["reference"] else ""
        who = row["decided_by"] + (f" ({row['label']})" if row["label"] else "")
        shown = _detail(row["evidence"])
        effective = f", effective {clock(row['effective_at'])}" if row["effective_at"] > row["at"] else ""
        yield (
            row["at"],
            f"decision {row['id']}  {row['choice']}{reference}{effective}: {_fit(row['reason'])}{shown}  "
            f"[{_fit(who)}, {row['by_right']}]",
        )


def _detail(detail: Any) -> str:
    if not isinstance(detail, dict) or not detail:
        return ""
    return " (" + ", ".join(f"{name} {_fit(value)}" for name, value in detail.items()) + ")"
