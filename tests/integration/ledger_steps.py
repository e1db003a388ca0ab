"""Steps that tests of the ledger are made of, and the audit that every one of them ends with."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from ledger import decisions, queries, transitions
from ledger.answers import Claimed, Decided, Dispatch, Reply, Scheduled, Step

Row = dict[str, Any]

CALL_LIMIT, LEASE, SETTLE, BOUND = 10, 30, 120, 3600
"""Seconds; distinct, so that a test which mixes them up fails."""

MAX_ATTEMPTS = 2
"""The least with which "again" and "used up" differ."""

GRACE = 60
"""Seconds between the time at which a workflow should act and the sweep's look: duly._grace()."""

MAIL: Mapping[str, Any] = {
    "name": "mail",
    "connection": "main",
    "owner": "orders",
    "required": ["n"],
    "max_attempts": MAX_ATTEMPTS,
    "call_limit": CALL_LIMIT,
    "lease": LEASE,
    "settle": SETTLE,
    "accepted_bound": BOUND,
    "start_lead": 0,
    # By default a doubt waits for a person: the provider can neither be asked nor does it recognise a repeat.
    "look_ups": [],
    "look_up_lag": None,
    "look_up_conclusive": False,
    "repeat_within": 0,
    "stores_errors": False,
    "second_person": False,
}


def sqlstate(error: DBAPIError) -> str | None:
    """The SQLSTATE that the server gave."""
    assert isinstance(error.orig, psycopg.Error)
    return error.orig.sqlstate


@dataclass
class Books:
    """One ledger under test, with one kind, ``mail``, on one connection, ``main``."""

    engine: AsyncEngine
    url: str
    tokens: dict[tuple[str, int], UUID] = field(default_factory=dict)

    async def sql(self, statement: str, **parameters: Any) -> list[Row]:
        """One statement in a transaction of its own, as the owner of everything."""
        async with self.engine.begin() as connection:
            result = await connection.execute(text(statement), parameters)
            return [dict(row) for row in result.mappings()] if result.returns_rows else []

    async def row(self, key: str = "k") -> Row:
        """The operation with its attempts, history, evidence and decisions."""
        record = await queries.operation(self.engine, key)
        assert record is not None, key
        return record

    async def state(self, key: str = "k") -> str:
        return str((await self.row(key))["state"])

    async def now(self) -> datetime:
        """The ledger's clock."""
        value: datetime = (await self.sql("SELECT duly.now() AS now"))[0]["now"]
        return value

    async def move_time(self, seconds: float) -> None:
        """Every later ``duly.now()`` of this database is that much later."""
        await self.sql("UPDATE public.test_clock SET shift = shift + :by", by=timedelta(seconds=seconds))

    async def configure(self, **changes: Any) -> None:
        """The kind ``mail`` with changes."""
        await transitions.configure(
            self.engine, [{**MAIL, **changes}], [{"name": name, "provider": "sandbox"} for name in ("main", "spare")]
        )

    async def schedule(self, key: str = "k", *, due: float = 0, deadline: float = 86_400, **more: Any) -> Scheduled:
        """Schedule and commit; times in seconds from now, a day by default."""
        now = await self.now()
        more = {"kind": "mail", "payload": {"n": 1}, **more}
        async with self.engine.begin() as connection:
            return await transitions.schedule(
                connection,
                key=key,
                due_at=now + timedelta(seconds=due),
                deadline=now + timedelta(seconds=deadline),
                **more,
            )

    async def claim(
        self,
        key: str = "k",
        attempt: int | None = None,
        *,
        generation: int | None = None,
        token: UUID | None = None,
        connections: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Claimed:
        """Claim this attempt (by default the next one); its token is kept when granted."""
        if attempt is None:
            row = await self.row(key)
            attempt = row["attempts"] + 1
            generation = row["generation"] if generation is None else generation
        generation = 1 if generation is None else generation
        token = token or uuid4()
        claimed = await transitions.claim(
            self.engine, key=key, generation=generation, attempt=attempt, token=token,
            worker="worker", run_id="run", activity_id="1", connections=connections,
        )  # fmt: skip
        if claimed.granted:
            self.tokens[key, attempt] = token
        return claimed

    async def granted(self, key: str = "k") -> Claimed:
        claimed = await self.claim(key)
        assert claimed.granted, claimed
        return claimed

    async def reply(self, outcome: str, key: str = "k", attempt: int | None = None, **more: Any) -> Step:
        """Record the outcome of an attempt (by default the newest)."""
        if attempt is None:
            attempt = (await self.row(key))["attempts"]
        sent = more.pop("sent", outcome not in ("not_sent", "invalid", "defect"))
        token = more.pop("token", None) or self.tokens.get((key, attempt)) or uuid4()
        return await transitions.record(
            self.engine, key=key, attempt=attempt, token=token, reply=Reply(outcome=outcome, sent=sent, **more),
            who="worker",
        )  # fmt: skip

    async def attempt(self, outcome: str, key: str = "k", **more: Any) -> Step:
        """Claim the next attempt and record its outcome."""
        await self.granted(key)
        return await self.reply(outcome, key, **more)

    async def instruct(self, key: str = "k", generation: int = 1) -> Step:
        return await transitions.instruct(self.engine, key, generation, "worker")

    async def decide(self, choice: str, key: str = "k", **more: Any) -> Decided:
        if choice == "delivered":
            more.setdefault("reference", "ref-by-person")
        more.setdefault("reason", "seen with own eyes")
        return await decisions.decide(self.engine, key=key, choice=choice, **more)

    async def dispatch(self, limit: int = 100, in_hand: int = 1000) -> list[Dispatch]:
        return await transitions.dispatch(self.engine, limit, in_hand, "sweep")

    async def not_delivered(self, key: str = "k") -> None:
        """A person says that nothing of what is open was delivered, and the settle time passes."""
        assert (await self.decide("not delivered", key)).accepted
        await self.move_time(SETTLE + LEASE)
        await self.instruct(key)

    async def repeat(self, key: str = "k") -> None:
        """A permitted repeat, from unknown to calling: same bytes, same key, no earlier request under way."""
        await self.configure(repeat_within=86_400)
        await self.move_time(SETTLE + LEASE)
        await self.granted(key)
        assert (await self.row(key))["open_attempts"] > 1
        await self.configure()

    async def bring_to(self, state: str, key: str = "k") -> None:
        """Schedule ``key`` and drive it into a state by the ledger's own functions (ineligible: by hand)."""
        match state:
            case "superseded":
                await self.schedule(key, subject=f"s-{key}", version=1)
                await self.schedule(f"{key}-newer", subject=f"s-{key}", version=2)
                return
            case "expired":
                await self.schedule(key, deadline=CALL_LIMIT + 5)
                await self.move_time(10)
                await self.claim(key)
                return
        await self.schedule(key)
        match state:
            case "scheduled":
                pass
            case "calling":
                await self.granted(key)
            case "accepted" | "unknown" | "delivered" | "rejected":
                await self.attempt(state, key)
            case "blocked":
                await self.attempt("key_mismatch", key)
            case "exhausted":
                for _ in range(MAX_ATTEMPTS):
                    await self.attempt("not_processed", key)
            case "cancelled":
                await transitions.cancel(self.engine, key, "not wanted")
            case "abandoned":
                await self.attempt("unknown", key)
                await self.decide("abandon", key)
            case "ineligible":
                await self.sql(
                    "WITH moved AS (UPDATE duly.operation o SET state = 'ineligible', state_since = t.at, "
                    "ended_at = t.at, wake_at = NULL "
                    "FROM (SELECT duly.now() AS at) t WHERE o.key = :key RETURNING t.at) "
                    "INSERT INTO duly.history (key, at, before, after, who, why) "
                    "SELECT :key, at, 'scheduled', 'ineligible', 'test', 'by hand' FROM moved",
                    key=key,
                )


async def together(*calls: Any) -> list[Any]:
    """Run at once, each on a connection of its own; errors are returned, not raised."""
    return list(await asyncio.gather(*calls, return_exceptions=True))


@asynccontextmanager
async def session(url: str, role: str | None = None) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A plain connection, in autocommit; optionally as another login."""
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    async with connection:
        if role is not None:
            await connection.execute(f"SET SESSION AUTHORIZATION {role}".encode())
        yield connection


def tally(values: list[Any]) -> Counter[Any]:
    return Counter(values)


@asynccontextmanager
async def login(books: Books, role: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A login of its own that has been granted this role and nothing else."""
    name = f"test_{role}_{uuid4().hex[:8]}"
    async with session(books.url) as admin:
        await admin.execute(f"CREATE ROLE {name} LOGIN; GRANT {role} TO {name}".encode())
    try:
        async with session(psycopg.conninfo.make_conninfo(books.url, user=name)) as connection:
            yield connection
    finally:
        async with session(books.url) as admin:
            await admin.execute(f"DROP ROLE {name}".encode())
