"""The sandbox's HTTP server: POST /effects, and what tells and shows."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import h11

from provider.sandbox import look_ups
from provider.sandbox.acts import act, answer_word, seconds_of, wish_of
from provider.sandbox.behaviours import Behaviour
from provider.sandbox.effects import Committed, Request
from provider.sandbox.page import CSP, effects_page
from provider.sandbox.store import Store
from provider.sandbox.wire import JSON, Incoming, Wire

_QUESTION = frozenset({"operation_key", "idempotency_key", "limit", "cursor"})
"""Parameters that make GET /effects the provider's list; without any it is the record, which never lies."""
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
        self._read_script()
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
            query = {name: values[0] for name, values in parse_qs(where.query).items()}
            asked = where.path.removeprefix("/effects/")
            if incoming.method == "GET" and asked != where.path:
                await self._look_up(incoming, unquote(asked), query, wire)
            elif (incoming.method, where.path) == ("GET", "/effects") and query.keys() & _QUESTION:
                await self._look_up(incoming, None, query, wire)
            elif incoming.method == "POST" and asked != where.path and asked.endswith("/cancel"):
                await self._cancel(incoming, unquote(asked.removesuffix("/cancel")), wire)
            else:
                await self._tell_or_show(incoming, where.path, query, wire)

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
                answer=answer_word(behaviour, done),
                behaviour=behaviour.do,
                rule=rule,
                effect=done.effect if done else None,
            )
        await act(behaviour, done, wire)

    def _committed(self, request: Request, behaviour: Behaviour) -> Committed | None:
        """The effect, if this behaviour has one."""
        wish = wish_of(behaviour)
        return None if wish is None else self._store.commit(request, time.time(), wish)

    async def _slowly(self, request: Request, rule: int | None, behaviour: Behaviour, wire: Wire) -> None:
        """The effect comes after the wait, whether or not the client is still there: as with a real provider."""
        number = self._store.note(request, answer="pending", behaviour="slow", rule=rule)
        if request.idempotency_key is not None:
            self._in_flight.add(request.idempotency_key)
        try:
            await asyncio.sleep(seconds_of(behaviour))
            with self._store.together():
                done = self._committed(request, behaviour)
                self._store.amend(number, answer=answer_word(behaviour, done), effect=done.effect if done else None)
        finally:
            self._in_flight.discard(request.idempotency_key or "")
        await act(behaviour, done, wire)

    async def _look_up(self, incoming: Incoming, asked: str | None, query: dict[str, str], wire: Wire) -> None:
        """One effect by its idempotency key, ``asked``, or the list."""
        now = time.time()
        idempotency_key = query.get("idempotency_key") if asked is None else asked
        key = incoming.headers.get("operation-key") or query.get("operation_key")
        if key is None and idempotency_key is not None:
            key = self._store.key_of(idempotency_key) or idempotency_key
        rule, behaviour = self._look_up_script.next(key or "")
        try:
            limit = look_ups.limit_of(query.get("limit", look_ups.PAGE))
            before = int(query["cursor"]) if "cursor" in query else None
        except ValueError as exc:
            await wire.answer_json(400, {"error": "invalid", "message": str(exc)})
            return
        found = self._store.found(
            now=now,
            key=query.get("operation_key"),
            idempotency_key=idempotency_key,
            lag=look_ups.lag_of(behaviour),
            before=before,
            limit=limit + 1,  # one more tells whether there is a next page
        )
        found = look_ups.visible(found, behaviour, key or "", idempotency_key or "", now)
        status, body = (
            look_ups.one(found[:1] if behaviour.do == "full_page" else found)
            if asked is not None
            else look_ups.page(found, behaviour, limit, query)
        )
        status = {"deny": 401, "outage": behaviour.status}.get(behaviour.do, status)
        answer = {"stall": "stalled", "cut_body": f"{status} cut"}.get(behaviour.do, str(status))
        self._store.note_look_up(now, incoming.target, key or "", rule=rule, behaviour=behaviour.do, answer=answer)
        match behaviour.do:
            case "stall":
                await wire.wait_for_end(behaviour.seconds)
                wire.close()
            case "deny":
                await wire.answer_json(401, {"error": "denied"}, [("WWW-Authenticate", "Bearer")])
            case "outage":
                await wire.answer_json(status, {"error": "unavailable"})
            case do:
                await wire.answer(status, body, [JSON], cut=do == "cut_body")
                if do == "cut_body":
                    wire.close()

    async def _cancel(self, incoming: Incoming, idempotency_key: str, wire: Wire) -> None:
        """Nothing will come of this key any more; unless it is too late, or too early to say."""
        now = time.time()
        if idempotency_key in self._in_flight:
            status, document = 409, {"error": "in_flight", "message": "this key is being processed"}
        elif self._store.cancel(idempotency_key, now) == "done":
            status, document = 409, {"error": "too_late", "message": "the effect has taken place"}
        else:
            status, document = 200, {"status": "cancelled", "idempotency_key": idempotency_key}
        key = self._store.key_of(idempotency_key) or idempotency_key
        self._store.note_look_up(now, incoming.target, key, rule=None, behaviour="cancel", answer=str(status))
        await wire.answer_json(status, document)

    async def _tell_or_show(self, incoming: Incoming, path: str, query: dict[str, str], wire: Wire) -> None:
        key, prefix = query.get("key"), query.get("prefix", "")
        match incoming.method, path:
            case "GET", "/":
                accepted = self._store.accepted(prefix=prefix)
                page = effects_page(self._store.effects(prefix=prefix), accepted, self._store.totals(), prefix)
                await wire.answer(200, page, _PAGE_HEADERS)
            case "GET", "/effects":
                await wire.answer_json(200, _summed(self._store.effects(key, prefix)))
            case "GET", "/requests":
                found = self._store.requests(key, prefix)
                await wire.answer_json(200, {"total": len(found), "requests": found})
            case "GET", "/look-ups":
                asked = self._store.look_ups(key, prefix)
                await wire.answer_json(200, {"total": len(asked), "look_ups": asked})
            case "GET", "/accepted":
                await wire.answer_json(200, {"accepted": self._store.accepted(key, prefix)})
            case "DELETE", "/keys":
                await wire.answer_json(200, {"expired": self._store.expire(key, prefix)})
            case "GET", "/healthz":
                await wire.answer_json(200, {"ok": True, **self._store.totals()})
            case "GET", "/script":
                await wire.answer_json(200, {"script": self._store.told()})
            case "PUT", "/script":
                await self._told(bytes(incoming.body), wire)
            case "DELETE", "/script":
                self._store.forget()
                self._read_script()
                await wire.answer(204)
            case _, "/" | "/effects" | "/requests" | "/healthz" | "/script" | "/look-ups" | "/accepted" | "/keys":
                await wire.answer_json(405, {"error": "method_not_allowed"})
            case _:
                await wire.answer_json(404, {"error": "not_found"})

    async def _told(self, body: bytes, wire: Wire) -> None:
        try:
            self._store.tell(json.loads(body))
        except (ValueError, TypeError, RecursionError) as exc:
            await wire.answer_json(400, {"error": "invalid", "message": str(exc)})
            return
        self._read_script()
        await wire.answer_json(200, {"script": self._store.told()})

    def _read_script(self) -> None:
        self._script = self._store.script()
        self._look_up_script = self._store.script(look_ups=True)


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
