"""One HTTP request, and proof of whether it left. The only place that imports the HTTP client.

The name of an exception does not tell whether the provider saw a request: the same class is raised
before the first byte and after the effect. What tells is the phase, and the client's own trace gives it:

    a final status was seen                          answered, whatever happens to the body
    else no request header was started               not sent
    else our headers were refused before any byte    not sent, our own fault
    else anything at all, a cancellation included    unknown

Nothing here retries, follows or authenticates: one call, at most one request. HTTP/1.1 only (HTTP/2 may
send again by itself), no environment (a stray HTTP_PROXY would be obeyed), no reuse of connections
(a connection that closes as we write would be a needless unknown).
"""

from __future__ import annotations

import asyncio
import ssl
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any

import httpx

from provider.clock import boottime
from provider.faults import TooLateError, describe, untrusted
from provider.text import clean

MAX_BODY = 64 * 1024  # bytes of an answer that are kept: more than any receipt, small in a worker


class Phase(StrEnum):
    """How far one request came."""

    NOT_SENT = "not_sent"
    ANSWERED = "answered"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one request proved."""

    phase: Phase
    detail: str
    """Cleaned text of what went wrong; empty when nothing did."""
    call_seconds: float
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Of the answer, names in lower case, in order, repeats kept."""
    body: bytes | None = None
    """Decoded; None when it did not come whole or could not be decoded. At most ``max_body`` bytes."""
    truncated: bool = False
    """The body was longer than ``max_body``; the rest was not read."""
    late: bool = False
    """Not sent because ``send_before`` had passed."""
    untrusted: bool = False
    """Not sent because the server's certificate is not trusted: configuration, not weather."""
    own_fault: bool = False
    """Not sent because we built something that cannot be sent."""

    @property
    def sent(self) -> bool:
        """Whether a request header may have left this machine."""
        return self.phase is not Phase.NOT_SENT

    def values(self, name: str) -> list[str]:
        """All values of one header of the answer."""
        return [value for header, value in self.headers if header == name.lower()]


class _Trace:
    """Listens to httpcore. Awaited by it, but never suspends: between check and first byte nothing else runs."""

    __slots__ = ("_before_first_byte", "_send_before", "headers_done", "reply", "started")

    def __init__(self, send_before: float, before_first_byte: Callable[[], None] | None) -> None:
        self._send_before = send_before
        self._before_first_byte = before_first_byte
        self.started = False
        self.headers_done = False
        self.reply: tuple[int, list[tuple[bytes, bytes]]] | None = None

    async def __call__(self, event: str, info: dict[str, Any]) -> None:
        if event == "http11.send_request_headers.started":
            # A CONNECT speaks to a proxy only. We use none; the rule would hold if somebody did.
            if info["request"].method != b"CONNECT":
                if self._before_first_byte is not None:
                    self._before_first_byte()
                if boottime() > self._send_before:
                    raise TooLateError  # inside the trace, so that httpcore writes nothing
                self.started = True
        elif event == "http11.send_request_headers.complete":
            self.headers_done = True
        elif event == "http11.receive_response_headers.complete":
            _, status, _, headers = info["return_value"]
            self.reply = (status, headers)


# Failures of the world. Any other exception before the first byte is ours.
_WORLD = (
    OSError,  # ssl.SSLError and TimeoutError are OSErrors too
    asyncio.CancelledError,
    httpx.NetworkError,
    httpx.TimeoutException,
    httpx.ProxyError,
    httpx.RemoteProtocolError,
)
_url = lru_cache(maxsize=256)(httpx.URL)  # parsing is a fifth of a call's CPU; providers have few URLs


@cache
def _trust(ca_file: str | None) -> ssl.SSLContext:
    """Whom we trust. Costs 20 ms, so it is made once. SSL_CERT_FILE and SSL_CERT_DIR are honoured."""
    return ssl.create_default_context(cafile=ca_file) if ca_file else httpx.create_ssl_context()


class Transport:
    """Makes requests for one connection. Below the client of httpx, which would read cookies,
    build the next request of a redirect and lose the status of a cut body, and costs a quarter more CPU."""

    def __init__(
        self,
        *,
        ca_file: str | None = None,
        max_connections: int | None = None,
        secrets: Collection[str] = (),
        before_first_byte: Callable[[], None] | None = None,
    ) -> None:
        """``secrets`` never occur in a detail. Raises OSError for a ``ca_file`` that cannot be read."""
        self._secrets = frozenset(secrets)
        self._before_first_byte = before_first_byte
        self._http = httpx.AsyncHTTPTransport(
            verify=_trust(ca_file),
            http1=True,
            http2=False,
            trust_env=False,
            retries=0,
            limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=0),
        )

    async def send(
        self,
        method: str,
        url: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        *,
        time_limit: float,
        send_before: float,
        max_body: int = MAX_BODY,
        question: bool = False,
    ) -> Exchange:
        """One request, with its whole life in ``time_limit`` seconds; no first byte after ``send_before``.

        ``send_before`` is in seconds of ``provider.clock.boottime``. Answers for everything, also when
        cancelled: then the caller, who is still to record what happened, gets the Exchange and must see
        to the cancellation itself. Only the end of the process (SystemExit, KeyboardInterrupt) passes.
        ``question``: it can have no effect, so ``before_first_byte`` is not called.
        """
        begin = time.monotonic()
        trace = _Trace(send_before, None if question else self._before_first_byte)
        response: httpx.Response | None = None
        content: bytes | None = None
        truncated = False
        fault: BaseException | None = None
        try:
            async with asyncio.timeout(time_limit):
                request = httpx.Request(
                    method, _url(url), headers=list(headers), content=body, extensions={"trace": trace}
                )
                response = await self._http.handle_async_request(request)
                raw, truncated = await _read(response, max_body)
                content = _decoded(raw, response.headers.get("content-encoding", ""), max_body)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as exc:  # noqa: BLE001 - after the first byte each of them means the same
            fault = exc
        if response is not None:
            await _close(response)
        detail = "" if fault is None else clean(describe(fault, time_limit), self._secrets)
        seconds = time.monotonic() - begin
        phase = _phase(trace, fault)
        if phase is Phase.NOT_SENT:
            return Exchange(
                phase,
                detail,
                seconds,
                late=isinstance(fault, TooLateError),
                untrusted=untrusted(fault),
                own_fault=not isinstance(fault, (*_WORLD, TooLateError)),
            )
        if trace.reply is None:
            return Exchange(phase, detail, seconds)
        status, pairs = trace.reply
        answer = tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in pairs)
        return Exchange(phase, detail, seconds, status, answer, content, truncated)

    async def close(self) -> None:
        """Close what is open. A call in flight ends as unknown."""
        await self._http.aclose()


def _phase(trace: _Trace, fault: BaseException | None) -> Phase:
    """The rule at the top of this file."""
    if trace.reply is not None:
        return Phase.ANSWERED
    if not trace.started:
        return Phase.NOT_SENT
    if isinstance(fault, httpx.LocalProtocolError) and not trace.headers_done:
        return Phase.NOT_SENT
    return Phase.UNKNOWN


async def _read(response: httpx.Response, max_body: int) -> tuple[bytes, bool]:
    """The body as it came, and whether it was longer than ``max_body``."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    kept = bytearray()
    async for chunk in response.stream:
        kept += chunk
        if len(kept) > max_body:
            return bytes(kept[:max_body]), True
    return bytes(kept), False


def _decoded(raw: bytes, encoding: str, max_body: int) -> bytes | None:
    """The body without its content-encoding; we ask for none, but some servers do not listen.

    Bounded, so that a small answer cannot unfold into a large one. Raises zlib.error if damaged.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return raw
    if encoding in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(wbits=47).decompress(raw, max_body)  # 47: zlib or gzip, told by its header
    return None


async def _close(response: httpx.Response) -> None:
    """Give the connection back, which closes it; the answer stands whatever happens here."""
    try:
        await response.aclose()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException:  # noqa: BLE001, S110 - nothing to learn from it, and nothing to undo
        pass
