"""A status that was seen stays, whatever happens to the rest of the answer."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any

import pytest

from provider import transport as module
from provider.transport import Phase, Transport
from tests.unit.exchanges import BODY, assert_answered, call
from tests.unit.raw_server import CREATED, LIMIT, Handler, Peer, created_with, drip, replying, serving, tls_files


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport()
    yield transport
    await transport.close()


async def test_a_whole_answer_is_kept_with_status_headers_and_body(transport: Transport) -> None:
    answer = b"HTTP/1.1 201 Created\r\nLocation: /e1\r\nX-A: 1\r\nX-A: 2\r\nContent-Length: 3\r\n\r\nabc"
    async with serving(replying(answer)) as seen:
        exchange = await call(transport, seen.url)
        assert_answered(exchange, 201, seen)
        assert (exchange.body, exchange.truncated, exchange.detail) == (b"abc", False, "")
        assert exchange.values("Location") == ["/e1"]
        assert exchange.values("x-a") == ["1", "2"]
        assert seen.requests[0].endswith(b"\r\n\r\n" + BODY)
        assert b"Idempotency-Key: k-1\r\n" in seen.requests[0]
        assert seen.requests[0].count(b"Content-Length") == 1


async def test_an_answer_over_trusted_tls_is_kept() -> None:
    file, tls = tls_files()
    transport = Transport(ca_file=str(file))
    async with serving(replying(CREATED), tls) as seen:
        assert_answered(await call(transport, seen.url.replace("http:", "https:")), 201, seen)
    await transport.close()


async def test_informational_answers_before_the_final_one_do_not_hide_it(transport: Transport) -> None:
    answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + CREATED
    async with serving(replying(answer)) as seen:
        assert_answered(await call(transport, seen.url), 201, seen)


async def _cut(peer: Peer) -> None:
    await peer.request()
    await peer.say(b'HTTP/1.1 201 Created\r\nLocation: /e1\r\nContent-Length: 900\r\n\r\n{"id"')


async def _cut_by_reset(peer: Peer) -> None:
    await _cut(peer)
    peer.reset()


async def _cut_chunk(peer: Peer) -> None:
    await peer.request()
    await peer.say(b"HTTP/1.1 201 Created\r\nLocation: /e1\r\nTransfer-Encoding: chunked\r\n\r\n90\r\n{")


async def _cut_by_stall(peer: Peer) -> None:
    await _cut(peer)
    await peer.until_gone()


async def _cut_by_drip(peer: Peer) -> None:
    await _cut(peer)
    await drip(peer, b"x")


@pytest.mark.parametrize("handler", [_cut, _cut_by_reset, _cut_chunk, _cut_by_stall, _cut_by_drip])
async def test_a_201_whose_body_is_cut_or_stalls_stays_a_201_with_its_location(
    transport: Transport, handler: Handler
) -> None:
    async with serving(handler) as seen:
        exchange = await call(transport, seen.url, seconds=0.5)
        assert_answered(exchange, 201, seen)
        assert exchange.body is None
        assert exchange.values("location") == ["/e1"]
        assert exchange.detail
        assert exchange.call_seconds < 2


async def test_a_cancel_while_the_body_comes_keeps_the_status(transport: Transport) -> None:
    headers_out = asyncio.Event()

    async def stall(peer: Peer) -> None:
        await _cut(peer)
        headers_out.set()
        await peer.until_gone()

    class Listening(module._Trace):  # tells when the client has the status, so that the cancel comes after it
        async def __call__(self, event: str, info: dict[str, Any]) -> None:
            await super().__call__(event, info)
            if self.reply is not None:
                has_status.set()

    has_status = asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_Trace", Listening)
        async with serving(stall) as seen:
            task = asyncio.create_task(call(transport, seen.url))
            await asyncio.wait_for(has_status.wait(), LIMIT)
            task.cancel()
            assert_answered(await task, 201, seen)


async def test_a_body_that_cannot_be_decoded_keeps_the_201(transport: Transport) -> None:
    for headers in (b"Content-Encoding: gzip\r\n", b"Content-Encoding: br\r\n"):
        async with serving(replying(created_with(headers, b"not that"))) as seen:
            exchange = await call(transport, seen.url)
            assert_answered(exchange, 201, seen)
            assert exchange.body is None


async def test_a_compressed_body_is_read_and_cannot_grow_beyond_the_limit(transport: Transport) -> None:
    headers = b"Content-Encoding: gzip\r\n"
    async with serving(replying(created_with(headers, gzip.compress(b'{"id":1}')))) as seen:
        assert (await call(transport, seen.url)).body == b'{"id":1}'
    async with serving(replying(created_with(headers, gzip.compress(b"0" * 50_000_000)))) as seen:
        exchange = await call(transport, seen.url)
        assert_answered(exchange, 201, seen)
        assert exchange.body is not None
        assert len(exchange.body) <= module.MAX_BODY


async def test_of_a_long_body_only_the_beginning_is_kept(transport: Transport) -> None:
    async with serving(replying(created_with(b"", b"y" * 5_000_000))) as seen:
        exchange = await call(transport, seen.url, max_body=1000)
        assert_answered(exchange, 201, seen)
        assert (exchange.body, exchange.truncated) == (b"y" * 1000, True)


async def test_an_early_413_while_the_body_is_being_sent_is_an_answer(transport: Transport) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.say(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await peer.until_gone()

    async with serving(refuse) as seen:
        exchange = await call(transport, seen.url, body=b"x" * 3_000_000)
        assert (exchange.phase, exchange.status) == (Phase.ANSWERED, 413)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_answer_and_is_not_followed(transport: Transport, status: int) -> None:
    async with serving(replying(CREATED)) as elsewhere:
        answer = f"HTTP/1.1 {status} Moved\r\nLocation: {elsewhere.url}\r\nContent-Length: 0\r\n\r\n".encode()
        async with serving(replying(answer)) as seen:
            exchange = await call(transport, seen.url)
            assert_answered(exchange, status, seen)
            assert exchange.values("location") == [elsewhere.url]
        assert elsewhere.connections == 0


@pytest.mark.parametrize("location", [b"http://[bad", b"\xff\xfe", b"https://:port/", b"http://a:99999999/"])
async def test_a_redirect_to_nonsense_is_still_an_answer(transport: Transport, location: bytes) -> None:
    answer = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % location
    async with serving(replying(answer)) as seen:
        assert_answered(await call(transport, seen.url), 302, seen)


async def test_401_is_an_answer_and_brings_no_second_request(transport: Transport) -> None:
    answer = b'HTTP/1.1 401 No\r\nWWW-Authenticate: Digest realm="a", nonce="b"\r\nContent-Length: 0\r\n\r\n'
    async with serving(replying(answer)) as seen:
        assert_answered(await call(transport, seen.url), 401, seen)


async def test_switching_protocols_is_an_answer_that_nobody_asked_for(transport: Transport) -> None:
    async with serving(replying(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")) as seen:
        exchange = await call(transport, seen.url)
        assert exchange.sent
        assert exchange.status in (101, None)
        assert seen.connections == 1
