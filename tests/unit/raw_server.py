"""A server made of bare sockets that counts what it got. For tests of what a failure proves."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

LIMIT = 10.0  # seconds that a test waits for what takes milliseconds


@dataclass(slots=True)
class Seen:
    """What reached the server."""

    port: int = 0
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    """Complete requests, head and body."""
    partial: bytes = b""
    """Bytes of the last request that never became complete."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request is complete."""
    connected: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/effects"


@dataclass(slots=True)
class Peer:
    """One connection as a handler sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    seen: Seen

    async def request(self) -> bytes:
        """Read one whole request."""
        self.seen.partial = head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        request = head + await self.reader.readexactly(length)
        self.seen.requests.append(request)
        self.seen.partial = b""
        self.seen.arrived.set()
        return request

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_gone(self) -> None:
        """Wait until the client closes."""
        while await self.reader.read(65536):
            pass

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Handler = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[Seen]:
    """Serve ``handler`` on loopback; the connection is closed when it returns."""
    seen = Seen()
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        seen.connections += 1
        seen.connected.set()
        try:
            await handler(Peer(reader, writer, seen))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls, backlog=100)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def replying(data: bytes) -> Handler:
    """Read the request, say this, close."""

    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.say(data)

    return handler


def created_with(headers: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 201 Created\r\n%sContent-Length: %d\r\n\r\n%s" % (headers, len(body), body)


async def drip(peer: Peer, drop: bytes, times: int = 400) -> None:
    """Keep the line busy for 20 seconds: any limit per read starts anew each time."""
    for _ in range(times):
        await peer.say(drop)
        await asyncio.sleep(0.05)  # the fault itself, not a wait for something


CREATED = b'HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"id":"e1"}'


def tls_files() -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for 127.0.0.1 as a file to trust, and a server's context with it."""
    file = Path(tempfile.mkdtemp()) / "test.pem"
    file.write_text(_PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return file, context


# Made for these tests and used by nothing else: valid for 100 years, for 127.0.0.1 only.
_PEM = """\
-----BEGIN CERTIFICATE-----
MIIBkTCCATagAwIBAgIUDYfWzQUJnIpQEnUK0dJryaqR+UkwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJZHVseS10ZXN0MCAXDTI2MTEyOTE4MTM0M1oYDzIxMjYxMTA1
MTgxMzQzWjAUMRIwEAYDVQQDDAlkdWx5LXRlc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAToIEDdpkzaW6xqhkwEVV27Wosq/1fdiO/oPmO9SILkEUyDlvqL3QRT
C20mHsDPgTW89xR3WXfosvShZfML9Stmo2QwYjAdBgNVHQ4EFgQUMKQ6PuKnSHDl
ELXVEpqyVoNZ3PAwHwYDVR0jBBgwFoAUMKQ6PuKnSHDlELXVEpqyVoNZ3PAwDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0kAMEYC
IQDAT6HEKOFGGHmB9Y1R+V8JMLo6JU8K8/BhcyCLMhB7qAIhAIfyU8TTC0A0sp9M
s424jW2ad2yKpWCOMh+qBq961U+T
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgUzqIMBC5OkjqMY6j
ejXFZMFjkg8dwht1WUk0Vfxriq6hRANCAAToIEDdpkzaW6xqhkwEVV27Wosq/1fd
iO/oPmO9SILkEUyDlvqL3QRTC20mHsDPgTW89xR3WXfosvShZfML9Stm
-----END PRIVATE KEY-----
"""
