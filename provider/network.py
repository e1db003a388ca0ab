"""Sockets for the HTTP engine, on asyncio's own streams.

httpcore's default goes through anyio, which serves other event loops too and enters a cancel scope for
each read and write. Measured against the sandbox: 1.2 ms of CPU a call that way, 0.7 ms this way, of some
10 ms that one operation costs a worker. The one time limit is the transport's: those passed in here are
not used. An answer that came while a large body was still being written is lost if a reset follows it:
that ends as unknown, the careful side.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import httpcore

_HAPPY_EYEBALLS = 0.25  # seconds before the next address is tried beside the first: RFC 8305 section 5


@lru_cache(maxsize=256)
def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Stream(httpcore.AsyncNetworkStream):
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """What has come, at least a byte; nothing at the end. Raises ReadError."""
        try:
            return await self._reader.read(max_bytes)
        except OSError as exc:
            raise httpcore.ReadError(str(exc)) from exc

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Hand over to the system. Raises WriteError, which the engine takes as "see what they answered"."""
        if not buffer:
            return
        self._writer.write(buffer)
        try:
            await self._writer.drain()
        except OSError as exc:
            raise httpcore.WriteError(str(exc)) from exc

    async def aclose(self) -> None:
        """Close at once. What has not left by now must not leave later, so nothing is flushed."""
        self._writer.transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        """The same connection, encrypted. Raises ConnectError, caused by what ssl said."""
        try:
            await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except OSError as exc:
            await self.aclose()
            raise httpcore.ConnectError(str(exc)) from exc
        except BaseException:
            await self.aclose()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        """What asyncio knows about the connection (``ssl_object``, ``socket``)."""
        return self._writer.get_extra_info(info)


class Backend(httpcore.AsyncNetworkBackend):
    """Opens connections."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that answers. Raises ConnectError."""
        try:
            reader, writer = await asyncio.open_connection(
                host, port, happy_eyeballs_delay=None if _is_address(host) else _HAPPY_EYEBALLS
            )
        except OSError as exc:
            raise httpcore.ConnectError(str(exc)) from exc
        return Stream(reader, writer)
