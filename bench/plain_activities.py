"""The activities that people write without Duly: one shared HTTP client, one shared engine, defaults everywhere."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import httpx
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from temporalio import activity


@dataclass
class Order:
    """What one workflow is about."""

    key: str
    order_id: int


@dataclass
class Recorded:
    """What the provider answered."""

    key: str
    reference: str


@dataclass
class Activities:
    """``ended`` receives the time at which each operation's last activity was through."""

    http: httpx.AsyncClient
    sandbox_url: str
    engine: AsyncEngine
    ended: asyncio.Queue[float] = field(default_factory=asyncio.Queue)

    @classmethod
    def make(cls, sandbox_url: str, database_url: str) -> Activities:
        """Clients as their documentation shows them: made once, shared by all activities."""
        engine = create_async_engine(database_url.replace("postgresql://", "postgresql+psycopg://", 1))
        return cls(httpx.AsyncClient(timeout=10), sandbox_url, engine)

    @activity.defn
    async def call_only(self, order: Order) -> str:
        """The floor: the same request as Duly makes, and nothing else."""
        reference = await self._post(order)
        self.ended.put_nowait(time.time())
        return reference

    @activity.defn
    async def claim(self, key: str) -> Order:
        """The usual way, first of three."""
        async with self.engine.begin() as connection:
            row = await connection.execute(
                text(
                    "UPDATE bench.operation SET state = 'calling', claimed_at = clock_timestamp() "
                    "WHERE key = :key AND state = 'scheduled' RETURNING order_id"
                ),
                {"key": key},
            )
            return Order(key, row.scalar_one())

    @activity.defn
    async def call(self, order: Order) -> str:
        """The usual way, second of three."""
        return await self._post(order)

    @activity.defn
    async def record(self, recorded: Recorded) -> None:
        """The usual way, last of three."""
        async with self.engine.begin() as connection:
            await connection.execute(
                text(
                    "UPDATE bench.operation SET state = 'delivered', reference = :reference, "
                    "recorded_at = clock_timestamp() WHERE key = :key AND state = 'calling'"
                ),
                {"key": recorded.key, "reference": recorded.reference},
            )
        self.ended.put_nowait(time.time())

    async def _post(self, order: Order) -> str:
        response = await self.http.post(
            f"{self.sandbox_url}/effects",
            json={"order_id": order.order_id},
            headers={"Idempotency-Key": order.key, "Operation-Key": order.key},
        )
        response.raise_for_status()
        return str(response.json()["id"])
