"""Mail servers for tests: one made of bare sockets that fails as told, and a real one (aiosmtpd)."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

CLOSE, RESET, STALL = "close", "reset", "stall"
"""Instead of a reply."""

GOOD: Mapping[str, str] = {
    "greeting": "220 mx.test ready",
    "EHLO": "250-mx.test\r\n250-SIZE 1000000\r\n250 8BITMIME",
    "MAIL": "250 2.1.0 Ok",
    "RCPT": "250 2.1.5 Ok",
    "DATA": "354 go ahead",
    ".": "250 2.0.0 Ok: queued as 4F2A17",
    "QUIT": "221 bye",
}


@dataclass(slots=True)
class Talk:
    """What reached the server made of bare sockets."""

    port: int = 0
    connections: int = 0
    commands: list[str] = field(default_factory=list)
    mails: list[bytes] = field(default_factory=list)
    """Ended by their dot, as they came: dots doubled, without the ending one."""
    unfinished: bytearray = field(default_factory=bytearray)
    """Text without its dot."""
    dotted: asyncio.Event = field(default_factory=asyncio.Event)
    """A dot has come."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """The command that is answered by STALL has come."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """A connection is over."""

    def verbs(self) -> list[str]:
        return [command.split(" ")[0] for command in self.commands]


@asynccontextmanager
async def talking(replies: Mapping[str, str] | None = None, *, read_text: bool = True) -> AsyncIterator[Talk]:
    """A server that answers by ``replies`` where they differ from the good ones. Not ``read_text``: stops reading."""
    said = {**GOOD, **(replies or {})}
    talk = Talk()
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        talk.connections += 1
        try:
            await _converse(reader, writer, said, talk, read_text)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            talk.over.set()
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 24)
    talk.port = server.sockets[0].getsockname()[1]
    try:
        yield talk
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: Mapping[str, str], talk: Talk, read_text: bool
) -> None:
    async def answer(what: str) -> str:
        reply = said.get(what, "502 what?")
        if reply == RESET:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        elif reply == STALL:
            talk.asked.set()
            while await reader.read(65536):
                pass
        elif reply != CLOSE:
            writer.write(reply.encode() + (b"" if reply.endswith("\\") else b"\r\n"))
            await writer.drain()
            return reply
        raise ConnectionResetError

    await answer("greeting")
    while line := await reader.readline():
        command = line.decode("latin-1").rstrip("\r\n")
        talk.commands.append(command)
        verb = command.split(" ")[0]
        reply = await answer(verb)
        if verb == "QUIT":
            return
        if verb == "DATA" and reply.startswith("354"):
            if not read_text:
                talk.asked.set()
                await asyncio.Event().wait()
            await _text(reader, talk)
            talk.dotted.set()
            await answer(".")


async def _text(reader: asyncio.StreamReader, talk: Talk) -> None:
    """Read to the dot."""
    text = talk.unfinished = bytearray()
    while not text.endswith(b"\r\n.\r\n"):
        line = await reader.readline()
        text += line
        if not line.endswith(b"\n"):
            raise ConnectionResetError
    talk.unfinished = bytearray()
    talk.mails.append(bytes(text[:-3]))


@dataclass(slots=True)
class Mailbox:
    """Handler of a real server: keeps what it takes, and can be told what to do at the dot."""

    at_dot: str = "250 2.0.0 Ok: queued as REAL1"
    mails: list[Envelope] = field(default_factory=list)
    logins: list[bytes] = field(default_factory=list)
    port: int = 0

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's
        self.mails.append(envelope)
        if self.at_dot == CLOSE:
            _abort(server)
        elif self.at_dot == STALL:
            await asyncio.Event().wait()
        return self.at_dot

    def login(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append(data.login)
        return AuthResult(success=(data.login, data.password) == (b"duly", b"pass-77"), handled=False)


@asynccontextmanager
async def mailbox(
    at_dot: str = "250 2.0.0 Ok: queued as REAL1",
    *,
    starttls: ssl.SSLContext | None = None,
    tls: ssl.SSLContext | None = None,
    login: bool = False,
) -> AsyncIterator[Mailbox]:
    """aiosmtpd on loopback, in this loop."""
    box = Mailbox(at_dot)
    running: list[SMTP] = []

    def made() -> SMTP:
        server = SMTP(
            box,
            hostname="mx.test",
            tls_context=starttls,
            require_starttls=starttls is not None,
            authenticator=box.login if login else None,
            auth_required=login,
            auth_require_tls=starttls is not None,
            loop=asyncio.get_running_loop(),
        )
        running.append(server)
        return server

    listening = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0, ssl=tls)
    box.port = listening.sockets[0].getsockname()[1]
    try:
        yield box
    finally:
        listening.close()
        for server in running:
            _abort(server)


def _abort(server: SMTP) -> None:
    if isinstance(server.transport, asyncio.WriteTransport):
        server.transport.abort()
