"""The sandbox's HTTP server: POST /effects, and what tells and shows."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import h11

from provider.sandbox.page import CSP, effects_page
from provider.sandbox.script import Behaviour
from provider.sandbox.store import Committed, Request, Store
from provider.sandbox.wire import Incoming, Wire

_JSON = ("Content-Type", "application/json; charset=utf-8")
_PAGE_HEADERS = [
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", CSP),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
]


class Sandbox:
    """The provider. One process, one loop, so one request at a time between two waits."""

    def __init__(self, data: Path, retention: float) -> None:
        """``data`` is the file of its record, ``retention`` the seconds for which it remembers a key.

        Raises sqlite3.OperationalError if the file is in use or cannot be opened.
        """
        self._store = Store(data, retention)
        self._script = self._store.script()
        self._in_flight: set[str] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> int:
        """Listen on loopback and return the port. Raises OSError if it is taken."""
        # The backlog is what a burst of one connection per request may need before the loop comes round.
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port, backlog=1024)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, drop open connections, close the record."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._store.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        wire = Wire(reader, writer)
        try:
            while (incoming := await wire.receive()) is not None:
                await self._serve(incoming, wire)
                if not wire.reusable:
                    break
        except h11.RemoteProtocolError:
            pass  # not HTTP; there is nobody to answer
        except asyncio.CancelledError:
            pass  # the server stops
        finally:
            self._connections.discard(task)
            wire.close()

    async def _serve(self, incoming: Incoming, wire: Wire) -> None:
        where = urlsplit(incoming.target)
        if (incoming.method, where.path) == ("POST", "/effects"):
            await self._effect(incoming, wire)
        elif not incoming.complete:
            return
        elif incoming.too_large:
            await wire.answer_json(413, {"error": "too_large"})
        else:
            await self._tell_or_show(incoming, where.path, parse_qs(where.query), wire)

    async def _effect(self, incoming: Incoming, wire: Wire) -> None:
        """Take one request, as the script wants it."""
        request = _request(incoming)
        if not incoming.complete or incoming.too_large:
            self._store.note(request, answer="413" if incoming.complete else "incomplete", behaviour="")
            if incoming.complete:
                await wire.answer_json(413, {"error": "too_large"})
            return
        rule, behaviour = self._script.next(request.key or "")
        key = request.idempotency_key
        if key is not None and key in self._in_flight and behaviour.do != "ignore_keys":
            self._store.note(request, answer="409", behaviour="in_flight", rule=rule)
            await wire.answer_json(409, {"error": "in_flight", "message": "this key is being processed"})
            return
        if behaviour.do == "slow":
            await self._slowly(request, rule, behaviour, wire)
            return
        with self._store.together():
            done = self._committed(request, behaviour)
            self._store.note(
                request,
                answer=_answer_word(behaviour, done),
                behaviour=behaviour.do,
                rule=rule,
                effect=done.effect if done else None,
            )
        await _act(behaviour, done, wire)

    def _committed(self, request: Request, behaviour: Behaviour) -> Committed | None:
        """The effect, if this behaviour has one."""
        if behaviour.do in ("ok", "slow", "commit_then_close", "commit_then_stall", "cut_body") or behaviour.commit:
            return self._store.commit(request, time.time())
        if behaviour.do == "ignore_keys":
            return self._store.commit(request, time.time(), honour_key=False)
        return None

    async def _slowly(self, request: Request, rule: int | None, behaviour: Behaviour, wire: Wire) -> None:
        """The effect comes after the wait, whether or not the client is still there: as with a real provider."""
        number = self._store.note(request, answer="pending", behaviour="slow", rule=rule)
        if request.idempotency_key is not None:
            self._in_flight.add(request.idempotency_key)
        try:
            await asyncio.sleep(1.0 if behaviour.seconds is None else behaviour.seconds)
            with self._store.together():
                done = self._committed(request, behaviour)
                self._store.amend(number, answer=_answer_word(behaviour, done), effect=done.effect if done else None)
        finally:
            self._in_flight.discard(request.idempotency_key or "")
        await _act(behaviour, done, wire)

    async def _tell_or_show(self, incoming: Incoming, path: str, query: dict[str, list[str]], wire: Wire) -> None:
        key, prefix = query.get("key", [None])[0], query.get("prefix", [""])[0]
        match incoming.method, path:
            case "GET", "/":
                page = effects_page(self._store.effects(prefix=prefix), self._store.totals(), prefix)
                await wire.answer(200, page, _PAGE_HEADERS)
            case "GET", "/effects":
                await wire.answer_json(200, _summed(self._store.effects(key, prefix)))
            case "GET", "/requests":
                found = self._store.requests(key, prefix)
                await wire.answer_json(200, {"total": len(found), "requests": found})
            case "GET", "/healthz":
                await wire.answer_json(200, {"ok": True, **self._store.totals()})
            case "GET", "/script":
                await wire.answer_json(200, {"script": self._store.told()})
            case "PUT", "/script":
                await self._told(bytes(incoming.body), wire)
            case "DELETE", "/script":
                self._store.forget()
                self._script = self._store.script()
                await wire.answer(204)
            case _, "/" | "/effects" | "/requests" | "/healthz" | "/script":
                await wire.answer_json(405, {"error": "method_not_allowed"})
            case _:
                await wire.answer_json(404, {"error": "not_found"})

    async def _told(self, body: bytes, wire: Wire) -> None:
        try:
            self._store.tell(json.loads(body))
        except (ValueError, TypeError, RecursionError) as exc:
            await wire.answer_json(400, {"error": "invalid", "message": str(exc)})
            return
        self._script = self._store.script()
        await wire.answer_json(200, {"script": self._store.told()})


async def _act(behaviour: Behaviour, done: Committed | None, wire: Wire) -> None:
    """What the client gets to see."""
    match behaviour.do:
        case "commit_then_close" | "close_before_commit":
            wire.close()
        case "commit_then_stall":
            await wire.wait_for_end(behaviour.seconds)
            wire.close()
        case "reset":
            wire.reset()
        case "throttle":
            await wire.answer_json(429, {"error": "throttled"}, [("Retry-After", behaviour.retry_after)])
        case "deny":
            await wire.answer_json(401, {"error": "denied"}, [("WWW-Authenticate", "Bearer")])
        case "in_flight_409":
            await wire.answer_json(409, {"error": "in_flight", "message": "this key is being processed"})
        case "status":
            await wire.answer(behaviour.status, behaviour.body.encode("utf-8", "replace"), behaviour.headers.items())
        case _:
            assert done is not None
            if done.effect is None:
                await wire.answer_json(422, {"error": "key_mismatch", "message": "this key came with another body"})
                return
            replayed = [("Idempotent-Replayed", "true")] if done.replayed else []
            await wire.answer(201, done.answer, [_JSON, *replayed], cut=behaviour.do == "cut_body")
            if behaviour.do == "cut_body":
                wire.close()


def _answer_word(behaviour: Behaviour, done: Committed | None) -> str:
    """The answer as the record shows it."""
    fixed = {
        "commit_then_close": "closed",
        "close_before_commit": "closed",
        "commit_then_stall": "stalled",
        "reset": "reset",
        "throttle": "429",
        "deny": "401",
        "in_flight_409": "409",
        "status": str(behaviour.status),
    }
    if behaviour.do in fixed:
        return fixed[behaviour.do]
    if done is None or done.effect is None:
        return "422"
    return "201 replayed" if done.replayed else "201 cut" if behaviour.do == "cut_body" else "201"


def _request(incoming: Incoming) -> Request:
    headers = incoming.headers
    idempotency_key = headers.get("idempotency-key")
    return Request(
        at=time.time(),
        method=incoming.method,
        path=incoming.target,
        key=headers.get("operation-key") or headers.get("duly-operation-key") or idempotency_key,
        idempotency_key=idempotency_key,
        traceparent=headers.get("traceparent"),
        body=bytes(incoming.body),
        complete=incoming.complete,
    )


def _summed(effects: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return {"total": sum(map(len, effects.values())), "keys": len(effects), "effects": effects}
