"""After the first header byte and without a status everything is unknown, and nothing is sent again."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from provider import transport as module
from provider.transport import Exchange, Phase, Transport
from tests.unit.exchanges import BODY, assert_unknown, call
from tests.unit.raw_server import LIMIT, Handler, Peer, drip, replying, serving, tls_files


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport()
    yield transport
    await transport.close()


async def _then_close(peer: Peer) -> None:
    await peer.request()


async def _then_reset(peer: Peer) -> None:
    await peer.request()
    peer.reset()


async def _accept_and_reset(peer: Peer) -> None:
    await peer.reader.read(1)
    peer.reset()


@pytest.mark.parametrize(
    "handler",
    [
        _then_close,
        _then_reset,
        _accept_and_reset,
        replying(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
        replying(b"HTTP/1.1 201 Crea"),
        replying(b"\x15\x03\x03 garbage\r\n\r\n"),
        replying(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        replying(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n"),
        replying(b"HTTP/1.1 099 Odd\r\n\r\n"),
    ],
    ids=["FIN", "RST", "nothing read", "103 then FIN", "cut status", "garbage", "two lengths", "huge header", "099"],
)
async def test_without_a_status_after_the_first_byte_it_is_unknown_and_never_sent_again(
    transport: Transport, handler: Handler
) -> None:
    async with serving(handler) as seen:
        assert_unknown(await call(transport, seen.url), seen)


async def test_no_answer_ends_at_the_total_limit_as_unknown(transport: Transport) -> None:
    async def stall(peer: Peer) -> None:
        await peer.request()
        await peer.until_gone()

    async with serving(stall) as seen:
        exchange = await call(transport, seen.url, seconds=0.3)
        assert_unknown(exchange, seen)
        assert len(seen.requests) == 1
        assert 0.25 < exchange.call_seconds < 2
        assert "0.3 s" in exchange.detail


@pytest.mark.parametrize(
    ("start", "drop"),
    [(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"), (b"HTTP/1.1 200 OK\r\nX: ", b"x")],
    ids=["103", "header"],
)
async def test_a_drip_of_informational_answers_or_header_bytes_does_not_outlast_the_total_limit(
    transport: Transport, start: bytes, drop: bytes
) -> None:
    async def dripping(peer: Peer) -> None:
        await peer.request()
        await peer.say(start)
        await drip(peer, drop)

    async with serving(dripping) as seen:
        exchange = await call(transport, seen.url, seconds=0.4)
        assert_unknown(exchange, seen)
        assert exchange.call_seconds < 2


async def test_a_server_that_never_reads_a_large_body_leaves_it_unknown(transport: Transport) -> None:
    async def deaf(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with serving(deaf) as seen:
        assert_unknown(await call(transport, seen.url, body=b"x" * 64_000_000, seconds=0.5), seen)
        assert seen.requests == []


async def test_after_the_limit_nothing_of_the_request_leaves_any_more(transport: Transport) -> None:
    ended, counted = asyncio.Event(), asyncio.Event()
    received = 0

    async def deaf_at_first(peer: Peer) -> None:
        nonlocal received
        try:
            await ended.wait()
            while data := await peer.reader.read(1_000_000):
                received += len(data)
        finally:
            counted.set()

    async with serving(deaf_at_first) as seen:
        assert_unknown(await call(transport, seen.url, body=b"x" * 64_000_000, seconds=0.5), seen)
        ended.set()
        await asyncio.wait_for(counted.wait(), LIMIT)
        assert received < 32_000_000  # what the system's buffers held; the rest stayed with us


def test_a_fault_of_ours_in_the_body_is_unknown_because_the_headers_are_out() -> None:
    trace = module._Trace(0.0, None)
    trace.started = True
    assert module._phase(trace, httpx.LocalProtocolError("before")) is Phase.NOT_SENT
    trace.headers_done = True
    assert module._phase(trace, httpx.LocalProtocolError("after")) is Phase.UNKNOWN


async def test_a_reset_in_the_middle_of_the_body_is_unknown(transport: Transport) -> None:
    async def reset(peer: Peer) -> None:
        await peer.reader.readexactly(100_000)
        peer.reset()

    async with serving(reset) as seen:
        assert_unknown(await call(transport, seen.url, body=b"x" * 64_000_000), seen)


@pytest.mark.parametrize("large", [False, True], ids=["awaiting the answer", "in the body"])
async def test_a_cancel_after_the_first_byte_is_unknown(transport: Transport, large: bool) -> None:
    begun = asyncio.Event()

    async def stall(peer: Peer) -> None:
        if large:
            await peer.reader.readexactly(10)
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        else:
            await peer.request()
        begun.set()
        await asyncio.Event().wait()

    async with serving(stall) as seen:
        task = asyncio.create_task(call(transport, seen.url, body=b"x" * (64_000_000 if large else 10)))
        await asyncio.wait_for(begun.wait(), LIMIT)
        task.cancel()
        assert_unknown(await task, seen)


async def _tls_raw(after: Callable[[ssl.SSLSocket], None]) -> Exchange:
    """A TLS server that reads the request and then does ``after`` to the socket."""
    file, tls = tls_files()
    transport = Transport(ca_file=str(file))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT)

        def serve() -> bytes:
            raw, _ = listener.accept()
            raw.settimeout(LIMIT)
            with tls.wrap_socket(raw, server_side=True, suppress_ragged_eofs=True) as conn:
                got = b""
                while BODY not in got:
                    got += conn.recv(65536)
                after(conn)
                return got

        server = asyncio.create_task(asyncio.to_thread(serve))
        exchange = await call(transport, f"https://127.0.0.1:{listener.getsockname()[1]}/")
        assert BODY in await server
    await transport.close()
    return exchange


async def test_tls_end_without_a_goodbye_after_the_request_is_unknown() -> None:
    exchange = await _tls_raw(lambda conn: os.close(conn.detach()))
    assert exchange.phase is Phase.UNKNOWN, exchange


async def test_a_corrupt_tls_record_after_the_request_is_unknown_and_not_a_matter_of_trust() -> None:
    exchange = await _tls_raw(lambda conn: assert_written(os.write(conn.fileno(), b"\x17\x03\x03\x00\x20" + b"!" * 32)))
    assert exchange.phase is Phase.UNKNOWN, exchange
    assert not exchange.untrusted


def assert_written(count: int) -> None:
    assert count > 0
