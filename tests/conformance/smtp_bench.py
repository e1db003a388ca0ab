"""The SMTP adapter against a real mail server (aiosmtpd) that fails as told, by recipient."""

from __future__ import annotations

import asyncio
import email
import hashlib
import logging
import re
import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from provider.port import Adapter
from provider.registry import build, parse_provider
from provider.settings import ConnectionSettings
from tests.conformance.bench import Bench, Do, Effect, NotPossibleError, Profile, Say, Wrap
from tests.unit.exchanges import free_port

TABLE: Mapping[str, Any] = {
    "adapter": "smtp",
    "host": "127.0.0.1",
    "tls": "none",
    "from": "Orders <orders@shop.test>",
    "to": "{payload.email}",
    "subject": "Order {payload.order_id}",
    "body": "{payload.name}: {payload.amount}",
}

logging.getLogger("mail.log").setLevel(logging.ERROR)  # aiosmtpd warns of logins without TLS at each connection

IMPOSSIBLE = {
    Do.SLOW: "a mail server knows no key that could be in flight",
    Do.STORED_ERROR: "a mail server keeps no replies",
    Do.ACCEPT: "a mail server that takes a mail has taken it",
    Do.ACCEPT_THEN_FAIL: "a mail server tells of a failure by mail",
}


def recipient(key: str) -> str:
    """As the stage makes it."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}@example.org"


@dataclass(slots=True)
class Mails:
    """The server's handler and record."""

    password: str
    plans: dict[str, tuple[Do, float]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    mails: list[tuple[str, bytes]] = field(default_factory=list)
    waiting: set[asyncio.Task[Any]] = field(default_factory=set)

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.requests.append(address)
        do, _ = self.plans.get(address, (Do.APPLY, 0.0))
        said = {
            Do.REFUSE: "550 5.1.1 no such mailbox",
            Do.DENY: "530 5.7.0 authentication required",
            Do.THROTTLE: "450 4.7.1 slow down",
            Do.ECHO: f"550 5.7.1 {address} with {self.password} \x07 is not welcome",
        }.get(do)
        if do is Do.HANG_UP_BEFORE:
            _abort(server)
        if said is not None or do is Do.HANG_UP_BEFORE:
            del self.plans[address]
            return said or "421 gone"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 Ok"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's
        (address,) = envelope.rcpt_tos
        do, value = self.plans.pop(address, (Do.APPLY, 0.0))
        assert isinstance(envelope.content, bytes)
        mail = (address, envelope.content)
        if do is Do.CODE:
            return f"{int(value)} as told"
        if do is Do.LATE:
            self.waiting.add(asyncio.create_task(self._later(mail, value)))
            await self._silence()
        self.mails.append(mail)
        if do is Do.HANG_UP:
            _abort(server)
        elif do is Do.STALL:
            await self._silence()
        elif do is Do.CUT:
            assert isinstance(server.transport, asyncio.WriteTransport)
            server.transport.write(b"250 2.0.0 Ok: que")
            server.transport.close()
        return f"250 2.0.0 Ok: queued as {len(self.mails):04X}"

    async def _silence(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.waiting.add(task)
        await asyncio.Event().wait()

    async def _later(self, mail: tuple[str, bytes], seconds: float) -> None:
        await asyncio.sleep(seconds)  # how long this server works
        self.mails.append(mail)

    def login(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        return AuthResult(success=data.password == self.password.encode(), handled=False)


class SmtpBench:
    """See ``Bench``."""

    secret = "smtp-secret-1"
    codes: tuple[int, ...] = (500, 502, 521, 530, 550, 551, 552, 554, 556, 599)

    def __init__(self, mails: Mails, port: int, wrap: Wrap, settings: Mapping[str, Any]) -> None:
        self._mails = mails
        self._port = port
        self._wrap = wrap
        self._table = {**TABLE, **settings}
        self.adapter = self.other()

    def other(self, *, secret: str | None = None, reachable: bool = True) -> Adapter:
        table = {**self._table, "port": self._port if reachable else free_port()}
        connection = ConnectionSettings(provider="mail", username="duly-user", password="${PASSWORD}")
        environ = {"PASSWORD": secret or self.secret}
        return self._wrap(build({"mail": parse_provider(table)}, {"main": connection}, environ)["main"])

    async def tell(self, key: str, do: Do, value: float = 0) -> None:
        if do in IMPOSSIBLE:
            raise NotPossibleError(IMPOSSIBLE[do])
        self._mails.plans[recipient(key)] = (do, value)

    async def tell_look_up(self, key: str, say: Say) -> None:
        raise NotPossibleError("a mail server cannot be asked")

    async def effects(self, key: str) -> list[Effect]:
        return [
            Effect(_key_in(content), content) for address, content in self._mails.mails if address == recipient(key)
        ]

    async def requests(self, key: str) -> int:
        return self._mails.requests.count(recipient(key))

    async def forget(self, key: str) -> None:
        """It remembers none."""

    async def pass_time(self, seconds: float) -> None:
        """Nothing here depends on it."""


def _key_in(content: bytes) -> str:
    """The idempotency key that the Message-ID was made from."""
    local = str(email.message_from_bytes(content)["Message-ID"]).strip("<>").rpartition("@")[0]
    return re.sub("=([0-9A-F]{2})", lambda code: chr(int(code[1], 16)), local)


def _abort(server: SMTP) -> None:
    if isinstance(server.transport, asyncio.WriteTransport):
        server.transport.abort()


@asynccontextmanager
async def opened(wrap: Wrap, settings: Mapping[str, Any]) -> AsyncIterator[Bench]:
    """A mail server and its adapter."""
    mails = Mails(SmtpBench.secret)
    loop = asyncio.get_running_loop()

    def made() -> SMTP:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of logins without TLS; this is loopback
            return SMTP(
                mails,
                hostname="mx.test",
                authenticator=mails.login,
                auth_required=True,
                auth_require_tls=False,
                loop=loop,
            )

    server = await loop.create_server(made, "127.0.0.1", 0)
    bench = SmtpBench(mails, server.sockets[0].getsockname()[1], wrap, settings)
    try:
        yield bench
    finally:
        await bench.adapter.close()
        server.close()
        for task in mails.waiting:
            task.cancel()


PROFILE = Profile("smtp", opened)
