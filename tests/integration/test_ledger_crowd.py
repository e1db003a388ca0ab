"""Everything at once on a few rows: nobody blocks anybody for ever, and the books are right afterwards."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy.exc import DBAPIError

from ledger import transitions
from tests.integration.ledger_steps import Books, sqlstate, together

SUBJECTS, VERSIONS, ACTORS, STEPS = 2, 8, 8, 60
"""Few rows and many actors, so that they meet."""

OUTCOMES = (
    "delivered",
    "not_processed",
    "not_sent",
    "unknown",
    "denied",
    "throttled",
    "rejected",
    "accepted",
    "defect",
)


class Actor:
    """Does one thing after the other to any of the rows; what is refused by a rule is an answer."""

    def __init__(self, books: Books, seed: int) -> None:
        self.books = books
        self.dice = random.Random(seed)
        self.seen: Counter[str] = Counter()

    async def run(self) -> Counter[str]:
        for _ in range(STEPS):
            act = self.dice.choice((self.schedule, self.claim, self.claim, self.claim, self.reply, self.cancel,
                                    self.reschedule, self.sweep, self.release, self.decide, self.instruct))  # fmt: skip
            try:
                await act()
            except DBAPIError as error:
                self.seen[f"{act.__name__} {sqlstate(error)}"] += 1
        return self.seen

    def pick(self) -> tuple[str, str, int]:
        subject, version = self.dice.randrange(SUBJECTS), self.dice.randrange(1, VERSIONS + 1)
        return f"k{subject}-{version}", f"s{subject}", version

    async def schedule(self) -> None:
        key, subject, version = self.pick()
        await self.books.schedule(key, subject=subject, version=version)

    async def attempts(self, key: str) -> int:
        rows = await self.books.sql("SELECT attempts FROM duly.operation WHERE key = :key", key=key)
        return int(rows[0]["attempts"]) if rows else 0

    async def claim(self) -> None:
        key, _, _ = self.pick()
        if (await self.books.claim(key, await self.attempts(key) + 1)).granted:
            self.seen["granted"] += 1
            if self.dice.random() < 0.7:  # the rest fall silent, or reply late
                await self.books.reply(self.dice.choice(OUTCOMES), key, await self.attempts(key))

    async def reply(self) -> None:
        if self.books.tokens:
            (key, attempt), token = self.dice.choice(list(self.books.tokens.items()))
            assert isinstance(token, UUID)
            await self.books.reply(self.dice.choice(OUTCOMES), key, attempt, token=token)

    async def cancel(self) -> None:
        if self.dice.random() < 0.2:
            await transitions.cancel(self.books.engine, self.pick()[0], "not wanted")

    async def reschedule(self) -> None:
        now = await self.books.now()
        await transitions.reschedule(self.books.engine, self.pick()[0], now, now + timedelta(hours=1), "moved")

    async def sweep(self) -> None:
        for row in await self.books.dispatch(limit=3):
            if self.dice.random() < 0.5:
                await transitions.give_back(self.books.engine, row, untried=True)

    async def release(self) -> None:
        await transitions.release_connection(self.books.engine, "main", "credential renewed")

    async def decide(self) -> None:
        await self.books.decide(self.dice.choice(("delivered", "not delivered", "abandon")), self.pick()[0])

    async def instruct(self) -> None:
        await self.books.instruct(self.pick()[0])


@pytest.mark.parametrize("seed", range(3))
async def test_a_crowd_on_a_few_rows_neither_deadlocks_nor_waits_nor_spoils_the_books(books: Books, seed: int) -> None:
    await books.configure(max_attempts=5, lease=10.05, call_limit=10)
    crowd = await together(*(Actor(books, seed * ACTORS + number).run() for number in range(ACTORS)))
    failed = [result for result in crowd if isinstance(result, BaseException)]
    assert not failed, failed
    seen: Counter[str] = sum(crowd, Counter())
    answers = {"23505", "P0002"}  # an older version, a key that is not there yet
    assert {name for name in seen if name.split()[-1] not in answers} == {"granted"}, seen
    assert seen["granted"] > 0
