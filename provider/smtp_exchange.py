"""One mail handed to one server, and proof of how far it came. The only place that imports the SMTP client.

A mail takes effect with the dot that ends it (RFC 5321 4.1.1.4), so the dot is written by itself, after everything
else has left, and the rule is:

    a reply to the dot was read                      answered, whatever it says
    else the dot was written                         unknown (RFC 1047): nobody can tell
    else the server refused a command before         answered: it has no mail from us
    else anything at all, a cancellation included    not sent

Nothing here retries, and no connection is used twice.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum

import aiosmtplib

from provider.clock import boottime
from provider.faults import TooLateError, describe, untrusted
from provider.mail import Mail
from provider.text import clean
from provider.transport import Phase

_DOT = b".\r\n"
_LINE_WITH_DOT = re.compile(rb"(?m)^\.")
# CRAM-MD5, which the client would try first, needs the password in the clear at the server and is obsolete.
_AUTH_METHODS = ("plain", "login")


class Step(StrEnum):
    """What the server was asked last."""

    CONNECT = "connect"
    GREETING = "greeting"
    HELLO = "EHLO"
    TLS = "STARTTLS"
    LOGIN = "AUTH"
    SENDER = "MAIL"
    RECIPIENT = "RCPT"
    DATA = "DATA"
    TEXT = "the text"
    DOT = "the final dot"


@dataclass(frozen=True, slots=True)
class Server:
    """Where and how mail goes in."""

    host: str
    port: int
    hello: str
    tls: ssl.SSLContext | None
    starttls: bool
    username: str | None
    password: str | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one try proved."""

    phase: Phase
    step: Step
    detail: str
    """Cleaned text of what went wrong, or of the reply."""
    call_seconds: float
    code: int | None = None
    """Of the reply that ended it."""
    denied: bool = False
    """Not sent because the server does not offer, or we do not trust, what the settings demand."""
    own_fault: bool = False
    """Not sent because we built something that cannot be sent."""


class _RefusedError(Exception):
    """The server said no, by a code that RFC 5321 knows."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


class _OddReplyError(Exception):
    """The server said something that answers no question of ours."""


class _NotOfferedError(Exception):
    """The server does not offer what the settings demand."""


class _Progress:
    """How far it came."""

    step = Step.CONNECT
    dot_written = False
    transport: asyncio.WriteTransport | None = None
    writer: asyncio.StreamWriter | None = None
    """Kept: it closes its transport when it is thrown away."""


async def deliver(
    server: Server,
    mail: Mail,
    *,
    time_limit: float,
    send_before: float,
    secrets: Collection[str] = (),
    before_dot: Callable[[], None] | None = None,
) -> Exchange:
    """One try, with its whole life in ``time_limit`` seconds; neither MAIL nor the dot leaves after ``send_before``.

    ``send_before`` is in seconds of ``provider.clock.boottime``. Answers for everything, also when cancelled: then
    the caller, who is still to record what happened, must see to the cancellation itself. Only the end of the
    process (SystemExit, KeyboardInterrupt) passes.
    """
    begin = time.monotonic()
    progress = _Progress()
    fault: BaseException | None = None
    reply: aiosmtplib.SMTPResponse | None = None
    try:
        async with asyncio.timeout(time_limit):
            reply = await _hand_over(server, mail, progress, send_before, before_dot)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as exc:  # noqa: BLE001 - after the dot each of them means the same
        fault = exc
    _end(progress, polite=reply is not None or isinstance(fault, _RefusedError))
    seconds = time.monotonic() - begin
    if reply is not None:
        return Exchange(Phase.ANSWERED, Step.DOT, clean(reply.message, secrets), seconds, reply.code)
    assert fault is not None
    detail = clean(f"{progress.step}: {describe(fault, time_limit)}", secrets)
    if progress.dot_written:
        return Exchange(Phase.UNKNOWN, progress.step, detail, seconds)
    if isinstance(fault, _RefusedError):
        return Exchange(Phase.ANSWERED, progress.step, clean(f"{progress.step}: {fault}", secrets), seconds, fault.code)
    return Exchange(
        Phase.NOT_SENT,
        progress.step,
        detail,
        seconds,
        denied=isinstance(fault, _NotOfferedError) or untrusted(fault),
        own_fault=not isinstance(fault, (*_WORLD, *_OURS)),
    )


# Failures of the world, and ends that we make ourselves. Any other exception before the dot is a fault of ours.
_WORLD = (OSError, asyncio.CancelledError, aiosmtplib.SMTPException)  # ssl.SSLError and TimeoutError are OSErrors too
_OURS = (TooLateError, _NotOfferedError, _OddReplyError)


async def _hand_over(
    server: Server,
    mail: Mail,
    progress: _Progress,
    send_before: float,
    before_dot: Callable[[], None] | None,
) -> aiosmtplib.SMTPResponse:
    """The dialogue. Returns the reply to the dot."""
    client = await _connected(server, progress)
    if boottime() > send_before:
        raise TooLateError
    # RFC 1870: whoever says how large a mail may be is told how large this one is, and can refuse it at once.
    size = b" SIZE=%d" % len(mail.message) if client.supports_extension("size") else b""
    await _command(client, progress, Step.SENDER, b"MAIL FROM:<%s>%s" % (mail.sender.encode("ascii"), size), 2)
    await _command(client, progress, Step.RECIPIENT, b"RCPT TO:<%s>" % mail.recipient.encode("ascii"), 2)
    await _command(client, progress, Step.DATA, b"DATA", 3)
    progress.step = Step.TEXT
    protocol, transport = client.protocol, progress.transport
    if protocol is None or transport is None:
        raise aiosmtplib.SMTPServerDisconnected("Connection lost")
    # All of the text must have left this process before the dot is written: what waits behind it in a buffer could
    # leave long after the time for it.
    transport.set_write_buffer_limits(high=0)
    protocol.write(_LINE_WITH_DOT.sub(b"..", mail.message))
    progress.writer = asyncio.StreamWriter(transport, protocol, None, asyncio.get_running_loop())
    await progress.writer.drain()
    if getattr(protocol, "_buffer", b""):
        # It would be taken for the reply to the dot.
        raise _OddReplyError("the server spoke before it was asked")
    if transport.is_closing():
        raise aiosmtplib.SMTPServerDisconnected("Connection lost")
    # From here to the write nothing else runs.
    if before_dot is not None:
        before_dot()
    if boottime() > send_before:
        raise TooLateError
    progress.step, progress.dot_written = Step.DOT, True
    protocol.write(_DOT)
    reply = await protocol.read_response()
    if reply.code // 100 not in (2, 4, 5):
        raise _OddReplyError(f"{reply.code} {reply.message}")
    return reply


async def _connected(server: Server, progress: _Progress) -> aiosmtplib.SMTP:
    """A client that may send mail: encrypted and logged in, as the settings demand."""
    client = aiosmtplib.SMTP(
        hostname=server.host,
        port=server.port,
        local_hostname=server.hello,
        timeout=None,  # the caller's limit is for the whole
        use_tls=server.tls is not None and not server.starttls,
        start_tls=False,  # below, step by step
        tls_context=server.tls,
    )
    client.AUTH_METHODS = _AUTH_METHODS
    try:
        await client.connect()
        _keep(client, progress)
        progress.step = Step.HELLO
        await client.ehlo()
        if server.starttls:
            progress.step = Step.TLS
            if not client.supports_extension("starttls"):
                raise _NotOfferedError("the server does not offer STARTTLS")
            await client.starttls()
            _keep(client, progress)
            await client.ehlo()
        if server.username is not None and server.password is not None:
            progress.step = Step.LOGIN
            if not client.supported_auth_methods:
                raise _NotOfferedError("the server does not offer AUTH PLAIN or LOGIN")
            await client.login(server.username, server.password)
    except aiosmtplib.SMTPResponseException as exc:
        if isinstance(exc, aiosmtplib.SMTPConnectResponseError):
            progress.step = Step.GREETING
        raise _refusal(exc.code, exc.message) from None
    return client


async def _command(client: aiosmtplib.SMTP, progress: _Progress, step: Step, command: bytes, good: int) -> None:
    """One command. Raises unless the reply is of the class ``good`` (RFC 5321 4.2.1: the first digit decides)."""
    progress.step = step
    reply = await client.execute_command(command)
    if reply.code // 100 != good:
        raise _refusal(reply.code, reply.message)


def _refusal(code: int, text: str) -> Exception:
    """4yz and 5yz are answers; anything else is no SMTP."""
    return _RefusedError(code, text) if code // 100 in (4, 5) else _OddReplyError(f"{code} {text}")


def _keep(client: aiosmtplib.SMTP, progress: _Progress) -> None:
    assert client.transport is None or isinstance(client.transport, asyncio.WriteTransport)
    progress.transport = client.transport


def _end(progress: _Progress, *, polite: bool) -> None:
    """Close. What has not left by now never does: an outcome was decided by what had."""
    transport = progress.transport
    if transport is None or transport.is_closing():
        return
    if polite:
        transport.write(b"QUIT\r\n")  # its reply tells nothing more
        transport.close()
    else:
        transport.abort()
