"""An HTTP provider of this suite's own, unlike the sandbox: keys of the sort that store errors and compare bodies,
look-ups in a list with cursors that lags behind, a clock that can be moved. In this process, over real sockets.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import h11

from provider.sandbox.wire import JSON, Incoming, Wire
from tests.conformance.bench import Do, Effect, Say

RETENTION = 24 * 3600.0  # seconds
LAG = 90.0  # seconds
PAGE = 2  # items

COMMITTING = frozenset({Do.APPLY, Do.HANG_UP, Do.CUT, Do.STALL, Do.ACCEPT, Do.ACCEPT_THEN_FAIL})


@dataclass(slots=True)
class Charge:
    """One effect, or one that is to come."""

    number: int
    key: str
    idempotency_key: str
    body: bytes
    at: float
    ready_at: float
    fails: bool

    def shown(self, now: float) -> dict[str, Any]:
        state = "pending" if now < self.ready_at else "failed" if self.fails else "succeeded"
        amount = json.loads(self.body).get("amount")
        return {"id": f"ch_{self.number}", "metadata": {"key": self.idempotency_key}, "amount": amount, "state": state}


@dataclass(slots=True)
class Reply:
    """What a key was answered."""

    at: float
    body: bytes
    status: int
    answer: dict[str, Any]


OTHERS = [{"id": f"ch_x{n}", "metadata": {"key": f"x{n}"}, "amount": 5, "state": "succeeded"} for n in range(PAGE)]


class Charges:
    """The provider."""

    def __init__(self) -> None:
        self.charges: list[Charge] = []
        self.replies: dict[str, tuple[str, Reply]] = {}
        self.requests: list[str] = []
        self.plans: dict[str, tuple[Do, float]] = {}
        self.says: dict[str, Say] = {}
        self.moved = 0.0
        self.port = 0
        self._in_flight: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def now(self) -> float:
        return time.time() + self.moved

    def effects(self, key: str) -> list[Effect]:
        now = self.now()
        return [
            Effect(charge.idempotency_key, charge.body)
            for charge in self.charges
            if charge.key == key and charge.ready_at <= now and not charge.fails
        ]

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=100)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def stop(self, server: asyncio.Server) -> None:
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        wire = Wire(reader, writer)
        try:
            incoming = await wire.receive()
            if incoming is not None and incoming.complete:
                await (self._charge if incoming.method == "POST" else self._list)(incoming, wire)
        except (h11.RemoteProtocolError, asyncio.CancelledError):
            pass
        finally:
            wire.close()

    async def _charge(self, incoming: Incoming, wire: Wire) -> None:
        key, idempotency_key = incoming.headers["operation-key"], incoming.headers["x-idem"]
        body = bytes(incoming.body)
        self.requests.append(key)
        do, value = self.plans.pop(key, (Do.APPLY, 0.0))
        match do:
            case Do.REFUSE:
                await wire.answer_json(400, {"error": "bad amount"})
            case Do.DENY:
                await wire.answer_json(403, {"error": "no such account"})
            case Do.THROTTLE:
                await wire.answer_json(429, {"error": "slow down"}, [("Retry-After", "1")])
            case Do.CODE:
                await wire.answer_json(int(value), {"error": "as told"})
            case Do.ECHO:
                text = body.decode() + incoming.headers["authorization"] + "\x00"
                await wire.answer(400, json.dumps({"message": text}).encode(), [JSON])
            case Do.HANG_UP_BEFORE:
                pass
            case Do.LATE:
                later = asyncio.create_task(self._later(key, idempotency_key, body, value))
                self._tasks.add(later)
                await wire.wait_for_end(None)
            case _:
                await self._keyed(key, idempotency_key, body, (do, value), wire)

    async def _later(self, key: str, idempotency_key: str, body: bytes, seconds: float) -> None:
        await asyncio.sleep(seconds)  # how long this provider works
        self._commit(key, idempotency_key, body, Do.APPLY, 0.0)

    async def _keyed(self, key: str, idempotency_key: str, body: bytes, plan: tuple[Do, float], wire: Wire) -> None:
        do, value = plan
        if idempotency_key in self._in_flight:
            await wire.answer_json(409, {"error": "in flight"})
            return
        known = self.replies.get(idempotency_key)
        if known is not None and known[1].at > self.now() - RETENTION:
            reply = known[1]
            if reply.body != body:
                await wire.answer_json(422, {"error": "other parameters"})
                return
        elif do is Do.STORED_ERROR:
            reply = Reply(self.now(), body, 500, {"error": "failed, and will for this key"})
            self.replies[idempotency_key] = (key, reply)
        else:
            if do is Do.SLOW:
                self._in_flight.add(idempotency_key)
                await asyncio.sleep(value)  # how long this provider works
                self._in_flight.discard(idempotency_key)
            reply = self._commit(key, idempotency_key, body, do, value)
        match do:
            case Do.HANG_UP:
                return
            case Do.STALL:
                await wire.wait_for_end(None)
            case _:
                await wire.answer(reply.status, json.dumps(reply.answer).encode(), [JSON], cut=do is Do.CUT)

    def _commit(self, key: str, idempotency_key: str, body: bytes, do: Do, value: float) -> Reply:
        now = self.now()
        accepted = do in (Do.ACCEPT, Do.ACCEPT_THEN_FAIL)
        number = len(self.charges) + 1
        ready_at = now + value if accepted else now
        self.charges.append(Charge(number, key, idempotency_key, body, now, ready_at, do is Do.ACCEPT_THEN_FAIL))
        reply = Reply(now, body, 202 if accepted else 201, {"id": f"ch_{number}"})
        self.replies[idempotency_key] = (key, reply)
        return reply

    async def _list(self, incoming: Incoming, wire: Wire) -> None:
        query = parse_qs(urlsplit(incoming.target).query)
        key, after = query["operation"][0], int(query.get("after", ["0"])[0])
        now = self.now()
        items = [charge.shown(now) for charge in self.charges if charge.key == key and charge.at <= now - LAG]
        match self.says.get(key, Say.TRUTH):
            case Say.SEVERAL:
                items += [{**item, "id": f"{item['id']}_2"} for item in items]
            case Say.WRONG:
                items = OTHERS[:1]
            case Say.FULL:
                await wire.answer_json(200, {"data": OTHERS, "cursor": None})
                return
            case Say.ERROR:
                await wire.answer_json(503, {"error": "down"})
                return
            case Say.DENIED:
                await wire.answer_json(401, {"error": "who are you"})
                return
            case Say.STALL:
                await wire.wait_for_end(None)
                return
            case Say.CUT:
                await wire.answer(200, json.dumps({"data": items, "cursor": None}).encode(), [JSON], cut=True)
                return
        page = items[after : after + PAGE]
        cursor = str(after + PAGE) if len(items) > after + PAGE else None
        # A page that is just full is the last one only when it says so by an empty page after it.
        if cursor is None and len(page) == PAGE:
            cursor = str(after + PAGE)
        await wire.answer_json(200, {"data": page, "cursor": cursor})
