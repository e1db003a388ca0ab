"""One connection to the sandbox, with full control of how it is answered and how it ends. h11 over asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import h11

BODY_MAX = 1024 * 1024  # bytes of a request; operations are at most 64 KiB
_CHUNK = 65536
JSON = ("Content-Type", "application/json; charset=utf-8")
# RFC 9110 15.3.5, 15.4.5: these have no body.
_BODILESS = (204, 304)


@dataclass(slots=True)
class Incoming:
    """One request off the wire. ``complete`` is False when the client went away inside it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False
    too_large: bool = False


class Wire:
    """Reads requests and writes answers, whole or broken."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.SERVER)

    async def receive(self) -> Incoming | None:
        """The next request; None when the connection is over.

        Raises h11.RemoteProtocolError for what is not HTTP.
        """
        incoming: Incoming | None = None
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if incoming is not None and self._h11.they_are_waiting_for_100_continue:
                    await self._write(self._h11.send(h11.InformationalResponse(status_code=100, headers=[])))
                try:
                    data = await self._reader.read(_CHUNK)
                except ConnectionError:
                    return incoming
                if not data:
                    return incoming
                self._h11.receive_data(data)
            elif isinstance(event, h11.Request):
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                incoming = Incoming(event.method.decode(), event.target.decode(), headers)
            elif isinstance(event, h11.Data):
                assert incoming is not None
                incoming.too_large = incoming.too_large or len(incoming.body) + len(event.data) > BODY_MAX
                if not incoming.too_large:
                    incoming.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert incoming is not None
                incoming.complete = True
                return incoming
            else:  # ConnectionClosed, PAUSED
                return incoming

    async def answer(
        self, status: int, body: bytes = b"", headers: Iterable[tuple[str, str]] = (), *, cut: bool = False
    ) -> None:
        """A whole answer; or, ``cut``, half of its body."""
        body = b"" if status in _BODILESS else body
        given = {name.lower() for name, _ in headers}
        length = [] if status in _BODILESS or "content-length" in given else [("Content-Length", str(len(body)))]
        data = self._h11.send(h11.Response(status_code=status, headers=[*headers, *length]))
        assert data is not None
        if cut:
            await self._write(data + body[: len(body) // 2])
            return
        if body:
            data += self._h11.send(h11.Data(body)) or b""
        await self._write(data + (self._h11.send(h11.EndOfMessage()) or b""))

    async def answer_json(self, status: int, document: Any, headers: Iterable[tuple[str, str]] = ()) -> None:
        """A whole answer in JSON."""
        await self.answer(status, json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"), [JSON, *headers])

    @property
    def reusable(self) -> bool:
        """Whether another request may come on this connection."""
        return self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    async def wait_for_end(self, seconds: float | None) -> None:
        """Until the client goes away, or the time is over."""
        try:
            async with asyncio.timeout(seconds):
                while await self._reader.read(_CHUNK):
                    pass
        except (TimeoutError, ConnectionError):
            pass

    def reset(self) -> None:
        """End with RST instead of FIN."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # linger on, for no time
        self._writer.transport.abort()

    def close(self) -> None:
        """End with FIN, after what was written."""
        self._writer.close()

    async def _write(self, data: bytes | None) -> None:
        if data:
            self._writer.write(data)
            # The client may be gone; what was committed stands.
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
