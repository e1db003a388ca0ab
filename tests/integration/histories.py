"""Random histories of one operation, by the ledger's own functions, and the truth that the ledger cannot know.

A make-believe provider says what it did only as a real one would: replies may be lost or late, look-ups may lag, people
may be wrong. What it really did is kept here, so that every claim about effects can be checked.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from ledger import decisions, transitions
from ledger.answers import Reply
from tests.integration.ledger_steps import LEASE, MAIL, SETTLE, Books, Row

WITHIN, LAG = 3_600, 20
"""Seconds: for how long a repeat is safe (the provider remembers twice as long), and how late a look-up sees."""

KINDS = [
    {**MAIL, "name": f"{'knows' if knows else 'plain'}-{'asked' if asked else 'mute'}", "max_attempts": 2,
     "repeat_within": WITHIN if knows else 0, "look_ups": [5, 60] if asked else [],
     "look_up_lag": LAG if asked else None, "look_up_conclusive": asked}
    for knows in (True, False) for asked in (True, False)
]  # fmt: skip

NONE = ("not_processed", "throttled", "denied", "key_mismatch", "rejected")
"""What a provider says when it did nothing."""


@dataclass
class World:
    """One operation, what was done with it, and what really happened."""

    books: Books
    rng: random.Random
    key: str
    kind: Row
    effects: dict[str, list[tuple[str, datetime]]] = field(default_factory=dict)
    """Real effects by idempotency key: reference and time."""
    had: dict[int, str | None] = field(default_factory=dict)
    """By attempt: the effect that it really had."""
    replies: dict[int, Reply] = field(default_factory=dict)
    """Replies that have not come yet."""
    tokens: dict[int, UUID] = field(default_factory=dict)
    told: dict[int, bool] = field(default_factory=dict)
    """By decision: whether what the person said was true."""
    steps: list[str] = field(default_factory=list)

    @property
    def real(self) -> int:
        """How many effects there really are."""
        return sum(len(found) for found in self.effects.values())

    @property
    def recognises(self) -> bool:
        return bool(self.kind["repeat_within"])

    async def begin(self) -> None:
        version = {"subject": f"s-{self.key}", "version": 1} if self.rng.random() < 0.3 else {}
        deadline = self.rng.choice([60, 400, 400, 86_400])
        await self.books.schedule(self.key, kind=self.kind["name"], deadline=deadline, **version)

    async def step(self) -> bool:
        """One random step that makes sense in this state; False: nothing is left to do."""
        (row,) = await self.books.sql(
            "SELECT o.*, ARRAY(SELECT a.number FROM duly.attempt a WHERE a.key = o.key AND a.resolved_at IS NULL) "
            "AS open FROM duly.operation o WHERE o.key = :key",
            key=self.key,
        )
        possible: list[tuple[float, Callable[[Row], Awaitable[None]]]] = []
        if row["state"] in ("scheduled", "unknown"):
            possible.append((4, self.attempt))
        if row["state"] in ("calling", "unknown", "accepted", "scheduled"):
            possible.append((2, self.wait))
        if self.replies:
            possible.append((3, self.reply))
        if row["state"] in ("unknown", "accepted") and self.kind["look_ups"]:
            possible.append((3, self.look_up))
        if row["state"] not in ("scheduled", "calling"):
            possible.append((2, self.decide))
        if row["state"] == "scheduled" and row["attempts"] == 0:
            possible.append((0.3, self.forget))
        if row["ended_at"] is None:
            possible.append((0.15, self.cancel))
            if row["subject"]:
                possible.append((0.2, self.supersede))
        chosen = self.rng.choices([step for _, step in possible], [weight for weight, _ in possible])[0]
        self.steps.append(chosen.__name__)
        await chosen(row)
        return bool(self.replies) or row["ended_at"] is None or self.rng.random() < 0.5

    # The provider.

    async def attempt(self, row: Row) -> None:
        claimed = await self.books.claim(self.key, row["attempts"] + 1, generation=row["generation"])
        if not claimed.granted:
            await self.books.move_time(70)  # more than a grace
            return
        number = claimed.attempt
        self.tokens[number] = self.books.tokens[self.key, number]
        reply = await self._perform(number, claimed.idempotency_key)
        if reply is not None:
            self.replies[number] = reply

    async def _perform(self, number: int, key: str) -> Reply | None:
        """What the provider does now, and what it would say; None: it says nothing, ever."""
        self.had[number] = None
        fate = self.rng.random()
        if fate < 0.12:
            return Reply(self.rng.choice(["not_sent", "invalid", "defect"]), sent=False)
        lost = self.rng.random() < 0.45
        now = await self.books.now()
        known = [each for each, at in self.effects.get(key, []) if now - at < timedelta(seconds=2 * WITHIN)]
        if self.recognises and known:
            self.had[number] = known[-1]
        elif fate < 0.4:
            said = Reply(self.rng.choice(["unknown", "in_flight"]) if lost else self.rng.choice(NONE), sent=True)
            return None if lost and self.rng.random() < 0.3 else said
        else:
            made = f"re_{uuid4().hex[:8]}"
            self.effects.setdefault(key, []).append((made, now))
            self.had[number] = made
        if lost:
            return self.rng.choice([None, Reply("unknown", sent=True), Reply("duplicate", sent=True)])
        reference = self.had[number] if self.rng.random() < 0.7 else None
        outcome = "accepted" if self.rng.random() < 0.2 else "delivered"
        return Reply(outcome, sent=True, status_code=202 if outcome == "accepted" else 201, reference=reference)

    async def reply(self, row: Row) -> None:
        number = self.rng.choice(sorted(self.replies))
        reply = self.replies.pop(number)
        await transitions.record(
            self.books.engine, key=self.key, attempt=number, token=self.tokens[number], reply=reply, who="worker"
        )
        if reply.outcome == "denied":
            await decisions.release_connection(self.books.engine, "main", "mended at once")

    async def look_up(self, row: Row) -> None:
        asked = await transitions.look_up(self.books.engine, self.key, row["generation"], "worker")
        if asked.act != "look_up" or asked.delay_ms:
            await self.books.move_time((asked.delay_ms or 5_000) / 1000)
            return
        seen = [each for key in asked.idempotency_keys for each, at in self.effects.get(key, [])]
        finding, reference, counts = "cannot tell", None, False
        if self.rng.random() < 0.8:
            finding = "absent" if not seen else "applied" if len(seen) == 1 else "several"
            if not asked.settled and self.rng.random() < 0.3:
                finding = "absent"  # it lags
            counts = finding == "absent" and asked.settled
            reference = seen[0] if finding == "applied" and self.rng.random() < 0.7 else None
            if finding == "absent" and row["state"] == "accepted" and not seen and self.rng.random() < 0.5:
                finding = "refused"
        await transitions.found(
            self.books.engine, key=self.key, generation=asked.generation, attempt=asked.attempt, finding=finding,
            reference=reference, detail={}, counts=counts, why="it said so", who="worker",
        )  # fmt: skip

    # Time and people.

    async def wait(self, row: Row) -> None:
        await self.books.move_time(self.rng.choice([LEASE, SETTLE, SETTLE + LEASE, WITHIN]))
        await self.books.instruct(self.key, row["generation"])

    async def cancel(self, row: Row) -> None:
        await transitions.cancel(self.books.engine, self.key, "not wanted")

    async def supersede(self, row: Row) -> None:
        subject = row["subject"]
        (newest,) = await self.books.sql("SELECT newest_version AS n FROM duly.subject WHERE subject = :s", s=subject)
        version = newest["n"] + 1
        name = f"{self.key}-v{version}"
        await self.books.schedule(name, kind=self.kind["name"], subject=subject, version=version)

    async def forget(self, row: Row) -> None:
        """An older copy of the ledger was restored: up to two calls were made that it does not know of."""
        for found in await self.books.dispatch():
            if found.key == self.key:
                await transitions.forgotten(self.books.engine, found, "sweep", "run", "the ledger never asked for it")
                key = (await self.books.row(self.key))["attempt"][0]["idempotency_key"]
                self.had[1] = None
                for _ in range(self.rng.choice([0, 1, 1 if self.recognises else 2])):
                    self.had[1] = f"re_{uuid4().hex[:8]}"
                    self.effects.setdefault(key, []).append((self.had[1], await self.books.now()))

    async def decide(self, row: Row) -> None:
        happened = any(self.had[number] for number in row["open"])
        ever = any(self.had.values())
        choices: dict[str, tuple[bool, dict[str, Any]]] = {
            "delivered": (happened, {"reference": None, "evidence": {"seen": "it"}}),
            "not delivered": (not happened, {}),
            "new epoch": (True, {}),
            "abandon": (True, {}),
            "release": (True, {}),
            "extend": (True, {"deadline": row["deadline"] + timedelta(hours=1)}),
            "reopen": (True, {"deadline": max(await self.books.now(), row["deadline"]) + timedelta(hours=1)}),
            "correct": (True, {}),
        }
        fit = {
            "unknown": ["delivered", "not delivered", "not delivered", "new epoch", "new epoch", "abandon", "extend"],
            "blocked": ["release", "release", "abandon"],
            "accepted": ["delivered", "abandon"],
        }.get(row["state"], ["correct", "reopen", "reopen", "reopen"])
        choice = self.rng.choice(fit)
        true, more = choices[choice]
        if choice == "correct":
            ending = self.rng.choice(["delivered", "rejected", "abandoned", row["state"]])
            true = {"delivered": ever, "rejected": not ever}.get(ending, True)
            more = {"ending": ending}
        answer = await self.books.decide(choice, self.key, **{"reference": None, **more})
        if answer.decision is not None:
            self.told[answer.decision] = true
            self.steps[-1] += f" {choice}{'' if true else ' (wrongly)'}"
