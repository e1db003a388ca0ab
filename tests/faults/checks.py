"""What must hold after every failure, from independent records: the ledger and the provider's own."""

from __future__ import annotations

from ledger.states import ENDINGS, State, may_follow
from tests.harness import Site

NO_EFFECT = ENDINGS - {State.DELIVERED, State.ABANDONED}
"""Endings that say that nothing happened."""


def check(site: Site) -> None:
    """The invariants of one site, all its operations."""
    effects, requests = site.sandbox.effects(prefix=site.prefix), site.sandbox.requests(prefix=site.prefix)
    rows = {row["key"]: row for row in site.sql("SELECT * FROM duly.operation")}
    alerts = {(row["alert"], row["name"]) for row in site.sql("SELECT alert, name FROM duly.alerts")}
    assert {request["key"] for request in requests} <= rows.keys(), "the provider knows a key that the ledger does not"
    for key, row in rows.items():
        state, had = State(row["state"]), len(effects.get(key, []))
        attempts = site.attempts(key)
        assert had <= 1, f"{key} had {had} effects"
        assert had == 1 or state != State.DELIVERED, f"{key} is delivered and had no effect"
        assert had == 0 or state not in NO_EFFECT, f"{key} is {state} and had an effect"
        # Each request stands on a claim of its own that may have been sent.
        sendable = [attempt for attempt in attempts if attempt["sent"] is not False]
        asked = sum(request["key"] == key for request in requests)
        assert asked <= len(sendable), f"{key}: {asked} requests for {len(sendable)} attempts that may have been sent"
        assert [attempt["number"] for attempt in attempts] == list(range(1, row["attempts"] + 1))
        assert len({attempt["idempotency_key"] for attempt in attempts}) <= 1
        assert row["open_attempts"] == sum(attempt["resolved_at"] is None for attempt in attempts)
        # Ended, or it wakes by itself, or somebody is told.
        assert state in ENDINGS or row["wake_at"] or (str(state), key) in alerts, f"{key} is forgotten in {state}"
        assert ((str(state), key) in alerts) == (state in (State.UNKNOWN, State.BLOCKED))
        _history(site, key, state, row["attempts"])


def _history(site: Site, key: str, state: State, attempts: int) -> None:
    """Complete, legal by the state table, and it leads to the row as it stands."""
    before: State | None = None
    claimed = 0
    for row in site.sql("SELECT before, after FROM duly.history WHERE key = %s ORDER BY seq", key):
        after = State(row["after"])
        assert row["before"] == before, f"{key}: a step from {before} is missing"
        if before is not None and before != after:
            assert may_follow(before, after), f"{key}: {before} to {after}"
        # A stand-in for an attempt that the ledger forgot comes without a claim.
        claimed += after == State.CALLING or (before == State.SCHEDULED and after == State.UNKNOWN)
        before = after
    assert before == state, f"{key}: history ends in {before}"
    assert claimed == attempts, f"{key}: {claimed} claims in the history, {attempts} attempts"
