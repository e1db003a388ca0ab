"""What must hold of every operation after every test: design section 9, 2, 6 and 7."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from ledger.states import ENDINGS, MOVES, UNCERTAIN, State
from tests.integration.ledger_steps import Books, Row


async def audit(books: Books) -> None:
    """Every operation: its history is legal and folds to the row; its counters are what its attempts say."""
    rules = {row["outcome"]: row["counts"] for row in await books.sql("SELECT * FROM duly.rule")}
    for found in await books.sql("SELECT key FROM duly.operation ORDER BY key"):
        row = await books.row(found["key"])
        assert fold(row["history"]) == {name: row[name] for name in FOLDED}, row["key"]
        open_attempts = sum(attempt["resolved_at"] is None for attempt in row["attempt"])
        if row["state"] != "delivered":
            assert row["open_attempts"] == open_attempts, row["key"]
        else:
            assert (row["open_attempts"], open_attempts) == (0, 0), row["key"]
        assert [attempt["number"] for attempt in row["attempt"]] == list(range(1, row["attempts"] + 1))
        # A decision that opens it again, or as a new effect, gives it its attempts anew.
        anew = [a for a in row["attempt"] if (a["generation"], a["epoch"]) == (row["generation"], row["epoch"])]
        assert row["spent"] == sum(counts(attempt, rules) for attempt in anew), row["key"]
        if row["ended_at"] is None:
            in_view = row["state"] in ("unknown", "blocked")
            assert row["wake_at"] is not None or in_view, f"{row['key']} is {row['state']} and waits unseen"


def counts(attempt: Row, rules: Mapping[str, bool]) -> bool:
    """Whether an attempt uses up one of its kind's."""
    outcome = attempt["outcome"]
    return outcome is not None and (rules[outcome] or (outcome == "not_sent" and attempt["sent"]))


FOLDED = ("state", "state_since", "ended_at", "attempts", "due_at", "deadline", "stop_requested", "settled_by")


def fold(history: list[Row]) -> Row:
    """What an operation must look like after its history; asserts that each step is legal."""
    now: Row = dict.fromkeys(FOLDED)
    now["attempts"] = 0
    for line in history:
        assert line["before"] == now["state"], line
        before, after, detail = line["before"], State(line["after"]), line["detail"] or {}
        if before is None:
            assert after is State.SCHEDULED, line
            now.update(due_at=moment(detail["due"]), deadline=moment(detail["deadline"]))
        elif before != after:
            assert after in MOVES[State(before)], line
        else:
            assert after not in ENDINGS or "decision" in detail, line
        if before != after:
            now.update(state=str(after), state_since=line["at"], ended_at=line["at"] if after in ENDINGS else None)
        if (line["attempt"] or 0) > now["attempts"]:
            assert after in UNCERTAIN, line
            assert line["attempt"] == now["attempts"] + 1, line
            now["attempts"] = line["attempt"]
        for name, column in (("new_due", "due_at"), ("new_deadline", "deadline")):
            if name in detail:
                now[column] = moment(detail[name])
        now["stop_requested"] = detail.get("stop_requested", now["stop_requested"])
        if before != after:
            now["settled_by"] = detail.get("settled_by")
    return now


def moment(value: str) -> datetime:
    return datetime.strptime(value, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
