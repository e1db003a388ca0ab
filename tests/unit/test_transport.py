"""What is proved not to have been sent, and how the client is set, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from provider import transport as module
from provider.clock import boottime
from provider.transport import Phase, Transport
from tests.unit.exchanges import assert_answered, assert_not_sent, call, free_port
from tests.unit.raw_server import CREATED, LIMIT, Peer, created_with, replying, serving, tls_files


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport()
    yield transport
    await transport.close()


# -- not sent ---------------------------------------------------------------------------------------------------------


async def test_a_refused_connection_is_not_sent_and_says_why(transport: Transport) -> None:
    exchange = await call(transport, f"http://127.0.0.1:{free_port()}/")
    assert_not_sent(exchange)
    assert "ConnectionRefusedError" in exchange.detail
    assert (exchange.own_fault, exchange.late, exchange.untrusted) == (False, False, False)


async def test_a_name_that_does_not_exist_is_not_sent(transport: Transport) -> None:
    exchange = await call(transport, "http://no-such-host.invalid/", seconds=3)  # RFC 6761: never resolves
    assert_not_sent(exchange)
    assert not exchange.own_fault


async def test_a_connect_that_nobody_accepts_ends_at_the_total_limit_as_not_sent(transport: Transport) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    fillers = []
    try:
        for _ in range(4):  # fill the backlog; further connects hang
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        exchange = await call(transport, f"http://127.0.0.1:{listener.getsockname()[1]}/", seconds=0.3)
        assert_not_sent(exchange)
        assert exchange.call_seconds < 2
    finally:
        for sock in [listener, *fillers]:
            sock.close()


async def test_a_full_pool_is_not_sent() -> None:
    transport = Transport(max_connections=1)

    async def stall(peer: Peer) -> None:
        await peer.request()
        await peer.until_gone()

    async with serving(stall) as seen:
        first = asyncio.create_task(call(transport, seen.url, seconds=LIMIT))
        await asyncio.wait_for(seen.arrived.wait(), LIMIT)
        assert_not_sent(await call(transport, seen.url, seconds=0.2))
        assert seen.connections == 1
        first.cancel()
        assert (await first).phase is Phase.UNKNOWN
    await transport.close()


async def test_after_send_before_nothing_leaves_although_the_connection_stands(transport: Transport) -> None:
    async with serving(replying(CREATED)) as seen:
        exchange = await call(transport, seen.url, send_before=boottime() - 0.001)
        assert_not_sent(exchange)
        assert exchange.late
        assert not exchange.own_fault
        await asyncio.wait_for(seen.connected.wait(), LIMIT)
        assert (seen.requests, seen.partial) == ([], b"")


async def test_send_before_is_checked_after_the_connect_and_just_before_the_first_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(replying(CREATED)) as seen:

        def freeze() -> None:  # as if the process stood still for an hour after it had connected
            assert seen.connections <= 1
            thaw = boottime() + 3600
            monkeypatch.setattr(module, "boottime", lambda: thaw)

        transport = Transport(before_first_byte=freeze)
        exchange = await call(transport, seen.url)
        assert_not_sent(exchange)
        assert exchange.late
        await asyncio.wait_for(seen.connected.wait(), LIMIT)
        assert (seen.requests, seen.partial) == ([], b"")
        await transport.close()


async def test_a_fault_just_before_the_first_byte_is_not_sent() -> None:
    def crash() -> None:
        raise RuntimeError("crash point")

    async with serving(replying(CREATED)) as seen:
        transport = Transport(before_first_byte=crash)
        exchange = await call(transport, seen.url)
        assert_not_sent(exchange)
        assert exchange.own_fault
        assert seen.requests == []
        await transport.close()


async def test_the_end_of_the_process_is_not_swallowed() -> None:
    def leave() -> None:
        raise SystemExit(7)

    async with serving(replying(CREATED)) as seen:
        transport = Transport(before_first_byte=leave)
        with pytest.raises(SystemExit):
            await call(transport, seen.url)
        await transport.close()


@pytest.mark.parametrize(
    "header", [(b"X-Note", b"a\r\nb: c"), (b"X-Note", b"nul\x00"), (b"no name", b"x")], ids=["newline", "nul", "name"]
)
async def test_an_illegal_header_is_our_own_fault_and_not_sent(
    transport: Transport, header: tuple[bytes, bytes]
) -> None:
    async with serving(replying(CREATED)) as seen:
        exchange = await call(transport, seen.url, headers=[header])
        assert_not_sent(exchange)
        assert exchange.own_fault
        assert (seen.requests, seen.partial) == ([], b"")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "no-scheme", "http://127.0.0.1:99999999/", "http://[::1/"])
async def test_an_address_that_cannot_be_called_is_our_own_fault(transport: Transport, url: str) -> None:
    exchange = await call(transport, url)
    assert_not_sent(exchange)
    assert exchange.own_fault


async def test_an_untrusted_certificate_is_told_apart_from_a_failed_connection(transport: Transport) -> None:
    _, tls = tls_files()
    async with serving(replying(CREATED), tls) as seen:
        exchange = await call(transport, seen.url.replace("http:", "https:"))
        assert_not_sent(exchange)
        assert exchange.untrusted
        assert seen.requests == []


async def test_a_certificate_for_another_name_is_untrusted() -> None:
    file, tls = tls_files()
    transport = Transport(ca_file=str(file))
    async with serving(replying(CREATED), tls) as seen:
        exchange = await call(transport, f"https://localhost:{seen.port}/")
        assert_not_sent(exchange)
        assert exchange.untrusted
    await transport.close()


async def test_a_tls_peer_that_closes_or_stalls_in_the_handshake_is_not_sent_and_not_untrusted(
    transport: Transport,
) -> None:
    async def close(peer: Peer) -> None:
        await peer.reader.read(1)

    async def stall(peer: Peer) -> None:
        await peer.until_gone()

    for handler in (close, stall):
        async with serving(handler) as seen:
            exchange = await call(transport, seen.url.replace("http:", "https:"), seconds=0.5)
            assert_not_sent(exchange)
            assert not exchange.untrusted
            assert not exchange.own_fault


async def test_a_cancel_during_the_handshake_is_not_sent(transport: Transport) -> None:
    async def stall(peer: Peer) -> None:
        await peer.until_gone()

    async with serving(stall) as seen:
        task = asyncio.create_task(call(transport, seen.url.replace("http:", "https:")))
        await asyncio.wait_for(seen.connected.wait(), LIMIT)
        task.cancel()
        assert_not_sent(await task)


# -- settings ---------------------------------------------------------------------------------------------------------


async def test_a_proxy_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(replying(CREATED)) as proxy, serving(replying(CREATED)) as seen:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        transport = Transport()
        assert_answered(await call(transport, seen.url), 201, seen)
        assert proxy.connections == 0
        await transport.close()


async def test_each_call_has_a_connection_of_its_own_and_no_cookie_of_another(transport: Transport) -> None:
    async def keep_alive(peer: Peer) -> None:
        for _ in range(2):
            await peer.request()
            await peer.say(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n")

    async with serving(keep_alive) as seen:
        await call(transport, seen.url)
        await call(transport, seen.url)
        assert (seen.connections, len(seen.requests)) == (2, 2)
        assert b"cookie" not in seen.requests[1].lower()


@pytest.mark.parametrize(
    "answer", [CREATED, b"HTTP/1.1 201 Created\r\nContent-Length: 900\r\n\r\n{"], ids=["whole", "cut"]
)
async def test_no_connection_stays_open_after_its_call(transport: Transport, answer: bytes) -> None:
    closed = asyncio.Event()

    async def keep_alive(peer: Peer) -> None:
        await peer.request()
        await peer.say(answer)
        await peer.until_gone()
        closed.set()

    async with serving(keep_alive) as seen:
        await call(transport, seen.url, seconds=0.5)
        await asyncio.wait_for(closed.wait(), LIMIT)


async def test_many_calls_at_once_stay_apart(transport: Transport) -> None:
    async def echo(peer: Peer) -> None:
        body = (await peer.request()).split(b"\r\n\r\n")[1]
        await peer.say(created_with(b"", body))

    async with serving(echo) as seen:
        bodies = [b"%d" % number for number in range(50)]
        exchanges = await asyncio.gather(*(call(transport, seen.url, body=body) for body in bodies))
        assert [exchange.body for exchange in exchanges] == bodies
        assert seen.connections == 50


async def test_a_detail_holds_no_secret() -> None:
    def fail() -> None:
        raise RuntimeError("bad token s3cret")

    async with serving(replying(CREATED)) as seen:
        for secrets, shown in ((set(), True), ({"s3cret"}, False)):
            transport = Transport(secrets=secrets, before_first_byte=fail)
            exchange = await call(transport, seen.url)
            assert "bad token" in exchange.detail
            assert ("s3cret" in exchange.detail) is shown
            await transport.close()
